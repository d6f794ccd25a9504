#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"

namespace synod {
namespace {

const std::vector<float> kLogits = {1.0F, 3.0F, 3.0F, 0.0F, 2.0F};

std::map<int32_t, int> draw(const SamplerOptions& options, int n) {
  Sampler sampler(options);
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(kLogits)];
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEqualLogits) {
  Sampler sampler({});
  EXPECT_EQ(sampler.sample(kLogits), 1);
}

TEST(Sampler, OneSeedGivesOneSequenceAndAnotherSeedAnother) {
  const auto sequence = [](uint64_t seed) {
    Sampler sampler({.temperature = 1.0F, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.sample(kLogits));
    return ids;
  };
  EXPECT_EQ(sequence(7), sequence(7));
  EXPECT_NE(sequence(7), sequence(8));
}

TEST(Sampler, FrequenciesFollowTheSoftmaxOfTheTemperature) {
  constexpr int kDraws = 20000;
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    const auto counts = draw({.temperature = temperature, .seed = 3}, kDraws);
    double sum = 0;
    for (const float l : kLogits) sum += std::exp(l / temperature);
    for (size_t id = 0; id < kLogits.size(); ++id) {
      const double p = std::exp(kLogits[id] / temperature) / sum;
      const auto it = counts.find(static_cast<int32_t>(id));
      const double seen = it == counts.end() ? 0 : it->second;
      // Five standard deviations of a binomial count.
      EXPECT_NEAR(seen, kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)) + 1) << temperature << " id " << id;
    }
  }
}

TEST(Sampler, TopKTopPAndMinPKeepTheMostLikely) {
  EXPECT_EQ(draw({.temperature = 1.0F, .top_k = 1}, 100).size(), 1U);
  EXPECT_EQ(draw({.temperature = 1.0F, .top_k = 2}, 1000).size(), 2U);
  // Probabilities: 0.38 0.38 0.14 0.05 0.02: 0.5 needs two tokens, 0.8 three.
  EXPECT_EQ(draw({.temperature = 1.0F, .top_p = 0.5F}, 1000).size(), 2U);
  EXPECT_EQ(draw({.temperature = 1.0F, .top_p = 0.8F}, 2000).size(), 3U);
  EXPECT_EQ(draw({.temperature = 5.0F, .min_p = 0.3F}, 2000).size(), 3U);
}

TEST(Sampler, IgnoresLogitsThatAreNotFiniteAndRefusesWhenNoneIs) {
  const float inf = std::numeric_limits<float>::infinity();
  Sampler sampler({});
  EXPECT_EQ(sampler.sample(std::vector<float>{-inf, -5.0F, NAN}), 1);
  EXPECT_THROW(sampler.sample(std::vector<float>{-inf, NAN}), Error);
}

TEST(Sampler, NeverChoosesASuppressedId) {
  SamplerOptions options{.suppress = {1, 2}};
  EXPECT_FALSE(options.plain_greedy());
  EXPECT_EQ(Sampler(options).sample(kLogits), 4);
  options.temperature = 3.0F;
  for (const auto& [id, count] : draw(options, 500)) EXPECT_TRUE(id != 1 && id != 2) << id;
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  EXPECT_THROW(Sampler({.temperature = -1.0F}), Error);
  EXPECT_THROW(Sampler({.temperature = NAN}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0.0F}), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5F}), Error);
  EXPECT_THROW(Sampler({.min_p = 1.0F}), Error);
}

}  // namespace
}  // namespace synod
