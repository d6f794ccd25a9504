// serve, chat, config and doctor as programs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/configuration.h"
#include "process.h"

namespace synod {
namespace {

// Sets a variable for one test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

nlohmann::json setting(const ProcessResult& r, const std::string& name) {
  const auto shown = nlohmann::json::parse(r.out);  // must outlive the loop
  for (const auto& s : shown["settings"]) {
    if (s["name"] == name) return s;
  }
  return nullptr;
}

TEST(Config, FlagsWinOverEnvironmentOverFileOverDefault) {
  const test::TempFolder dir;
  std::ofstream(dir / "config.toml") << "ctx-size = 1234\nthreads = 3\n[serve]\nport = 9000\nthreads = 2\n"
                                        "cors_origin = [\"a\", \"b\"]\nno-slots = true\n";
  const Variable file("SYNOD_CONFIG", (dir / "config.toml").string());
  const ProcessResult plain = synod_run({"config", "show", "serve", "--json"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(setting(plain, "--port")["value"], "9000");
  EXPECT_EQ(setting(plain, "--threads")["value"], "2");  // the verb's own table wins
  EXPECT_EQ(setting(plain, "--ctx-size")["value"], "1234");
  EXPECT_NE(setting(plain, "--ctx-size")["source"].get<std::string>().find("line 1"), std::string::npos);
  EXPECT_EQ(setting(plain, "--cors-origin")["value"], "a,b");
  EXPECT_EQ(setting(plain, "--no-slots")["value"], "true");
  EXPECT_EQ(setting(plain, "--host")["source"], "default");
  EXPECT_EQ(setting(synod_run({"config", "show", "run", "--json"}), "--threads")["value"], "3");
  const Variable port("SYNOD_PORT", "9001");
  const Variable key("SYNOD_API_KEY", "secret");
  const ProcessResult with_environment = synod_run({"config", "show", "serve", "--json"});
  EXPECT_EQ(setting(with_environment, "--port")["value"], "9001");
  EXPECT_EQ(setting(with_environment, "--port")["source"], "SYNOD_PORT");
  EXPECT_EQ(with_environment.out.find("secret"), std::string::npos);
}

TEST(Config, MistakesNameTheirPlace) {
  const test::TempFolder dir;
  const Variable file("SYNOD_CONFIG", (dir / "config.toml").string());
  const auto error_of = [&](const std::string& text) {
    std::ofstream(dir / "config.toml") << text;
    const ProcessResult r = synod_run({"tokenize", "-p", "x"});
    EXPECT_EQ(r.code, 2) << text << r.out;
    return r.err;
  };
  EXPECT_NE(error_of("prot = 1\n").find("line 1"), std::string::npos);
  EXPECT_NE(error_of("\n[serve]\nprot = 1\n").find("line 3"), std::string::npos);
  EXPECT_NE(error_of("[server]\nport = 1\n").find("server"), std::string::npos);
  EXPECT_NE(error_of("port = \n").find("line 1"), std::string::npos);
  EXPECT_NE(error_of("[tokenize]\nquiet = \"maybe\"\n").find("quiet"), std::string::npos);
  const Variable missing("SYNOD_CONFIG", (dir / "none.toml").string());
  EXPECT_EQ(synod_run({"tokenize", "-p", "x"}).code, 5);
}

TEST(Config, SetAndUnsetChangeOneLineOfTheFile) {
  const test::TempFolder dir;
  const std::filesystem::path path = dir / "folder" / "config.toml";
  const Variable file("SYNOD_CONFIG", path.string());
  const auto config = [](std::vector<std::string> words) {
    words.insert(words.begin(), "config");
    return synod_run(words);
  };
  ASSERT_EQ(config({"set", "serve.port", "9000"}).code, 0) << "the file is made";
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write)
      << "keys may lie in it";
  EXPECT_EQ(read_all(path), "[serve]\nport = 9000\n");
  std::ofstream(path) << "# mine\n\n[serve]  # here\nport = 9000 # why\n\n[run]\nn_predict = 5\n";
  ASSERT_EQ(config({"set", "ctx_size", "1234"}).code, 0);
  ASSERT_EQ(config({"set", "serve.port", "9001"}).code, 0);
  ASSERT_EQ(config({"set", "serve.cache-dir", "/a \"b\"\\c"}).code, 0);
  ASSERT_EQ(config({"set", "run.n-predict", "6"}).code, 0);
  ASSERT_EQ(config({"set", "chat.quiet", "yes"}).code, 0);
  EXPECT_EQ(
      read_all(path),
      "# mine\nctx-size = 1234\n\n[serve]  # here\nport = 9001\ncache-dir = \"/a \\\"b\\\"\\\\c\"\n\n[run]\n"
      "n-predict = 6\n\n[chat]\nquiet = true\n");
  const ProcessResult shown = config({"show", "serve", "--json"});
  EXPECT_EQ(setting(shown, "--port")["value"], "9001");
  EXPECT_EQ(setting(shown, "--ctx-size")["value"], "1234");
  EXPECT_EQ(setting(shown, "--cache-dir")["value"], "/a \"b\"\\c");
  for (const char* key :
       {"serve.port", "serve.cache-dir", "run.n-predict", "chat.quiet", "ctx-size", "ctx-size"}) {
    EXPECT_EQ(config({"unset", key}).code, 0) << key;
  }
  EXPECT_EQ(read_all(path), "# mine\n\n[serve]  # here\n\n[run]\n\n[chat]\n");
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"set", "serve.port", "many"},
                                                {"set", "serve.port", "70000"},
                                                {"set", "port", ""},
                                                {"set", "no-such-option", "1"},
                                                {"set", "nobody.port", "1"},
                                                {"set", "quiet", "perhaps"},
                                                {"set", "port"},
                                                {"unset", "no-such-option"},
                                                {"turn", "port"}}) {
    EXPECT_EQ(config(wrong).code, 2) << wrong.back();
  }
  std::ofstream(path) << "serve.port = 1\n";
  EXPECT_EQ(config({"set", "serve.port", "2"}).code, 2) << "not a line that can be changed safely";
  EXPECT_EQ(read_all(path), "serve.port = 1\n");
}

