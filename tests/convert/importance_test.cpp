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

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Imatrix matrix_with(const std::string& name, ImatrixEntry entry) {
  Imatrix m;
  m.entries.emplace(name, std::move(entry));
  return m;
}

std::vector<float> weights_of(const Importance& importance, int64_t expert) {
  std::vector<float> buffer;
  const std::span<const float> weights = importance.of(expert, buffer);
  return {weights.begin(), weights.end()};
}

TEST(Importance, IsTheMeanSquareOfEachColumn) {
  std::vector<std::string> warnings;
  const Imatrix m = matrix_with("blk.0.attn_q.weight", {1, 3, {2, 4, 0}, {2}});
  const Importance i(m, "blk.0.attn_q.weight", 1, 3, warnings);
  EXPECT_EQ(weights_of(i, 0), (std::vector<float>{1, 2, 0}));
  EXPECT_TRUE(warnings.empty());
}

TEST(Importance, FallsBackPerExpertAndWarnsOncePerTensor) {
  std::vector<std::string> warnings;
  const Imatrix m =
      matrix_with("blk.0.ffn_down_exps.weight", {5, 2, {1, 2, 0, 0, kNan, 1, 0, 0, -1, 5}, {1, 0, 1, 4, 1}});
  const Importance i(m, "blk.0.ffn_down_exps.weight", 5, 2, warnings);
  EXPECT_EQ(weights_of(i, 0), (std::vector<float>{1, 2}));
  EXPECT_EQ(weights_of(i, 1), (std::vector<float>{1, 1})) << "never used";
  EXPECT_TRUE(weights_of(i, 2).empty()) << "NaN";
  EXPECT_TRUE(weights_of(i, 3).empty()) << "all zero";
  EXPECT_TRUE(weights_of(i, 4).empty()) << "negative";
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
  const Imatrix parts = matrix_with("blk.0.ffn_gate_exps.weight", entry);
  EXPECT_EQ(weights_of(Importance(parts, "blk.0.ffn_gate_up_exps.weight", 2, 1, warnings), 1),
            std::vector<float>{4});
  const Imatrix fused = matrix_with("blk.0.ffn_gate_up_exps.weight", entry);
  for (const char* part : {"gate", "up"}) {
    const std::string name = fmt::format("blk.0.ffn_{}_exps.weight", part);
    EXPECT_EQ(weights_of(Importance(fused, name, 2, 1, warnings), 0), std::vector<float>{3});
  }
  EXPECT_TRUE(warnings.empty());
}

// Energies as a calibration run might find them, with an expert for each thing that can be wrong.
enum Expert : int64_t { kNeverUsed = 1, kNotANumber = 2, kAllZero = 3, kNegative = 4, kInfiniteCount = 5 };

ImatrixEntry damaged_entry(const Tensor& t) {
  ImatrixEntry entry{t.dim(0), t.inner(), {}, {}};
  for (int64_t e = 0; e < t.dim(0); ++e) {
    for (int64_t i = 0; i < t.inner(); ++i) {
      float sum = std::pow(1.0F + float((i * 7 + e * 13) % 31), 2.0F);
      if (e == kNotANumber && i == 5) sum = kNan;
      if (e == kAllZero) sum = 0;
      if (e == kNegative && i == 9) sum = -1;
      entry.sums.push_back(sum);
    }
    const double infinity = std::numeric_limits<double>::infinity();
    entry.counts.push_back(e == kNeverUsed ? 0 : e == kInfiniteCount ? infinity : 3);
  }
  return entry;
}

// The weights an expert's rows should be encoded with; empty = none.
std::vector<float> expected_weights(const ImatrixEntry& entry, int64_t e) {
  if (e == kNeverUsed) return std::vector<float>(static_cast<size_t>(entry.n_columns), 1.0F);
  if (e >= kNotANumber && e <= kInfiniteCount) return {};
  std::vector<float> weights;
  for (int64_t i = 0; i < entry.n_columns; ++i) {
    weights.push_back(entry.sums[static_cast<size_t>(e * entry.n_columns + i)] / 3.0F);
  }
  return weights;
}

// Convert must hand each expert its own weights, and what is wrong with one must not reach the others.
TEST(Importance, ReachesTheEncoderOfEachExpertAndDamageStaysWithItsExpert) {
  set_log_level(LogLevel::kError);
  const test::TempFolder dir;
  convert(Checkpoint::open(SYNOD_SOURCE_DIR "/models/gemma4-mini-q8_0.gguf"), dir / "f32.gguf",
          {.type = "f32", .receipt = false});
  const Checkpoint source = Checkpoint::open(dir / "f32.gguf");
  const std::string name = "blk.0.ffn_gate_up_exps.weight";
  const Tensor* t = source.find(name);
  ASSERT_NE(t, nullptr);
  ASSERT_GT(t->dim(0), kInfiniteCount + 1);
  const ImatrixEntry entry = damaged_entry(*t);
  // Through a file, as a user has it.
  Imatrix written = matrix_with(name, entry);
  written.write(dir / "imatrix.gguf");
  const Imatrix imatrix = Imatrix::read(dir / "imatrix.gguf");
  for (const auto& [mix, type] : {std::pair("q4_k_m", DType::kQ4_K), std::pair("iq2_xxs", DType::kIQ2_XXS)}) {
    const ConvertReport report =
        convert(source, dir / "q.gguf",
                {.type = mix, .importance = &imatrix, .importance_file = "x", .receipt = false});
    const Checkpoint result = Checkpoint::open(dir / "q.gguf");
    const Tensor* q = result.find(name);
    ASSERT_EQ(q->type, type);
    bool differs = false;
    for (int64_t r = 0; r < t->rows(); ++r) {
      const std::vector<float> weights = expected_weights(entry, r / t->dim(1));
      std::vector<std::byte> want(static_cast<size_t>(row_bytes(q->type, t->inner()))), plain(want.size());
      const std::span row(t->row_as<float>(r), static_cast<size_t>(t->inner()));
      encode_row(q->type, row, weights, want.data());
      encode_row(q->type, row, {}, plain.data());
      differs = differs || want != plain;
      ASSERT_EQ(std::memcmp(want.data(), q->data + r * int64_t(want.size()), want.size()), 0)
          << mix << " row " << r;
    }
    EXPECT_TRUE(differs) << "the weights change nothing: the test cannot fail";
    // One line for the damaged tensor, one for each tensor without data.
    const auto lines = [&](const std::string& part) {
      return std::ranges::count_if(report.warnings,
                                   [&](const std::string& w) { return w.find(part) != std::string::npos; });
    };
    EXPECT_EQ(lines("importance of " + name), 1);
    EXPECT_EQ(lines("1 of 16 experts never used"), 1);
    EXPECT_EQ(lines("4 of 16 experts is NaN, infinite, negative or all zero"), 1);
    EXPECT_EQ(lines("blk.1.ffn_gate_up_exps.weight: no importance data"), 1);
    EXPECT_EQ(lines(name + ": no importance data"), 0);
  }
}

}  // namespace
}  // namespace synod
