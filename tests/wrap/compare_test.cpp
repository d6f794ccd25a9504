#include "wrap/compare.h"

#include <gtest/gtest.h>

#include "ref/ref_backend.h"
#include "wrap/small_step.h"

namespace synod {
namespace {

using testing::SmallStep;

// The reference backend, wrong in one place.
class Faulty final : public Backend {
 public:
  enum class Fault { kNone, kAdd, kCacheRow, kCompressedRow, kRoute, kNaN };
  explicit Faulty(Fault fault) : fault_(fault) {}

  std::string_view name() const override { return "faulty"; }
  Buffer allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  Workspace& workspace() override { return inner_.workspace(); }
  void begin(const Label& label) override { inner_.begin(label); }
  void end() override { inner_.end(); }
  StatusReport take_status() override { return inner_.take_status(); }

#define SYNOD_PRIMITIVE(Op)         \
  void run(const Op& op) override { \
    inner_.run(op);                 \
    damage(op);                     \
  }
#define SYNOD_FUSED(Op) SYNOD_PRIMITIVE(Op)
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

 private:
  template <typename Op>
  void damage(const Op& op) {
    if constexpr (std::is_same_v<Op, Add>) {
      if (fault_ == Fault::kAdd) op.out.template row_as<float>(2)[7] += 0.125F;
      if (fault_ == Fault::kNaN) op.out.template row_as<float>(0)[1] = NAN;
    } else if constexpr (std::is_same_v<Op, CacheWrite>) {
      if (fault_ == Fault::kCacheRow) *reinterpret_cast<uint16_t*>(op.rows.row(0, 4)) ^= 0x400;
    } else if constexpr (std::is_same_v<Op, Compress>) {
      if (fault_ == Fault::kCompressedRow) *reinterpret_cast<float*>(op.rows.row(0, 1)) += 1.0F;
    } else if constexpr (std::is_same_v<Op, RouteSoftmax>) {
      if (fault_ == Fault::kRoute) op.ids.template as<int32_t>()[3] += 1;
    }
  }
  Fault fault_;
  RefBackend inner_;
};

std::optional<Compare::Divergence> divergence(Faulty::Fault fault) {
  SmallStep step;
  Faulty subject(fault);
  RefBackend reference;
  Compare compare(subject, reference, 1e-6F, 1e-5F);
  step.run(compare);
  EXPECT_EQ(compare.n_ops(), SmallStep::kOps);
  return compare.first();
}

TEST(Compare, EqualBackendsDoNotDivergeAndResultsGoOn) {
  SmallStep plain, compared;
  RefBackend be, subject, reference;
  plain.run(be);
  Compare compare(subject, reference, 0.0F, 0.0F);
  compared.run(compare);
  EXPECT_FALSE(compare.first().has_value()) << compare.first()->where;
  EXPECT_EQ(compared.out(), plain.out());
  EXPECT_EQ(compared.cache(), plain.cache());
  EXPECT_EQ(compared.best(), plain.best());
}

TEST(Compare, FindsAWrongValueWithItsPlace) {
  const auto first = divergence(Faulty::Fault::kAdd);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->where, "layer 1 experts: add.out");
  EXPECT_EQ(first->element, 2 * SmallStep::kModel + 7);
  EXPECT_EQ(first->op_index, 8);
  EXPECT_NEAR(first->got - first->expected, 0.125F, 1e-6);
}

TEST(Compare, FindsWrongCacheRowsAndIds) {
  const auto row = divergence(Faulty::Fault::kCacheRow);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->where, "layer 0 attention: cache_write.rows");
  EXPECT_EQ(row->element, 4 * SmallStep::kModel);
  const auto compressed = divergence(Faulty::Fault::kCompressedRow);
  ASSERT_TRUE(compressed.has_value());
  EXPECT_EQ(compressed->where, "layer 0 attention: compress.rows");
  const auto route = divergence(Faulty::Fault::kRoute);
  ASSERT_TRUE(route.has_value());
  EXPECT_EQ(route->where, "layer 1 experts: route_softmax.ids");
  EXPECT_EQ(route->element, 3);
}

TEST(Compare, ANaNOnOneSideDiverges) {
  const auto first = divergence(Faulty::Fault::kNaN);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->element, 1);
}

TEST(Compare, TheReferenceSeesTheInputsOfInPlaceOps) {
  testing::F32 x({1, 3}, {1, 2, 3});
  RefBackend subject, reference;
  Compare compare(subject, reference, 0.0F, 0.0F);
  compare(Scale{.x = x, .factor = 2.0F});
  compare(Add{.out = x, .a = x, .b = x});
  EXPECT_FALSE(compare.first().has_value());
  EXPECT_EQ(x.values(), (std::vector<float>{4, 8, 12}));
}

}  // namespace
}  // namespace synod
