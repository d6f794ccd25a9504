#include "convert/importance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "convert/convert.h"
#include "quant/codec.h"
#include "quant/encode.h"
#include "temp_folder.h"

namespace synod {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Imatrix matrix_with(const std::string& name, ImatrixEntry entry) {
  Imatrix m;
  m.entries.emplace(name, std::move(entry));
  return m;
}

TEST(Importance, IsTheMeanSquareOfEachColumn) {
  std::vector<std::string> warnings;
  const Importance i(matrix_with("blk.0.attn_q.weight", {1, 3, {2, 4, 0}, {2}}), "blk.0.attn_q.weight", 1, 3,
                     warnings);
  EXPECT_EQ(std::vector<float>(i.of(0).begin(), i.of(0).end()), (std::vector<float>{1, 2, 0}));
  EXPECT_TRUE(warnings.empty());
}

TEST(Importance, FallsBackPerExpertAndWarnsOncePerTensor) {
  std::vector<std::string> warnings;
  const Importance i(
      matrix_with("blk.0.ffn_down_exps.weight", {5, 2, {1, 2, 0, 0, kNan, 1, 0, 0, -1, 5}, {1, 0, 1, 4, 1}}),
      "blk.0.ffn_down_exps.weight", 5, 2, warnings);
  EXPECT_EQ(i.of(0)[1], 2.0F);
  EXPECT_EQ(std::vector<float>(i.of(1).begin(), i.of(1).end()), (std::vector<float>{1, 1})) << "never used";
  EXPECT_TRUE(i.of(2).empty()) << "NaN";
  EXPECT_TRUE(i.of(3).empty()) << "all zero";
  EXPECT_TRUE(i.of(4).empty()) << "negative";
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("1 of 5"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("3 of 5"), std::string::npos) << warnings[0];
}

TEST(Importance, OfAnotherShapeIsRefusedAndMissingIsAWarning) {
  std::vector<std::string> warnings;
  const Imatrix m = matrix_with("blk.0.attn_q.weight", {1, 3, {2, 4, 0}, {2}});
  EXPECT_THROW(Importance(m, "blk.0.attn_q.weight", 1, 4, warnings), Error);
  EXPECT_THROW(Importance(m, "blk.0.attn_q.weight", 2, 3, warnings), Error);
  EXPECT_TRUE(Importance(m, "blk.0.attn_k.weight", 1, 3, warnings).empty());
  EXPECT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(Importance(m, "token_embd.weight", 1, 3, warnings).empty());
  EXPECT_EQ(warnings.size(), 1U) << "tables are read by row";
}

TEST(Importance, FindsFusedExpertsUnderTheNamesOfTheirParts) {
  std::vector<std::string> warnings;
  const ImatrixEntry entry{2, 1, {3, 4}, {1, 1}};
  EXPECT_EQ(Importance(matrix_with("blk.0.ffn_gate_exps.weight", entry), "blk.0.ffn_gate_up_exps.weight", 2,
                       1, warnings)
                .of(1)[0],
            4.0F);
  for (const char* part : {"gate", "up"}) {
    EXPECT_EQ(Importance(matrix_with("blk.0.ffn_gate_up_exps.weight", entry),
                         fmt::format("blk.0.ffn_{}_exps.weight", part), 2, 1, warnings)
                  .of(0)[0],
              3.0F);
  }
  EXPECT_TRUE(warnings.empty());
}

// Convert must hand each expert its own weights.
TEST(Importance, ReachesTheEncoderOfEachExpert) {
  set_log_level(LogLevel::kError);
  const test::TempFolder dir;
  convert(Checkpoint::open(SYNOD_SOURCE_DIR "/models/gemma4-mini-q8_0.gguf"), dir / "f32.gguf",
          {.type = "f32", .receipt = false});
  const Checkpoint source = Checkpoint::open(dir / "f32.gguf");
  const std::string name = "blk.0.ffn_gate_up_exps.weight";
  const Tensor* t = source.find(name);
  ASSERT_NE(t, nullptr);
  ImatrixEntry entry{t->dim(0), t->inner(), {}, {}};
  for (int64_t e = 0; e < t->dim(0); ++e) {
    for (int64_t i = 0; i < t->inner(); ++i)
      entry.sums.push_back(std::pow(1.0 + double((i * 7 + e * 13) % 31), 2));
    entry.counts.push_back(e == 1 ? 0 : 3);
  }
  const Imatrix imatrix = matrix_with(name, entry);
  convert(source, dir / "q.gguf",
          {.type = "q4_k_m", .importance = &imatrix, .importance_file = "x", .receipt = false});
  const Checkpoint result = Checkpoint::open(dir / "q.gguf");
  const Tensor* q = result.find(name);
  ASSERT_EQ(q->type, DType::kQ4_K);
  bool differs = false;
  for (int64_t r = 0; r < t->rows(); ++r) {
    const int64_t e = r / t->dim(1);
    std::vector<float> weights(static_cast<size_t>(t->inner()), 1.0F);
    for (int64_t i = 0; i < t->inner() && e != 1; ++i) {
      weights[static_cast<size_t>(i)] =
          static_cast<float>(entry.sums[static_cast<size_t>(e * t->inner() + i)]) / 3.0F;
    }
    std::vector<std::byte> want(static_cast<size_t>(row_bytes(q->type, t->inner()))), plain(want.size());
    const std::span row(t->row_as<float>(r), static_cast<size_t>(t->inner()));
    encode_row(q->type, row, weights, want.data());
    encode_row(q->type, row, {}, plain.data());
    differs = differs || want != plain;
    ASSERT_EQ(std::memcmp(want.data(), q->data + r * int64_t(want.size()), want.size()), 0) << "row " << r;
  }
  EXPECT_TRUE(differs) << "the weights change nothing: the test cannot fail";
}

}  // namespace
}  // namespace synod
