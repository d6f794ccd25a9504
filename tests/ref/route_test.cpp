#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::I32;
using testing::normal_values;

constexpr auto kNonFinite = static_cast<uint32_t>(Status::kNonFinite);
constexpr auto kBadId = static_cast<uint32_t>(Status::kBadId);

TEST(RefRouteSoftmax, NormalisesTheChosenLogitsAndScalesAfterwards) {
  RefBackend be;
  const F32 logits({1, 4}, {1.0F, 3.0F, 3.0F, 2.0F}), expert_scale({4}, {1, 10, 100, 1000});
  I32 ids({1, 2});
  F32 weights({1, 2});
  be(RouteSoftmax{.ids = ids, .weights = weights, .logits = logits});
  EXPECT_EQ(ids.values(), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(weights.values(), (std::vector<float>{0.5F, 0.5F}));
  I32 ids3({1, 3});
  F32 weights3({1, 3});
  be(RouteSoftmax{.ids = ids3, .weights = weights3, .logits = logits, .expert_scale = expert_scale});
  const double sum = 2.0 + std::exp(-1.0);
  EXPECT_EQ(ids3.values(), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_FLOAT_EQ(weights3[0], static_cast<float>(10.0 / sum));
  EXPECT_FLOAT_EQ(weights3[1], static_cast<float>(100.0 / sum));
  EXPECT_FLOAT_EQ(weights3[2], static_cast<float>(1000.0 * std::exp(-1.0) / sum));
}

TEST(RefRouteSoftmax, TiesGoToTheLowerIdAndSlotsAscend) {
  RefBackend be;
  const F32 logits({2, 5}, {2, 2, 2, 2, 2, 0, 5, 1, 5, 4});
  I32 ids({2, 3});
  F32 weights({2, 3});
  be(RouteSoftmax{.ids = ids, .weights = weights, .logits = logits});
  EXPECT_EQ(ids.values(), (std::vector<int32_t>{0, 1, 2, 1, 3, 4}));
}

TEST(RefRouteSoftmax, ANaNFlagsOnlyItsToken) {
  RefBackend be;
  std::vector<float> v = normal_values(3 * 8, 1);
  const F32 clean({3, 8}, v);
  I32 ids({3, 2}), clean_ids({3, 2});
  F32 weights({3, 2}), clean_weights({3, 2});
  be(RouteSoftmax{.ids = clean_ids, .weights = clean_weights, .logits = clean});
  EXPECT_EQ(be.take_status().bits, 0U);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    v[8 + 5] = bad;
    const F32 logits({3, 8}, v);
    be(RouteSoftmax{.ids = ids, .weights = weights, .logits = logits});
    EXPECT_EQ(be.take_status().bits, kNonFinite);
    for (int64_t i : {0, 1, 4, 5}) {
      EXPECT_EQ(ids[i], clean_ids[i]);
      EXPECT_EQ(weights[i], clean_weights[i]);
    }
    for (int64_t i : {2, 3}) {
      EXPECT_EQ(ids[i], 0);
      EXPECT_EQ(weights[i], 0.0F);
    }
  }
}

// With k = n all experts are chosen and weights are g / sum g: ratios are those of sqrt(softplus).
TEST(RefRouteScores, WeightsAreSqrtSoftplus) {
  RefBackend be;
  const std::vector<float> z{-100, -30, -17, -5, -1, 0, 1, 5, 20, 100};
  const std::vector<double> g{1.92874985e-22, 3.05902321e-7, 2.03468367e-4, 8.19472299e-2, 0.559697854,
                              0.832554611,    1.14597630,    2.23756907,    4.47213596,    10};
  double sum = 0;
  for (const double v : g) sum += v;
  const F32 logits({1, 10}, z), bias({10});
  I32 ids({1, 10});
  F32 weights({1, 10});
  be(RouteScores{.ids = ids, .weights = weights, .logits = logits, .bias = bias, .scale = 1.5F});
  for (int64_t e = 0; e < 10; ++e) {
    EXPECT_EQ(ids[e], e);
    EXPECT_NEAR(weights[e] / (g[static_cast<size_t>(e)] / sum * 1.5), 1.0, 1e-6) << z[static_cast<size_t>(e)];
  }
}

TEST(RefRouteScores, BiasSelectsButDoesNotWeigh) {
  RefBackend be;
  const F32 logits({1, 4}, {0, 1, 2, 3}), none({4}), constant({4}, {7, 7, 7, 7}), pick({4}, {9, 9, 0, 0});
  const auto route = [&](const F32& bias) {
    I32 ids({1, 2});
    F32 weights({1, 2});
    be(RouteScores{.ids = ids, .weights = weights, .logits = logits, .bias = bias, .scale = 2.5F});
    return std::pair(ids.values(), weights.values());
  };
  EXPECT_EQ(route(none), route(constant));
  EXPECT_EQ(route(none).first, (std::vector<int32_t>{2, 3}));
  const auto [ids, weights] = route(pick);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
  const double g0 = std::sqrt(std::log(2.0)), g1 = std::sqrt(std::log1p(std::exp(1.0)));
  EXPECT_FLOAT_EQ(weights[0], static_cast<float>(2.5 * g0 / (g0 + g1)));
  EXPECT_FLOAT_EQ(weights[1], static_cast<float>(2.5 * g1 / (g0 + g1)));
}

TEST(RefRouteScores, NonFiniteBiasOrLogitsAreRefused) {
  RefBackend be;
  const F32 logits({1, 3}, {0, 1, 2}), bias({3}, {0, NAN, 0});
  I32 ids({1, 1}, {5});
  F32 weights({1, 1}, {5});
  be(RouteScores{.ids = ids, .weights = weights, .logits = logits, .bias = bias});
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(weights[0], 0.0F);
  EXPECT_EQ(be.take_status().bits, kNonFinite);
}

TEST(RefRouteHash, ChoiceDependsOnTheTokenOnly) {
  RefBackend be;
  const I32 table({4, 2}, {0, 1, 5, 2, 3, 3, 7, 4}), tokens({3}, {1, 1, 2});
  const F32 logits({3, 8}, normal_values(24, 1));
  I32 ids({3, 2});
  F32 weights({3, 2});
  be(RouteHash{
      .ids = ids, .weights = weights, .logits = logits, .token_ids = tokens, .table = table, .scale = 1.5F});
  EXPECT_EQ(be.take_status().bits, 0U);
  EXPECT_EQ(ids.values(), (std::vector<int32_t>{2, 5, 2, 5, 3, 3}));
  EXPECT_NE(weights[0], weights[2]) << "the gate still weighs";
  for (int64_t t = 0; t < 3; ++t) EXPECT_NEAR(weights[2 * t] + weights[2 * t + 1], 1.5, 1e-6);
  EXPECT_EQ(weights[4], 0.75F) << "an expert named twice counts twice";
  const double g2 = std::sqrt(std::log1p(std::exp(logits[2]))),
               g5 = std::sqrt(std::log1p(std::exp(logits[5])));
  EXPECT_NEAR(weights[0], 1.5 * g2 / (g2 + g5), 1e-6);
}

TEST(RefRouteHash, RefusesUnknownTokensAndTableEntries) {
  RefBackend be;
  const I32 table({3, 2}, {0, 1, 1, 8, -1, 0});
  const F32 logits({1, 8}, normal_values(8, 1));
  for (const int32_t token : {1, 2, 3, -1}) {
    const I32 tokens({1}, {token});
    I32 ids({1, 2}, {9, 9});
    F32 weights({1, 2}, {9, 9});
    be(RouteHash{.ids = ids, .weights = weights, .logits = logits, .token_ids = tokens, .table = table});
    EXPECT_EQ(be.take_status().bits, kBadId) << token;
    EXPECT_EQ(ids.values(), (std::vector<int32_t>{0, 0}));
    EXPECT_EQ(weights.values(), (std::vector<float>{0, 0}));
  }
}

}  // namespace
}  // namespace synod
