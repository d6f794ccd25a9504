#include "ops/backend.h"

#include <gtest/gtest.h>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

TEST(Label, SaysWhereOpsBelong) {
  EXPECT_EQ((Label{3, "attention"}.text()), "layer 3 attention");
  EXPECT_EQ((Label{-1, "head"}.text()), "head");
}

TEST(RequireOk, NamesTheFirstRaiseAndClearsIt) {
  RefBackend be;
  require_ok(be);
  testing::F32 logits({1, 2}, {NAN, 0.0F}), out({1, 2});
  testing::I32 best({1}), ids({1}, {7});
  const testing::StoredMatrix table(DType::kF32, 2, 2, 1);
  {
    const Stage stage(be, 3, "router");
    be(ArgMax{.out = best, .x = logits});
  }
  {
    const Stage stage(be, -1, "embed");
    be(Embed{.out = out, .ids = ids, .table = table});
  }
  try {
    require_ok(be);
    FAIL() << "did not throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::kNumeric);
    EXPECT_STREQ(
        e.what(),
        "step failed: non-finite scores and an id out of range in layer 3 router; nothing was committed");
  }
  require_ok(be);
}

TEST(Backend, ChecksOpsBeforeTheyRun) {
  RefBackend be;
  testing::F32 x({2, 3}), out({2, 4});
  EXPECT_THROW(be(RmsNorm{.out = out, .x = x}), Error);
}

}  // namespace
}  // namespace synod
