#include <gtest/gtest.h>

#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::normal_values;
using testing::StoredMatrix;

constexpr int64_t kStreams = 4, kMixes = 24;

struct Mix {
  F32 pre{{1, kStreams}}, post{{1, kStreams}}, comb{{1, kStreams, kStreams}};
};

// An input of mean square 1 whose product with fn is `mix`: x = (1, ..., 1), fn[o, 0] = mix[o].
void run_mix(RefBackend& be, const std::vector<float>& mix, const F32& base, const F32& scale, Mix& out) {
  std::vector<float> fn(kMixes * kStreams * 2);
  for (size_t o = 0; o < kMixes; ++o) fn[o * kStreams * 2] = mix[o];
  const StoredMatrix stored(DType::kF32, kMixes, kStreams * 2, fn);
  const F32 x({1, kStreams, 2}, std::vector<float>(8, 1.0F));
  be(HcMix{.pre = out.pre,
           .post = out.post,
           .comb = out.comb,
           .x = x,
           .fn = stored,
           .base = base,
           .scale = scale,
           .norm_eps = 0.0F,
           .eps = 1e-6F,
           .iterations = 20});
}

class HyperConnection : public ::testing::Test {
 protected:
  HyperConnection() {
    std::vector<float> mix, base_values;
    for (int i = 0; i < kMixes; ++i) {
      mix.push_back(static_cast<float>(2.0 * std::sin(i + 1.0)));
      base_values.push_back(static_cast<float>(0.3 * std::cos(static_cast<double>(i))));
    }
    const F32 base({kMixes}, base_values), scale({3}, {0.5F, 1.0F, 1.5F});
    run_mix(be, mix, base, scale, m);
  }
  RefBackend be;
  Mix m;
};

TEST_F(HyperConnection, MixReproducesTheVector) {
  const std::vector<double> pre{0.7579506, 0.7448618, 0.5040699, 0.2584970},
      post{0.2154983, 0.7674665, 1.6646022, 1.8013750},
      comb{0.4193482, 0.1815752, 0.1675511, 0.2315241, 0.0090348, 0.4890819, 0.4958136, 0.0060677,
           0.0001645, 0.0036392, 0.2548339, 0.7413650, 0.5714516, 0.3257027, 0.0818004, 0.0210421};
  for (int64_t j = 0; j < 4; ++j) {
    EXPECT_NEAR(m.pre[j], pre[static_cast<size_t>(j)], 5e-7);
    EXPECT_NEAR(m.post[j], post[static_cast<size_t>(j)], 5e-7);
  }
  for (int64_t i = 0; i < 16; ++i) EXPECT_NEAR(m.comb[i], comb[static_cast<size_t>(i)], 5e-7);
}

TEST_F(HyperConnection, CollapseAndPostReproduceTheVector) {
  const F32 x({1, 4, 2}, {1, 0, 0, 1, 2, -1, 0.5F, 0.5F}), y({1, 2}, {1, -2});
  F32 u({1, 2}), next({1, 4, 2});
  be(HcCollapse{.out = u, .x = x, .weights = m.pre});
  EXPECT_NEAR(u[0], 1.8953389, 1e-6);
  EXPECT_NEAR(u[1], 0.3700404, 1e-6);
  be(HcPost{.out = next, .y = y, .x = x, .post = m.post, .comb = m.comb});
  const std::vector<double> want{0.9209012, -0.1364004, 1.1191714, -0.8866389,
                                 2.3827214, -3.0473246, 3.5261503, -4.3275264};
  for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(next[i], want[static_cast<size_t>(i)], 1e-6);
  // Consumed the other way round the vector must not come out.
  F32 swapped({1, 4, 4}), wrong({1, 4, 2});
  for (int64_t j = 0; j < 4; ++j) {
    for (int64_t k = 0; k < 4; ++k) swapped[j * 4 + k] = m.comb[k * 4 + j];
  }
  be(HcPost{.out = wrong, .y = y, .x = x, .post = m.post, .comb = swapped});
  EXPECT_GT(std::fabs(wrong[0] - want[0]), 0.1);
}

