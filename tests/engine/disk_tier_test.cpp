// Prefixes on disk: there after a restart, a miss when damaged, never more than the cap.
#include <gtest/gtest.h>

#include <fstream>

#include "engine/engine_testing.h"
#include "temp_folder.h"

namespace synod::testing {
namespace {

class DiskCache : public ::testing::TestWithParam<const char*> {
 protected:
  const Loaded& m() const { return loaded(GetParam()); }
  EngineOptions options() const {
    EngineOptions o;
    o.cache_dir = folder_.path();
    return o;
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& e : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (e.is_regular_file()) found.push_back(e.path());
    }
    return found;
  }
  // Tokens reused for the prompt by an engine that has just started.
  int64_t cached_after_restart() {
    Engine engine(*m().model, *m().backend, m().tokenizer, options());
    GenerationRequest r;
    r.prompt = prompt_;
    r.max_tokens = 8;
    const Engine::Result result = engine.generate(r);
    EXPECT_EQ(result.ids[0], lone_greedy(m(), prompt_, 8));
    return result.finished.usage.cached_tokens;
  }

  test::TempFolder folder_;
  std::vector<int32_t> prompt_ = random_ids(700, 3);
};

TEST_P(DiskCache, SurvivesARestart) {
  EXPECT_EQ(cached_after_restart(), 0);
  EXPECT_EQ(cached_after_restart(), 512);
  EXPECT_FALSE(files().empty());
}

TEST_P(DiskCache, ADamagedFileIsAMissAndGoes) {
  EXPECT_EQ(cached_after_restart(), 0);
  for (const auto& file : files()) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) / 2));
    stream.put('\x55');
    stream.put('\x2A');
  }
  EXPECT_EQ(cached_after_restart(), 0);
  EXPECT_EQ(cached_after_restart(), 0) << "one damaged file is found per look-up";
  EXPECT_EQ(cached_after_restart(), 512) << "they were written anew";
  // Other files in the folder are nobody's business.
  const std::filesystem::path notes = files()[0].parent_path() / "notes.txt";
  std::ofstream(notes) << "hello";
  for (const auto& file : files()) {
    if (file != notes) std::filesystem::resize_file(file, 40);
  }
  EXPECT_EQ(cached_after_restart(), 0);
  EXPECT_TRUE(std::filesystem::exists(notes));
}

TEST_P(DiskCache, KeepsItsCap) {
  EngineOptions o = options();
  o.cache_dir_bytes = 6 << 20;
  Engine engine(*m().model, *m().backend, m().tokenizer, o);
  for (uint32_t seed = 1; seed < 12; ++seed) {
    GenerationRequest r;
    r.prompt = random_ids(600, seed);
    r.max_tokens = 2;
    engine.generate(r);
  }
  engine.stop();
  int64_t bytes = 0;
  for (const auto& file : files()) bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  EXPECT_LE(bytes, o.cache_dir_bytes);
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(engine.stats().disk_bytes, bytes);
}

TEST_P(DiskCache, ConversationFilesAreCheckedBeforeUse) {
  const std::filesystem::path file = folder_.path() / "talk.kv";
  Engine engine(*m().model, *m().backend, m().tokenizer);
  EXPECT_EQ(engine.save(prompt_, file), 0) << "nothing is known of it";
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_THROW(engine.restore(file), Error);
  GenerationRequest r;
  r.prompt = prompt_;
  r.max_tokens = 4;
  const std::vector<int32_t> ids = engine.generate(r).ids[0];
  EXPECT_EQ(engine.save(prompt_, file), 700);
  engine.clear_cache();
  EXPECT_EQ(engine.restore(file), prompt_);
  const Engine::Result again = engine.generate(r);
  EXPECT_EQ(again.ids[0], ids);
  EXPECT_EQ(again.finished.usage.cached_tokens, 699);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 9);
  EXPECT_THROW(engine.restore(file), Error);
  EXPECT_EQ(engine.generate(r).ids[0], ids) << "a refused file changes nothing";
}

INSTANTIATE_TEST_SUITE_P(Families, DiskCache, ::testing::Values("gemma4", "deepseek4"));

}  // namespace
}  // namespace synod::testing
