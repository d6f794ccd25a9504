// Sums of squared inputs against sums written out, for every op that multiplies a stored matrix.
#include "wrap/imatrix_collector.h"

#include <gtest/gtest.h>

#include "ops/operands.h"
#include "ref/ref_backend.h"
#include "wrap/small_step.h"

namespace synod {
namespace {

using testing::F32;
using testing::I32;
using testing::normal_values;
using testing::StoredMatrix;

std::vector<double> squares(const float* x, int64_t n_rows, int64_t n) {
  std::vector<double> sum(static_cast<size_t>(n));
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t i = 0; i < n; ++i)
      sum[static_cast<size_t>(i)] += double(x[r * n + i]) * double(x[r * n + i]);
  }
  return sum;
}

TEST(ImatrixCollector, SumsWhatEntersLinearAndProjectionsOncePerStoredMatrix) {
  constexpr int64_t kTokens = 5, kIn = 32, kOut = 8;
  const StoredMatrix a(DType::kF32, 2 * kOut, kIn, 1), b(DType::kF32, kOut, kIn, 2),
      other(DType::kF32, kOut, kIn, 3);
  F32 x({kTokens, kIn}, normal_values(kTokens * kIn, 4)), out_a({kTokens, kOut}), out_b({kTokens, kOut});
  RefBackend ref;
  ImatrixCollector collector(ref);
  const Matrix whole = a;
  const Matrix top = whole.rows(0, kOut), bottom = whole.rows(kOut, 2 * kOut);
  collector.watch(top, 0);
  collector.watch(b, 1);
  Backend& be = collector;
  be(Linear{.out = out_b, .x = x, .weight = other});  // not watched
  be(Linear{.out = out_b, .x = x, .weight = b});
  Projections both{.x = x, .n_parts = 2};
  both.parts[0] = {out_a, top};
  both.parts[1] = {out_b, bottom};
  be(both);
  const std::vector<double> want = squares(x.values().data(), kTokens, kIn);
  for (size_t slot = 0; slot < 2; ++slot) {
    EXPECT_EQ(collector.sums()[slot].squares, want);
    EXPECT_EQ(collector.sums()[slot].n_rows, kTokens);
  }
}

TEST(ImatrixCollector, GroupsOfAGroupedLinearShareTheColumns) {
  constexpr int64_t kTokens = 3, kGroups = 2, kIn = 16, kOut = 4;
  const StoredMatrix w(DType::kF32, kGroups * kOut, kIn, 1);
  F32 x({kTokens, kGroups, kIn}, normal_values(kTokens * kGroups * kIn, 2)), out({kTokens, kGroups, kOut});
  RefBackend ref;
  ImatrixCollector collector(ref);
  collector.watch(w, 0);
  Backend& be = collector;
  be(GroupedLinear{.out = out, .x = x, .weight = w});
  EXPECT_EQ(collector.sums()[0].squares, squares(x.values().data(), kTokens * kGroups, kIn));
  EXPECT_EQ(collector.sums()[0].n_rows, kTokens * kGroups);
}

TEST(ImatrixCollector, ExpertsSeeOnlyTheirTokens) {
  constexpr int64_t kTokens = 4, kUsed = 2, kExperts = 3, kIn = 8, kOut = 4;
  std::vector<StoredMatrix> stored;
  for (uint32_t e = 0; e < kExperts; ++e) stored.emplace_back(DType::kF32, kOut, kIn, e);
  std::vector<Matrix> experts(stored.begin(), stored.end());
  I32 ids({kTokens, kUsed}, {0, 2, 0, 2, 0, 0, 2, 2});  // expert 1 is never used; a token may use one twice
  RefBackend ref;
  for (const bool per_slot : {false, true}) {
    F32 x({kTokens, kIn}, normal_values(kTokens * kIn, 5));
    F32 slots({kTokens, kUsed, kIn}, normal_values(kTokens * kUsed * kIn, 6)), out({kTokens, kUsed, kOut});
    ImatrixCollector collector(ref);
    for (size_t e = 0; e < kExperts; ++e) collector.watch(experts[e], e);
    Backend& be = collector;
    be(ExpertLinear{.out = out, .x = per_slot ? slots.tensor() : x.tensor(), .ids = ids, .experts = experts});
    for (int32_t e = 0; e < kExperts; ++e) {
      std::vector<double> want(kIn);
      int64_t n = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t s = 0; s < kUsed; ++s) {
          if (ids[t * kUsed + s] != e) continue;
          const float* row = per_slot ? &slots[(t * kUsed + s) * kIn] : &x[t * kIn];
          for (int64_t i = 0; i < kIn; ++i) want[static_cast<size_t>(i)] += double(row[i]) * double(row[i]);
          ++n;
        }
      }
      EXPECT_EQ(collector.sums()[static_cast<size_t>(e)].squares, want) << e;
      EXPECT_EQ(collector.sums()[static_cast<size_t>(e)].n_rows, n) << e;
    }
    EXPECT_EQ(collector.sums()[1].n_rows, 0);
  }
}

// The fused feed-forward shows the inputs of its down projections, and nothing the model computes changes.
TEST(ImatrixCollector, SeesInsideTheFusedFeedForward) {
  constexpr int64_t kTokens = 6, kUsed = 2, kExperts = 4, kModel = 16, kWide = 8;
  std::vector<StoredMatrix> gate, up, down;
  for (uint32_t e = 0; e < kExperts; ++e) {
    gate.emplace_back(DType::kF32, kWide, kModel, 10 + e);
    up.emplace_back(DType::kF32, kWide, kModel, 20 + e);
    down.emplace_back(DType::kF32, kModel, kWide, 30 + e);
  }
  const std::vector<Matrix> gates(gate.begin(), gate.end()), ups(up.begin(), up.end()),
      downs(down.begin(), down.end());
  I32 ids({kTokens, kUsed}, {0, 1, 0, 3, 1, 3, 0, 1, 1, 3, 0, 3});
  F32 weights({kTokens, kUsed}, normal_values(kTokens * kUsed, 1));
  F32 x({kTokens, kModel}, normal_values(kTokens * kModel, 2)), want({kTokens, kModel}),
      got({kTokens, kModel});
  RefBackend ref;
  ImatrixCollector collector(ref);
  for (size_t e = 0; e < kExperts; ++e) collector.watch(downs[e], e);
  const auto op = [&](const Tensor& out) {
    return ExpertFfn{
        .out = out, .x = x, .ids = ids, .weights = weights, .gate = gates, .up = ups, .down = downs};
  };
  Backend &plain = ref, &watched = collector;
  plain(op(want));
  watched(op(got));
  EXPECT_EQ(got.values(), want.values());
  EXPECT_EQ(collector.sums()[0].n_rows, 4);
  EXPECT_EQ(collector.sums()[2].n_rows, 0);
  EXPECT_EQ(collector.sums()[3].n_rows, 4);
  double sum = 0;
  for (const double v : collector.sums()[0].squares) sum += v;
  EXPECT_GT(sum, 0.0);
}

TEST(ImatrixCollector, LeavesAWholeStepAsItIs) {
  RefBackend a, b;
  ImatrixCollector collector(b);
  testing::SmallStep one, two;
  one.run(a);
  two.run(collector);
  EXPECT_EQ(collector.take_status().bits, a.take_status().bits);
}

}  // namespace
}  // namespace synod
