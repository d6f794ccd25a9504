// RmsNorm, Glu, Add, Scale, SoftCap, Hadamard, ArgMax, GatherRows.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::I32;
using testing::normal_values;

TEST(RefRmsNorm, DividesByTheRootMeanSquareInPlaceAndOverStridedRows) {
  RefBackend be;
  const int64_t d = 13;
  const std::vector<float> input = normal_values(4 * 20, 1, 3.0F);
  F32 packed({4, 20}, input);
  const F32 weight({d}, normal_values(d, 2));
  const Tensor x = packed.tensor().slice(1, 5, 18);
  be(RmsNorm{.out = x, .x = x, .weight = weight, .eps = 0.25F, .factor = 2.0F});
  for (int64_t t = 0; t < 4; ++t) {
    double mean = 0;
    for (int64_t i = 0; i < d; ++i) mean += std::pow(input[static_cast<size_t>(t * 20 + 5 + i)], 2.0) / d;
    for (int64_t i = 0; i < 20; ++i) {
      const double v = input[static_cast<size_t>(t * 20 + i)];
      const bool inside = i >= 5 && i < 18;
      const double want = inside ? v / std::sqrt(mean + 0.25) * weight[i - 5] * 2.0 : v;
      EXPECT_NEAR(packed[t * 20 + i], want, 1e-6);
    }
  }
}

TEST(RefGlu, ClampsBeforeTheActivation) {
  RefBackend be;
  const F32 gate({1, 4}, {20, -20, 10.5F, -3}), up({1, 4}, {-20, 20, 9, 12});
  F32 out({1, 4});
  be(Glu{.out = out, .gate = gate, .up = up, .limit = 10.0F});
  EXPECT_NEAR(out[0], -99.99546, 1e-5);
  EXPECT_NEAR(out[1], -4.12e-7, 1e-9);
  EXPECT_NEAR(out[2], 89.99592, 1e-5);
  EXPECT_NEAR(out[3], -1.42278, 1e-5);
}

TEST(RefGlu, WithoutALimitNothingIsClampedAndRowsAreWeighted) {
  RefBackend be;
  F32 gate({2, 2}, {20, -1, 0.5F, 2});
  const F32 up({2, 2}, {-20, 3, 4, -5}), weight({2, 1}, {0.5F, 2.0F});
  be(Glu{.out = gate, .gate = gate, .up = up, .row_weight = weight});
  EXPECT_FLOAT_EQ(gate[0], -200.0F);
  EXPECT_NEAR(gate[1], -3.0 / (1.0 + std::exp(1.0)) * 0.5, 1e-6);
  EXPECT_NEAR(gate[2], 2.0 * 0.5 / (1.0 + std::exp(-0.5)) * 4.0, 1e-6);
  EXPECT_NEAR(gate[3], 2.0 * 2.0 / (1.0 + std::exp(-2.0)) * -5.0, 1e-5);
}

TEST(RefGlu, GeluIsTheTanhForm) {
  RefBackend be;
  const std::vector<float> z{-8.0F, -1.0F, 0.0F, 0.3F, 1.0F, 50.0F};
  const F32 gate({1, 6}, z), up({1, 6}, std::vector<float>(6, 1.0F));
  F32 out({1, 6});
  be(Glu{.out = out, .gate = gate, .up = up, .act = Glu::Act::kGeluTanh});
  for (int64_t i = 0; i < 6; ++i) {
    const double v = z[static_cast<size_t>(i)];
    const double want = 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    EXPECT_NEAR(out[i], want, 1e-6 * std::max(1.0, std::fabs(v)));
  }
  EXPECT_NEAR(out[4], 0.841192, 1e-6);
}

TEST(RefGlu, KeepsNaNs) {
  RefBackend be;
  const F32 gate({1, 2}, {NAN, 1}), up({1, 2}, {1, NAN});
  F32 out({1, 2});
  be(Glu{.out = out, .gate = gate, .up = up, .limit = 10.0F});
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
}

TEST(RefElementwise, AddScaleAndSoftCap) {
  RefBackend be;
  F32 a({2, 2}, {1, 2, 3, 4});
  const F32 b({2, 2}, {10, 20, 30, 40}), by({1}, {4.0F});
  be(Add{.out = a, .a = a, .b = b, .factor = 0.5F});
  EXPECT_EQ(a.values(), (std::vector<float>{5.5F, 11, 16.5F, 22}));
  be(Scale{.x = a, .by = by, .factor = 0.5F});
  EXPECT_EQ(a.values(), (std::vector<float>{11, 22, 33, 44}));
  be(Scale{.x = a, .factor = 2.0F});
  be(SoftCap{.x = a, .cap = 30.0F});
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_FLOAT_EQ(a[i], static_cast<float>(30 * std::tanh(22.0 * (i + 1) / 30)));
}

TEST(RefHadamard, MatchesTheSylvesterMatrixAndIsItsOwnInverse) {
  RefBackend be;
  const int64_t d = 16;
  const std::vector<float> input = normal_values(2 * d, 3);
  F32 x({2, d}, input);
  be(Hadamard{.x = x});
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < d; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < d; ++j) {
        const double sign =
            __builtin_popcountll(static_cast<unsigned long long>(i & j)) % 2 == 0 ? 1.0 : -1.0;
        sum += sign * input[static_cast<size_t>(r * d + j)];
      }
      EXPECT_NEAR(x[r * d + i], sum / 4.0, 1e-6);
    }
  }
  be(Hadamard{.x = x});
  for (int64_t i = 0; i < 2 * d; ++i) EXPECT_NEAR(x[i], input[static_cast<size_t>(i)], 1e-6);
}

TEST(RefArgMax, TakesTheLowestOfEqualsAndRefusesNonFiniteRows) {
  RefBackend be;
  const F32 x({5, 3}, {1, 3, 3, NAN, 1, 2, INFINITY, 0, 1, -INFINITY, -5, -INFINITY, 2, NAN, 9});
  I32 best({5}, {7, 7, 7, 7, 7});
  const F32 good({2, 3}, {1, 3, 3, -INFINITY, -5, -INFINITY});
  I32 good_best({2});
  be(ArgMax{.out = good_best, .x = good});
  EXPECT_EQ(good_best.values(), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(be.take_status().bits, 0U);
  be(ArgMax{.out = best, .x = x});
  EXPECT_EQ(best.values(), (std::vector<int32_t>{1, 0, 0, 1, 0}));
  EXPECT_EQ(be.take_status().bits, static_cast<uint32_t>(Status::kNonFinite));
}

TEST(RefGatherRows, CopiesRowsOfAnyRank) {
  RefBackend be;
  F32 x({3, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), out({2, 2, 2});
  const I32 rows({2}, {2, 0});
  be(GatherRows{.out = out, .x = x, .rows = rows});
  EXPECT_EQ(out.values(), (std::vector<float>{8, 9, 10, 11, 0, 1, 2, 3}));
  const I32 bad({2}, {3, 1});
  be(GatherRows{.out = out, .x = x, .rows = bad});
  EXPECT_EQ(out.values(), (std::vector<float>{0, 0, 0, 0, 4, 5, 6, 7}));
  EXPECT_EQ(be.take_status().bits, static_cast<uint32_t>(Status::kBadId));
}

}  // namespace
}  // namespace synod
