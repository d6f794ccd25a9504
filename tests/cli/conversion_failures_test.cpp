// What convert and quantize do when something goes wrong: exit code, message, and what is left on the disk.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "process.h"

namespace synod {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

const std::string kGemma = SYNOD_SOURCE_DIR "/models/gemma4-mini-q8_0.gguf";
const std::string kCheckpoints = SYNOD_SOURCE_DIR "/tests/data/checkpoints/";
constexpr uid_t kNobody = 65534;

struct ChildOptions {
  rlim_t max_file_bytes = RLIM_INFINITY;
  bool as_nobody = false;  // gives up the rights of root
};

// Like synod_run, but as a child that can be killed or limited.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments, const ChildOptions& options = {}) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    const rlimit limit{options.max_file_bytes, options.max_file_bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const int null = ::open("/dev/null", O_RDWR);
    const int err = ::open((log_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(null, 0);
    ::dup2(null, 1);
    ::dup2(err, 2);
    if (options.as_nobody && ::setuid(kNobody) != 0) ::_exit(kCannotRun);
    std::vector<char*> argv = {const_cast<char*>(SYNOD_PROGRAM)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    ::execv(SYNOD_PROGRAM, argv.data());
    ::_exit(kCannotRun);
  }
  // The exit code; 128 + the signal's number for a child that was killed.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void signal(int number) const { ::kill(pid_, number); }
  std::string err() const { return read_all(log_ / "err"); }

  static constexpr int kCannotRun = 99;

 private:
  test::TempFolder log_;
  pid_t pid_ = -1;
};

std::vector<std::string> conversion(const std::string& verb, const fs::path& from, const fs::path& to,
                                    const std::string& type = "q4_0") {
  return {verb, from.string(), to.string(), "--type", type};
}

class ConversionFailures : public ::testing::TestWithParam<const char*> {
 protected:
  std::string verb() const { return GetParam(); }
  fs::path out() const { return dir_ / "out.gguf"; }
  // Runs the verb, expects the code and the words, and nothing new in the folder.
  void expect(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& words) {
    const std::vector<std::string> before = dir_.files();
    const ProcessResult r = synod_run(arguments);
    EXPECT_EQ(r.code, code) << r.err;
    for (const std::string& word : words)
      EXPECT_NE(r.err.find(word), std::string::npos) << word << ": " << r.err;
    EXPECT_EQ(dir_.files(), before);
  }
  // Until the folder holds that many files; gives up after a minute.
  void wait_for_files(size_t n) const {
    const auto end = Clock::now() + std::chrono::minutes(1);
    while (dir_.files().size() < n && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_GE(dir_.files().size(), n);
  }
  test::TempFolder dir_;
};

INSTANTIATE_TEST_SUITE_P(Verbs, ConversionFailures, ::testing::Values("convert", "quantize"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ConversionFailures, InputsThatAreNotThereExitWith5) {
  expect(conversion(verb(), "/nowhere/model.gguf", out()), 5, {"/nowhere/model.gguf", "no such file"});
  expect(conversion(verb(), dir_.path(), out()), 5, {dir_.path().string(), "no model"});
  fs::create_directory(dir_ / "folder");
  fs::copy_file(kCheckpoints + "gemma4-dense-tiny/model.safetensors", dir_ / "folder/model.safetensors");
  expect(conversion(verb(), dir_ / "folder", out()), 5, {"config.json"});
  auto with_importance = conversion(verb(), kGemma, out());
  with_importance.insert(with_importance.end(), {"--imatrix", "/nowhere/x"});
  expect(with_importance, 5, {"/nowhere/x"});
}

TEST_P(ConversionFailures, DamagedInputsExitWith3) {
  const std::string whole = read_all(kGemma);
  for (const size_t size : {size_t{0}, size_t{3}, size_t{100}, whole.size() / 2, whole.size() - 64}) {
    const fs::path cut = dir_.write("cut.gguf", whole.substr(0, size));
    expect(conversion(verb(), cut, out()), 3, {"cut.gguf"});
  }
  expect(conversion(verb(), dir_.write("text.gguf", "no model at all"), out()), 3, {"text.gguf"});
  auto with_importance = conversion(verb(), kGemma, out());
  with_importance.insert(with_importance.end(), {"--imatrix", kGemma});
  expect(with_importance, 3, {"no importance matrix"});
  fs::copy(kCheckpoints + "gemma4-dense-tiny", dir_ / "folder");
  std::ofstream(dir_ / "folder/config.json") << "{\"model_type\": ";
  expect(conversion(verb(), dir_ / "folder", out()), 3, {"config.json"});
}

TEST_P(ConversionFailures, OtherArchitecturesExitWith3AndNameThoseThatWork) {
  std::string other = read_all(kGemma);
  const size_t at = other.find("gemma4", other.find("general.architecture"));
  ASSERT_NE(at, std::string::npos);
  other.replace(at, 6, "llamaX");
  expect(conversion(verb(), dir_.write("other.gguf", other), out()), 3, {"llamaX", "gemma4, deepseek4"});
  fs::copy(kCheckpoints + "gemma4-dense-tiny", dir_ / "folder");
  std::ofstream(dir_ / "folder/config.json") << R"({"model_type": "qwen9"})";
  expect(conversion(verb(), dir_ / "folder", out()), 3, {"qwen9", "gemma4", "deepseek_v4"});
}

TEST_P(ConversionFailures, UnknownTypesExitWith2AndListTheKnownOnes) {
  expect(conversion(verb(), kGemma, out(), "q9"), 2, {"\"q9\"", "q4_k_m", "synod_g4_q4"});
  auto with_override = conversion(verb(), kGemma, out());
  with_override.insert(with_override.end(), {"--tensor-type", "attn_q=q9"});
  expect(with_override, 2, {"\"q9\"", "--tensor-type"});
}

TEST_P(ConversionFailures, AnInputWithoutPermissionExitsWith3) {
  const fs::path model = dir_ / "secret.gguf";
  fs::copy_file(kGemma, model);
  fs::permissions(model, fs::perms::none);
  fs::permissions(dir_.path(), fs::perms::all);
  Child child(conversion(verb(), model, out()), {.as_nobody = ::geteuid() == 0});
  const int code = child.wait();
  if (code == Child::kCannotRun) GTEST_SKIP() << "other users cannot run the program where it was built";
  EXPECT_EQ(code, 3);
  EXPECT_NE(child.err().find("secret.gguf: cannot open: Permission denied"), std::string::npos)
      << child.err();
  EXPECT_EQ(dir_.files(), std::vector<std::string>{"secret.gguf"});
}

TEST_P(ConversionFailures, AnInputThatIsCutMeanwhileExitsWith3) {
  const fs::path model = dir_ / "model.gguf";
  fs::copy_file(kGemma, model);
  Child child(conversion(verb(), model, out(), "iq3_s"));
  // The output's temporary file says that the model was accepted and is being read.
  wait_for_files(2);
  fs::resize_file(model, 1 << 20);
  EXPECT_EQ(child.wait(), 3) << child.err();
  EXPECT_NE(child.err().find("can no longer be read"), std::string::npos) << child.err();
  EXPECT_FALSE(fs::exists(out()));
}

TEST_P(ConversionFailures, AFileThatMayGrowNoFurtherIsAFailureThatLeavesNothing) {
  Child child(conversion(verb(), kGemma, out()), {.max_file_bytes = 3 << 20});
  EXPECT_EQ(child.wait(), 1);
  EXPECT_NE(child.err().find("out.gguf: cannot write: File too large"), std::string::npos) << child.err();
  EXPECT_TRUE(dir_.files().empty());
  auto split = conversion(verb(), kGemma, out());
  split.insert(split.end(), {"--split-max-size", "2M"});
  EXPECT_EQ(Child(split, {.max_file_bytes = 1 << 20}).wait(), 1);
  EXPECT_TRUE(dir_.files().empty()) << dir_.files().front();
}

// A file system of `bytes` in memory.
class SmallDisk {
 public:
  explicit SmallDisk(int64_t bytes) {
    const std::string options = "size=" + std::to_string(bytes);
    is_mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (is_mounted_) ::umount(folder_.path().c_str());
  }
  bool is_mounted() const { return is_mounted_; }
  const test::TempFolder& folder() const { return folder_; }

 private:
  test::TempFolder folder_;
  bool is_mounted_ = false;
};

int64_t planned_bytes(const std::string& type) {
  const ProcessResult r = synod_run({"quantize", kGemma, "/nowhere/x.gguf", type, "--dry-run", "--json"});
  const std::string key = "\"bytes\":";
  return std::stoll(r.out.substr(r.out.find(key) + key.size()));
}

TEST_P(ConversionFailures, ADiskThatIsTooSmallIsSeenBeforeTheWork) {
  const SmallDisk disk(1 << 20);
  if (!disk.is_mounted()) GTEST_SKIP() << "only root can mount a small disk";
  const fs::path to = disk.folder() / "out.gguf";
  expect(conversion(verb(), kGemma, to), 1, {to.string(), "not enough space", " free"});
  EXPECT_TRUE(disk.folder().files().empty());
}

TEST_P(ConversionFailures, ADiskThatFillsUpIsAFailureThatLeavesNothing) {
  // Room for the tensors, not for the metadata beside them.
  const SmallDisk disk(planned_bytes("q4_0") + (64 << 10));
  if (!disk.is_mounted()) GTEST_SKIP() << "only root can mount a small disk";
  const fs::path to = disk.folder() / "out.gguf";
  expect(conversion(verb(), kGemma, to), 1, {to.string(), "cannot write: No space left on device"});
  EXPECT_TRUE(disk.folder().files().empty());
}

// Every file a killed run left must be complete or be refused, whatever it is called.
void expect_nothing_incomplete_opens(const test::TempFolder& dir, const fs::path& complete, int kill) {
  for (const std::string& name : dir.files()) {
    if (name.ends_with(".json")) continue;
    const bool same = fs::exists(complete / name) && read_all(dir / name) == read_all(complete / name);
    if (same) continue;
    EXPECT_TRUE(name.ends_with(".tmp")) << "kill " << kill << ": " << name << " is not what it should be";
    fs::rename(dir / name, dir / "left.gguf");
    const ProcessResult opened = synod_run({"inspect", (dir / "left.gguf").string()});
    if (opened.code != 0) continue;
    // Complete, only not renamed yet.
    const std::string left = read_all(dir / "left.gguf");
    const bool finished = std::ranges::any_of(
        fs::directory_iterator(complete), [&](const auto& entry) { return read_all(entry.path()) == left; });
    EXPECT_TRUE(finished) << "kill " << kill << ": " << name << " opens";
  }
}

TEST_P(ConversionFailures, KilledAtAnyMomentNothingIncompleteOpens) {
  std::mt19937 random(20261130);
  for (const bool split : {false, true}) {
    const auto arguments = [&](const test::TempFolder& dir) {
      auto a = conversion(verb(), kGemma, dir / "out.gguf", "q4_k_m");
      if (split) a.insert(a.end(), {"--split-max-size", "3M"});
      return a;
    };
    const test::TempFolder complete;
    const auto start = Clock::now();
    ASSERT_EQ(Child(arguments(complete)).wait(), 0);
    const auto whole_run = std::chrono::duration<double>(Clock::now() - start);
    constexpr int kKills = 12;
    int n_unfinished = 0;
    for (int i = 0; i < kKills; ++i) {
      const test::TempFolder dir;
      Child child(arguments(dir));
      std::this_thread::sleep_for(whole_run * std::uniform_real_distribution<double>(0, 1.05)(random));
      child.signal(SIGKILL);
      n_unfinished += child.wait() != 0 ? 1 : 0;
      expect_nothing_incomplete_opens(dir, complete.path(), i);
    }
    EXPECT_GT(n_unfinished, kKills / 5) << "the kills came too late: the test shows little";
  }
}

TEST_P(ConversionFailures, SignalsStopCleanly) {
  for (const int number : {SIGINT, SIGTERM}) {
    auto slow = conversion(verb(), kGemma, out(), "iq3_s");
    slow.insert(slow.end(), {"-t", "1"});
    Child child(slow);
    wait_for_files(1);
    child.signal(number);
    EXPECT_EQ(child.wait(), 128 + number);
    EXPECT_TRUE(dir_.files().empty());
    EXPECT_NE(child.err().find("nothing was written"), std::string::npos) << child.err();
  }
}

}  // namespace
}  // namespace synod
