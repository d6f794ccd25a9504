// DeepSeek-V4 against recorded outputs of transformers, and against itself: any chunking, batch, rollback,
// fusion.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "models/deepseek4/deepseek4.h"
#include "models/run_model.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::Expected;
using testing::Output;
using testing::SequenceRunner;

const std::filesystem::path kCheckpoints = SYNOD_SOURCE_DIR "/tests/data/checkpoints";

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kCheckpoints)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("deepseek4-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A checkpoint with its model, which views its bytes.
struct Loaded {
  Loaded(const std::filesystem::path& path, const ModelOptions& options)
      : checkpoint(Checkpoint::open(path)), model(deepseek4::architecture().load(checkpoint, options)) {}
  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
};

Loaded load(const std::string& name, const ModelOptions& options = {}) {
  return {kCheckpoints / name, options};
}
Expected expected_of(const std::string& name) {
  return testing::load_expected(kCheckpoints / name / "expected.safetensors");
}

std::vector<float> run_logits(const Model& model, std::span<const int32_t> ids,
                              std::vector<int64_t> chunks = {}) {
  RefBackend be;
  return testing::run_model(model, be, ids, chunks, false).logits;
}

class Deepseek4Logits : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Fixtures, Deepseek4Logits, ::testing::ValuesIn(fixtures()), [](const auto& test) {
  std::string name = test.param;  // gtest takes letters, digits and _
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(Deepseek4Logits, EqualTransformers) {
  const Loaded loaded = load(GetParam());
  const Expected expected = expected_of(GetParam());
  RefBackend be;
  const Output output = testing::run_model(*loaded.model, be, expected.ids, {}, true);
  const testing::Difference difference = testing::compare(output, expected);
  testing::print_difference(GetParam(), difference);
  EXPECT_EQ(expected.hidden.size(), static_cast<size_t>(loaded.model->info().n_layers) + 1);
  EXPECT_EQ(difference.arg_max_mismatches, 0);
  // A float32 engine that follows the same formulas stays within 5e-5; one wrong detail gives 3e-4 or more.
  EXPECT_LE(difference.logits, 1e-4F);
  EXPECT_LE(difference.hidden, 2e-4F);
}

TEST_P(Deepseek4Logits, DoNotDependOnHowThePromptIsCut) {
  const Loaded loaded = load(GetParam());
  const std::vector<int32_t> ids = expected_of(GetParam()).ids;
  const std::vector<float> whole = run_logits(*loaded.model, ids);
  const std::vector<std::vector<int64_t>> cuts = {{1}, {7}, {64}, {3, 1, 124, 1, 1, 5, 120, 2, 40}};
  for (const auto& chunks : cuts) {
    EXPECT_EQ(run_logits(*loaded.model, ids, chunks), whole) << "chunks of " << chunks[0];
  }
}

TEST_P(Deepseek4Logits, DoNotDependOnFusion) {
  const std::vector<int32_t> ids = expected_of(GetParam()).ids;
  const std::span<const int32_t> prefix = std::span(ids).first(140);
  const Loaded fused = load(GetParam(), {.fusion = FusionMode::kOn});
  const Loaded plain = load(GetParam(), {.fusion = FusionMode::kOff});
  EXPECT_TRUE(fused.model->fusion().fused(0, "q_a_kv"));
  EXPECT_FALSE(plain.model->fusion().fused(0, "q_a_kv"));
  EXPECT_EQ(run_logits(*fused.model, prefix), run_logits(*plain.model, prefix));
}

// The rounding points change the result, keep it finite, and do not depend on the chunking either.
TEST_P(Deepseek4Logits, ProfileQRoundsTheSameWayInEveryChunking) {
  const std::vector<int32_t> ids = expected_of(GetParam()).ids;
  const std::span<const int32_t> prefix = std::span(ids).first(150);
  const Loaded exact = load(GetParam(), {.profile = Profile::kM});
  const Loaded rounded = load(GetParam(), {.profile = Profile::kQ});
  const std::vector<float> m = run_logits(*exact.model, prefix), q = run_logits(*rounded.model, prefix);
  EXPECT_TRUE(std::all_of(q.begin(), q.end(), [](float value) { return std::isfinite(value); }));
  double error = 0, power = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    error += static_cast<double>(q[i] - m[i]) * static_cast<double>(q[i] - m[i]);
    power += static_cast<double>(m[i]) * static_cast<double>(m[i]);
  }
  std::printf("%-24s profile q: normalized square difference %.3g\n", GetParam().c_str(), error / power);
  EXPECT_GT(error / power, 1e-6);
  EXPECT_LT(error / power, 0.3);
  EXPECT_EQ(run_logits(*rounded.model, prefix, {1}), q);
  EXPECT_EQ(run_logits(*rounded.model, prefix, {5, 126, 7}), q);
}

// Two sequences of different lengths in the same calls.
TEST_P(Deepseek4Logits, SequencesOfABatchDoNotMeet) {
  const Loaded loaded = load(GetParam());
  const Model& model = *loaded.model;
  const std::vector<int32_t> ids = expected_of(GetParam()).ids;
  std::array<std::vector<int32_t>, 2> text;
  text[0].assign(ids.begin(), ids.begin() + 150);
  text[1].assign(ids.rbegin(), ids.rbegin() + 140);
  const std::array<std::vector<int64_t>, 2> steps = {{{2, 129, 1, 18}, {133, 3, 1, 3}}};

  RefBackend be;
  KvCache cache(model.cache_spec(), [&be](int64_t n) { return be.allocate(n); });
  const std::vector<SequenceId> sequences = {cache.create(), cache.create()};
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  std::array<std::vector<float>, 2> logits;
  std::array<size_t, 2> begin = {0, 0};
  for (size_t step = 0; step < 4; ++step) {
    std::vector<int32_t> step_ids, positions;
    std::vector<int64_t> row_start = {0}, past;
    for (size_t s = 0; s < 2; ++s) {
      past.push_back(static_cast<int64_t>(begin[s]));
      const int64_t n = steps[s][step];
      for (int64_t i = 0; i < n; ++i) {
        positions.push_back(static_cast<int32_t>(begin[s]));
        step_ids.push_back(text[s][begin[s]++]);
      }
      row_start.push_back(row_start.back() + n);
      cache.reserve(sequences[s], n);
    }
    std::vector<float> out(step_ids.size() * vocab);
    const ForwardRequest request{.logits = Tensor::contiguous(out.data(), DType::kF32,
                                                              {row_start.back(), model.info().vocab_size},
                                                              "logits")};
    const BatchView batch{testing::ids_tensor(step_ids), testing::ids_tensor(positions), row_start, past};
    model.forward(batch, cache.view(sequences), be, request);
    require_ok(be);
    for (size_t s = 0; s < 2; ++s) {
      cache.commit(sequences[s], steps[s][step]);
      logits[s].insert(logits[s].end(), out.begin() + row_start[s] * static_cast<int64_t>(vocab),
                       out.begin() + row_start[s + 1] * static_cast<int64_t>(vocab));
    }
  }
  for (size_t s = 0; s < 2; ++s) EXPECT_EQ(logits[s], run_logits(model, text[s])) << "sequence " << s;
}

TEST(Deepseek4Cache, RollsBackToEveryPlaceInABlock) {
  const Loaded loaded = load("deepseek4-tiny");
  const Model& model = *loaded.model;
  const std::vector<int32_t> ids = expected_of("deepseek4-tiny").ids;
  for (const size_t length : {128U, 129U, 131U, 132U, 133U, 254U, 255U}) {
    for (const size_t rolled_back : {1U, 9U, 16U}) {
      std::vector<int32_t> kept(ids.begin(), ids.begin() + static_cast<int64_t>(length));
      RefBackend be;
      SequenceRunner runner(model, be);
      runner.step(kept, nullptr);
      for (size_t i = 0; i < rolled_back; ++i) runner.step(std::array{ids[i]}, nullptr);
      ASSERT_TRUE(runner.truncate(static_cast<int64_t>(length))) << length << " after " << rolled_back;
      const std::vector<int32_t> other(ids.end() - 10, ids.end());
      Output after;
      runner.step(other, &after);
      kept.insert(kept.end(), other.begin(), other.end());
      const std::vector<float> all = run_logits(model, kept);
      const std::vector<float> tail(all.end() - static_cast<int64_t>(after.logits.size()), all.end());
      EXPECT_EQ(after.logits, tail) << length << " after " << rolled_back;
    }
  }
}

TEST(Deepseek4Head, GivesOnlyTheRowsThatAreWanted) {
  const Loaded loaded = load("deepseek4-tiny");
  const std::vector<int32_t> ids = expected_of("deepseek4-tiny").ids;
  const std::span<const int32_t> prefix = std::span(ids).first(20);
  const int64_t vocab = loaded.model->info().vocab_size;
  const std::vector<float> all = run_logits(*loaded.model, prefix);

  RefBackend be;
  SequenceRunner runner(*loaded.model, be);
  std::vector<int32_t> rows = {19, 3}, greedy = {-1, -1};
  std::vector<float> logits(2 * static_cast<size_t>(vocab));
  ForwardRequest request;
  request.rows = testing::ids_tensor(rows);
  request.greedy = testing::ids_tensor(greedy);
  request.logits = Tensor::contiguous(logits.data(), DType::kF32, {2, vocab}, "logits");
  runner.forward(prefix, request);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float> want(all.begin() + rows[i] * vocab, all.begin() + (rows[i] + 1) * vocab);
    const std::vector<float> got(logits.begin() + static_cast<int64_t>(i) * vocab,
                                 logits.begin() + static_cast<int64_t>(i + 1) * vocab);
    EXPECT_EQ(got, want);
    EXPECT_EQ(static_cast<size_t>(greedy[i]), testing::row_top(want).index);
  }
}

TEST(Deepseek4Head, AnIdOutsideTheVocabularyFailsTheStep) {
  const Loaded loaded = load("deepseek4-tiny");
  RefBackend be;
  SequenceRunner runner(*loaded.model, be);
  const std::array ids = {static_cast<int32_t>(loaded.model->info().vocab_size)};
  EXPECT_THROW(runner.step(ids, nullptr), Error);
  EXPECT_EQ(runner.length(), 0);
}

}  // namespace
}  // namespace synod
