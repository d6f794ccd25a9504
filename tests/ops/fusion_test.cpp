#include "ops/fusion.h"

#include <gtest/gtest.h>

#include <vector>

namespace synod {
namespace {

Matrix matrix(DType type, int64_t n_in) {
  return {.storage = is_block_type(type) ? Storage::kBlock : Storage::kPlain,
          .type = type,
          .n_out = 4,
          .n_in = n_in};
}

struct Fixture {
  Matrix q8 = matrix(DType::kQ8_0, 64), q8_wide = matrix(DType::kQ8_0, 96), f16 = matrix(DType::kF16, 64);
  std::vector<const Matrix*> alike{&q8, &q8, &q8}, mixed{&q8, &f16}, misfit{&q8, &q8_wide}, single{&q8};
  std::vector<FusionCandidate> candidates{
      {0, "qkv", alike}, {1, "qkv", mixed}, {0, "gate_up", misfit}, {1, "gate_up", single}};
};

TEST(FusionPlan, AutoFusesPartsOfOneType) {
  const Fixture f;
  const FusionPlan plan(FusionMode::kAuto, f.candidates, 0);
  EXPECT_TRUE(plan.fused(0, "qkv"));
  EXPECT_FALSE(plan.fused(1, "qkv"));
  EXPECT_FALSE(plan.fused(0, "gate_up"));
  EXPECT_FALSE(plan.fused(1, "gate_up"));
  EXPECT_FALSE(plan.fused(2, "qkv")) << "not a candidate";
  ASSERT_EQ(plan.decisions().size(), 4U);
  EXPECT_NE(plan.decisions()[1].reason.find("q8_0 and f16"), std::string::npos) << plan.decisions()[1].reason;
  EXPECT_NE(plan.decisions()[2].reason.find("64 and 96"), std::string::npos) << plan.decisions()[2].reason;
}

TEST(FusionPlan, OnFusesWhateverSharesItsInput) {
  const Fixture f;
  const FusionPlan plan(FusionMode::kOn, f.candidates, 0);
  EXPECT_TRUE(plan.fused(1, "qkv"));
  EXPECT_FALSE(plan.fused(0, "gate_up"));
}

TEST(FusionPlan, OffFusesNothing) {
  const Fixture f;
  const FusionPlan plan(FusionMode::kOff, f.candidates, 1 << 30);
  for (const FusionDecision& d : plan.decisions()) EXPECT_FALSE(d.fused) << d.kind;
}

TEST(FusionPlan, SummaryCountsLayersAndBytes) {
  const Fixture f;
  const std::string summary = FusionPlan(FusionMode::kAuto, f.candidates, 0).summary();
  EXPECT_NE(summary.find("qkv 1/2 layers"), std::string::npos) << summary;
  EXPECT_NE(summary.find("gate_up 0/2 layers"), std::string::npos) << summary;
  EXPECT_NE(summary.find("0 B extra of 0 B budget"), std::string::npos) << summary;
}

TEST(FusionPlan, AnEmptyPlanFusesNothing) { EXPECT_FALSE(FusionPlan().fused(0, "qkv")); }

}  // namespace
}  // namespace synod
