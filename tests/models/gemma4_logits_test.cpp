// Small checkpoints in every published layout against the logits and hidden states that transformers computes
// from the same stored values; and that nothing depends on how a sequence was fed.
#include <gtest/gtest.h>

#include <filesystem>

#include "models/gemma4/gemma4.h"
#include "models/run_model.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using namespace synod::testing;
namespace fs = std::filesystem;

const fs::path kCheckpoints = fs::path(SYNOD_SOURCE_DIR) / "tests/data/checkpoints";

struct Loaded {
  explicit Loaded(const std::string& name, const ModelOptions& options = {})
      : checkpoint(Checkpoint::open(kCheckpoints / name)),
        model(gemma4::architecture().load(checkpoint, options)),
        expected(load_expected(kCheckpoints / name / "expected.safetensors")) {}

  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
  Expected expected;
};

class Gemma4Checkpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(Gemma4Checkpoint, LogitsAndHiddenStatesEqualTransformers) {
  const Loaded loaded(GetParam());
  RefBackend be;
  const Output output = run_model(*loaded.model, be, loaded.expected.ids, {}, /*hidden=*/true);
  ASSERT_EQ(output.hidden.size(), loaded.expected.hidden.size());
  const Difference d = compare(output, loaded.expected);
  print_difference(GetParam(), d);
  EXPECT_LT(d.logits, 1e-3F);
  EXPECT_LT(d.hidden, 1e-3F);
  EXPECT_EQ(d.arg_max_mismatches, 0);
}

TEST_P(Gemma4Checkpoint, ChunksGiveTheSameBitsAsTheWhole) {
  const Loaded loaded(GetParam());
  RefBackend be;
  const Output whole = run_model(*loaded.model, be, loaded.expected.ids, {}, false);
  for (const std::vector<int64_t>& chunks :
       {std::vector<int64_t>{1}, std::vector<int64_t>{7}, std::vector<int64_t>{64},
        std::vector<int64_t>{3, 1, 40, 5, 16}}) {
    const Output cut = run_model(*loaded.model, be, loaded.expected.ids, chunks, false);
    EXPECT_TRUE(cut.logits == whole.logits)
        << "chunks of " << chunks[0] << ", max difference " << max_abs_difference(cut.logits, whole.logits);
  }
}

TEST_P(Gemma4Checkpoint, FusionChangesNothing) {
  const Loaded fused(GetParam(), {.fusion = FusionMode::kOn});
  const Loaded separate(GetParam(), {.fusion = FusionMode::kOff});
  EXPECT_TRUE(fused.model->fusion().fused(0, "gate_up"));
  EXPECT_FALSE(separate.model->fusion().fused(0, "gate_up"));
  RefBackend be;
  const Output a = run_model(*fused.model, be, fused.expected.ids, {}, false);
  const Output b = run_model(*separate.model, be, fused.expected.ids, {}, false);
  EXPECT_TRUE(a.logits == b.logits);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Gemma4Checkpoint,
                         ::testing::Values("gemma4-dense-tiny", "gemma4-moe-tiny", "gemma4-ple-tiny",
                                           "gemma4-mlx4", "gemma4-nvfp4"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Feeds the prompt, then other tokens that are taken back, then the rest.
TEST(Gemma4Rollback, ContinuesAsIfTheRejectedTokensHadNeverBeen) {
  for (const char* name : {"gemma4-dense-tiny", "gemma4-ple-tiny", "gemma4-moe-tiny"}) {
    const Loaded loaded(name);
    const std::span<const int32_t> ids = loaded.expected.ids;
    RefBackend be;
    const Output whole = run_model(*loaded.model, be, ids, {}, false);
    for (const size_t cut : {size_t{5}, size_t{40}, size_t{100}}) {
      SequenceRunner runner(*loaded.model, be);
      Output out;
      runner.step(ids.first(cut), &out);
      for (int32_t wrong = 0; wrong < 9; ++wrong) runner.step(std::vector<int32_t>{wrong * 31 + 7}, nullptr);
      ASSERT_TRUE(runner.truncate(static_cast<int64_t>(cut))) << name << " at " << cut;
      runner.step(ids.subspan(cut), &out);
      EXPECT_TRUE(out.logits == whole.logits) << name << " at " << cut;
    }
  }
}

TEST(Gemma4Forward, RequestedRowsAndTheGreedyPathAgreeWithAllLogits) {
  const Loaded loaded("gemma4-moe-tiny");
  RefBackend be;
  const std::span<const int32_t> ids = std::span(loaded.expected.ids).first(50);
  const Output whole = run_model(*loaded.model, be, ids, {}, false);
  const auto vocab = static_cast<size_t>(loaded.model->info().vocab_size);

  std::vector<int32_t> rows{49, 3, 3, 20};
  std::vector<float> logits(rows.size() * vocab);
  std::vector<int32_t> with_logits(rows.size()), greedy(rows.size());
  ForwardRequest request;
  request.rows = ids_tensor(rows);
  request.logits = Tensor::contiguous(logits.data(), DType::kF32, {4, static_cast<int64_t>(vocab)});
  request.greedy = ids_tensor(with_logits);
  SequenceRunner(*loaded.model, be).forward(ids, request);
  request.logits = {};
  request.greedy = ids_tensor(greedy);
  SequenceRunner(*loaded.model, be).forward(ids, request);
  EXPECT_EQ(greedy, with_logits);
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto want = std::span(whole.logits).subspan(static_cast<size_t>(rows[r]) * vocab, vocab);
    const auto got = std::span(logits).subspan(r * vocab, vocab);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin())) << "row " << rows[r];
    const RowTop top = row_top(want);
    if (top.margin > 0.0F) {
      EXPECT_EQ(greedy[r], static_cast<int32_t>(top.index)) << "row " << rows[r];
    }
    for (const float value : got) ASSERT_LE(std::fabs(value), 30.0F);
  }
}

