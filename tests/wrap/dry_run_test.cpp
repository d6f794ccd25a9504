#include "wrap/dry_run.h"

#include <gtest/gtest.h>

#include "ref/ref_backend.h"
#include "wrap/small_step.h"

namespace synod {
namespace {

using testing::SmallStep;

TEST(DryRun, CountsOpsAndTheScratchOfARealRun) {
  SmallStep step;
  DryRun dry;
  RefBackend be;
  step.run(dry);
  step.run(be);
  EXPECT_EQ(dry.n_ops(), SmallStep::kOps);
  EXPECT_EQ(dry.workspace().peak_bytes(), be.workspace().peak_bytes());
  EXPECT_GT(dry.workspace().peak_bytes(), 3 * 4 * 5 * 2 * 16) << "the scratch of lowered ops counts";
}

TEST(DryRun, CountsEachWeightOnce) {
  SmallStep step;
  DryRun dry;
  step.run(dry);
  // The router and, of 5 tokens with 2 experts each, all 4 experts: gate, up, down.
  EXPECT_EQ(dry.weight_bytes_read(), 4 * (4 * 32 + 4 * 3 * 16 * 32));
}

TEST(DryRun, RejectsWrongShapesWithoutMemory) {
  DryRun dry;
  const Tensor x = dry.workspace().f32({3, 64}, "x"), out = dry.workspace().f32({3, 60}, "out");
  EXPECT_EQ(x.data, nullptr);
  EXPECT_THROW(dry(RmsNorm{.out = out, .x = x}), Error);
  EXPECT_THROW(dry(Linear{.out = out, .x = x, .weight = Matrix{.n_out = 60, .n_in = 32}}), Error);
  dry(Linear{.out = out, .x = x, .weight = Matrix{.n_out = 60, .n_in = 64}});
  EXPECT_EQ(dry.n_ops(), 1);
}

TEST(DryRun, ChecksThePartsOfFusedOps) {
  DryRun dry;
  const Matrix gate{.n_out = 16, .n_in = 32}, down{.n_out = 32, .n_in = 16}, narrow{.n_out = 32, .n_in = 8};
  const Tensor x = dry.workspace().f32({2, 32}, "x"), weights = dry.workspace().f32({2, 1}, "weights");
  const Tensor ids = dry.workspace().i32({2, 1}, "ids");
  ExpertFfn op{.out = x,
               .x = x,
               .ids = ids,
               .weights = weights,
               .gate = {&gate, 1},
               .up = {&gate, 1},
               .down = {&down, 1}};
  dry(op);
  op.down = {&narrow, 1};
  EXPECT_THROW(dry(op), Error);
}

}  // namespace
}  // namespace synod