TEST_F(HyperConnection, ZeroMixesAreUniform) {
  const F32 base({kMixes}), scale({3}, {1, 1, 1});
  run_mix(be, std::vector<float>(kMixes), base, scale, m);
  for (int64_t j = 0; j < 4; ++j) {
    EXPECT_NEAR(m.pre[j], 0.500001, 1e-7);
    EXPECT_EQ(m.post[j], 1.0F);
  }
  for (int64_t i = 0; i < 16; ++i) EXPECT_NEAR(m.comb[i], 0.25, 2e-6);
}

TEST_F(HyperConnection, ColumnsSumToOneForAnyLogits) {
  const F32 base({kMixes}), scale({3}, {1, 1, 1});
  for (uint32_t seed = 0; seed < 200; ++seed) {
    run_mix(be, normal_values(kMixes, seed, seed % 2 == 0 ? 1.0F : 8.0F), base, scale, m);
    for (int64_t k = 0; k < 4; ++k) {
      double sum = 0;
      for (int64_t j = 0; j < 4; ++j) sum += m.comb[j * 4 + k];
      // One column step divides by sum + 1e-6; a column that the rows left at weight w ends at w / (w +
      // 1e-6).
      EXPECT_NEAR(sum, 1.0, 5e-6) << "seed " << seed;
    }
  }
}

TEST(RefHcMix, DependsOnTheDirectionOfTheStreamsOnly) {
  RefBackend be;
  const int64_t d = 16;
  const StoredMatrix fn(DType::kF32, kMixes, kStreams * d, 1, 0.1F);
  const F32 base({kMixes}, normal_values(kMixes, 2)), scale({3}, {1.0F, 0.5F, 2.0F});
  const std::vector<float> v = normal_values(kStreams * d, 3, 2.0F);
  std::vector<float> both = v;  // token 1 is token 0 times 16
  for (const float x : v) both.push_back(16.0F * x);
  const F32 x({2, kStreams, d}, both);
  F32 pre({2, 4}), post({2, 4}), comb({2, 4, 4});
  be(HcMix{.pre = pre,
           .post = post,
           .comb = comb,
           .x = x,
           .fn = fn,
           .base = base,
           .scale = scale,
           .norm_eps = 1e-6F,
           .eps = 1e-6F,
           .iterations = 20});
  for (int64_t j = 0; j < 4; ++j) EXPECT_NEAR(pre[j], pre[4 + j], 1e-6);
  for (int64_t i = 0; i < 16; ++i) EXPECT_NEAR(comb[i], comb[16 + i], 1e-6);
  // Independent evaluation of `pre`.
  double square = 0;
  for (const float f : v) square += static_cast<double>(f) * f;
  const double s = 1.0 / std::sqrt(square / static_cast<double>(kStreams * d) + 1e-6);
  for (int64_t j = 0; j < 4; ++j) {
    double dot = 0;
    for (int64_t i = 0; i < kStreams * d; ++i) dot += fn.at(j, i) * v[static_cast<size_t>(i)];
    EXPECT_NEAR(pre[j], 1 / (1 + std::exp(-(dot * s + base[j]))) + 1e-6, 1e-6);
  }
}

TEST(RefHcHeadMix, IsASigmoidPerStream) {
  RefBackend be;
  const StoredMatrix fn(DType::kF32, 2, 4, {1, 0, 0, 0, 0, 0, 0, -2});
  const F32 x({1, 2, 2}, {1, -1, 1, 1}), base({2}, {0.5F, 0.25F}), scale({1}, {3.0F});
  F32 weights({1, 2});
  be(HcHeadMix{.weights = weights, .x = x, .fn = fn, .base = base, .scale = scale, .eps = 1e-6F});
  EXPECT_NEAR(weights[0], 1 / (1 + std::exp(-3.5)) + 1e-6, 1e-7);
  EXPECT_NEAR(weights[1], 1 / (1 + std::exp(5.75)) + 1e-6, 1e-7);
}

TEST(RefHcExpand, CopiesTheTokenToEveryStream) {
  RefBackend be;
  const F32 x({2, 2}, {1, 2, 3, 4});
  F32 out({2, 3, 2});
  be(HcExpand{.out = out, .x = x});
  EXPECT_EQ(out.values(), (std::vector<float>{1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4}));
}

}  // namespace
}  // namespace synod