// The tapped states are the same whichever rows are asked for, and the tap changes no logits.
TEST(Gemma4Forward, TapSeesAllRowsAndChangesNothing) {
  const Loaded loaded("gemma4-ple-tiny");
  RefBackend be;
  const std::span<const int32_t> ids = std::span(loaded.expected.ids).first(20);
  const Output whole = run_model(*loaded.model, be, ids, {}, true);
  const auto vocab = static_cast<size_t>(loaded.model->info().vocab_size);
  std::vector<int32_t> rows{19};
  std::vector<float> logits(vocab);
  std::vector<std::vector<float>> states(whole.hidden.size());
  ForwardRequest request;
  request.rows = ids_tensor(rows);
  request.logits = Tensor::contiguous(logits.data(), DType::kF32, {1, static_cast<int64_t>(vocab)});
  request.tap = [&](int64_t index, const Tensor& state) {
    append_values(state, states[static_cast<size_t>(index)]);
  };
  SequenceRunner(*loaded.model, be).forward(ids, request);
  EXPECT_EQ(states, whole.hidden);
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), whole.logits.end() - static_cast<int64_t>(vocab)));
}

// Two sequences of one batch do not see each other.
TEST(Gemma4Forward, SequencesOfABatchAreIndependent) {
  const Loaded loaded("gemma4-ple-tiny");
  RefBackend be;
  const auto vocab = loaded.model->info().vocab_size;
  const std::span<const int32_t> all = loaded.expected.ids;
  const std::vector<int32_t> first(all.begin(), all.begin() + 30), second(all.begin() + 40, all.begin() + 53);

  KvCache cache(loaded.model->cache_spec(), [&](int64_t bytes) { return be.allocate(bytes); });
  const std::vector<SequenceId> sequences{cache.create(), cache.create()};
  std::vector<int32_t> ids = first;
  ids.insert(ids.end(), second.begin(), second.end());
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.begin() + 30, 0);
  std::iota(positions.begin() + 30, positions.end(), 0);
  const std::vector<int64_t> row_start{0, 30, 43}, past{0, 0};
  std::vector<float> logits(ids.size() * static_cast<size_t>(vocab));
  ForwardRequest request;
  request.logits = Tensor::contiguous(logits.data(), DType::kF32, {43, vocab});
  cache.reserve(sequences[0], 30);
  cache.reserve(sequences[1], 13);
  loaded.model->forward({ids_tensor(ids), ids_tensor(positions), row_start, past}, cache.view(sequences), be,
                        request);
  require_ok(be);

  Output alone = run_model(*loaded.model, be, first, {}, false);
  const Output other = run_model(*loaded.model, be, second, {}, false);
  alone.logits.insert(alone.logits.end(), other.logits.begin(), other.logits.end());
  EXPECT_TRUE(alone.logits == logits);
}

TEST(Gemma4Forward, AnUnknownTokenIdFailsTheStep) {
  const Loaded loaded("gemma4-dense-tiny");
  RefBackend be;
  SequenceRunner runner(*loaded.model, be);
  EXPECT_THROW(runner.step(std::vector<int32_t>{2, 512}, nullptr), Error);
  EXPECT_THROW(runner.step(std::vector<int32_t>{-1}, nullptr), Error);
  EXPECT_EQ(runner.length(), 0);
}

}  // namespace
}  // namespace synod