TEST(Config, RefusesValuesOutOfRangeFromAnySource) {
  const Variable port("SYNOD_PORT", "99999");
  const ProcessResult r = synod_run({"serve"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("SYNOD_PORT"), std::string::npos);
}

TEST(Serve, RefusesOpenAddressesWithoutAKeyAndBadFiles) {
  const ProcessResult open = synod_run({"serve", "--host", "0.0.0.0", "--port", "0"});
  EXPECT_EQ(open.code, 2);
  EXPECT_NE(open.err.find("--api-key-file"), std::string::npos);
  EXPECT_EQ(synod_run({"serve", "--port", "0", "--api-key-file", "/nowhere"}).code, 5);
  EXPECT_EQ(synod_run({"serve", "--port", "0", "--ssl-cert-file", "/nowhere"}).code, 2);
  EXPECT_EQ(synod_run({"serve", "--port", "0", "/nowhere.gguf"}).code, 5);
}

TEST(Chat, AnswersEveryLineOfAPipeAndObeysCommands) {
  const ProcessResult r =
      synod_run({"chat", "-n", "20", "--quiet"}, "Define hope.\n/clear\nDefine hope.\n/exit\nnever\n");
  ASSERT_EQ(r.code, 0) << r.err;
  const size_t half = r.out.size() / 2;
  EXPECT_GT(half, 5U);
  EXPECT_EQ(r.out.substr(0, half), r.out.substr(half));  // a cleared conversation starts the same
  EXPECT_EQ(r.out.find('\x1b'), std::string::npos);
}

TEST(Doctor, ReportsWhatItFinds) {
  const ProcessResult r = synod_run({"doctor", "--json"});
  EXPECT_EQ(r.code, 0) << r.out;
  const auto report = nlohmann::json::parse(r.out);
  EXPECT_GE(report["checks"].size(), 7U);
  EXPECT_EQ(synod_run({"doctor", "/nowhere.gguf"}).code, 1);
}

}  // namespace
}  // namespace synod
