#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Sampler, ADrawDependsOnSeedChoiceAndPositionOnly) {
  const SamplerOptions options{.temperature = 1.0F, .seed = 5};
  Sampler a(options), b(options), other(options, /*choice=*/1);
  std::vector<int32_t> forward, backward, twin;
  for (int64_t p = 0; p < 40; ++p) {
    std::vector<float> logits = kLogits;
    forward.push_back(a.pick(logits, p, {}));
    logits = kLogits;
    twin.push_back(other.pick(logits, p, {}));
  }
  for (int64_t p = 39; p >= 0; --p) {
    std::vector<float> logits = kLogits;
    backward.insert(backward.begin(), b.pick(logits, p, {}));
  }
  EXPECT_EQ(forward, backward);
  EXPECT_NE(forward, twin);
}

TEST(Sampler, RandomUnitsAreUniform) {
  constexpr int kDraws = 100000, kBins = 20;
  std::vector<int> bins(kBins, 0);
  double correlation = 0, last = 0.5;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random_unit(static_cast<uint64_t>(i % 7), i % 3, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    ++bins[static_cast<size_t>(u * kBins)];
    correlation += (u - 0.5) * (last - 0.5);
    last = u;
  }
  const double expected = static_cast<double>(kDraws) / kBins;
  for (const int n : bins) EXPECT_NEAR(n, expected, 5 * std::sqrt(expected));
  EXPECT_LT(std::fabs(correlation / kDraws * 12), 0.02);
}

TEST(Sampler, BiasAndPenaltiesMoveTheChoice) {
  SamplerOptions bias;
  bias.logit_bias = {{4, 2.0F}};
  EXPECT_EQ(Sampler(bias).sample(kLogits), 4);
  bias.logit_bias = {{1, -100.0F}};
  EXPECT_EQ(Sampler(bias).sample(kLogits), 2);

  SamplerOptions repetition;
  repetition.repetition_penalty = 2.0F;
  Sampler r(repetition);
  r.accept_prompt(std::vector<int32_t>{1, 2});
  EXPECT_EQ(r.sample(kLogits), 4) << "3 / 2 is below 2";
  EXPECT_EQ(r.sample(kLogits), 1) << "then id 4 is penalised too: 1.5, 1.5, 1";
  repetition.repeat_last_n = 1;
  Sampler near(repetition);
  near.accept_prompt(std::vector<int32_t>{1, 2});
  EXPECT_EQ(near.sample(kLogits), 1) << "only id 2 is recent";
  EXPECT_EQ(near.sample(kLogits), 2);
  // Negative logits are multiplied: they must not become likelier.
  Sampler negative(repetition);
  negative.accept_prompt(std::vector<int32_t>{0});
  EXPECT_EQ(negative.sample(std::vector<float>{-1.0F, -1.5F}), 1);

  SamplerOptions presence;
  presence.presence_penalty = 1.5F;
  Sampler p(presence);
  p.accept_prompt(std::vector<int32_t>{1, 2});  // prompts do not count
  EXPECT_EQ(p.sample(kLogits), 1);
  EXPECT_EQ(p.sample(kLogits), 2);
  EXPECT_EQ(p.sample(kLogits), 4);
  SamplerOptions frequency;
  frequency.frequency_penalty = 0.4F;
  Sampler f(frequency);
  std::map<int32_t, int> counts;
  for (int i = 0; i < 8; ++i) ++counts[f.sample(kLogits)];
  EXPECT_EQ(counts, (std::map<int32_t, int>{{1, 4}, {2, 3}, {4, 1}}));
}

TEST(Sampler, LimitsAreKept) {
  std::vector<uint32_t> allowed = {0b10001};
  for (const float temperature : {0.0F, 2.0F}) {
    Sampler sampler({.temperature = temperature});
    for (int64_t p = 0; p < 50; ++p) {
      std::vector<float> logits = kLogits;
      const int32_t id = sampler.pick(logits, p, {.allowed = allowed, .banned = {}});
      EXPECT_TRUE(id == 0 || id == 4);
      logits = kLogits;
      const std::vector<int32_t> banned = {4};
      EXPECT_EQ(sampler.pick(logits, p, {.allowed = allowed, .banned = banned}), 0);
    }
  }
  Sampler sampler({});
  allowed = {0};
  std::vector<float> logits = kLogits;
  EXPECT_THROW(sampler.pick(logits, 0, {.allowed = allowed, .banned = {}}), Error);
}

TEST(Sampler, BannedIdsHaveNoChanceInAnyPath) {
  for (SamplerOptions options :
       {SamplerOptions{.temperature = 50.0F}, SamplerOptions{.temperature = 1.0F, .top_p = 0.99F},
        SamplerOptions{.temperature = 50.0F, .top_k = 3}}) {
    Sampler sampler(options);
    const std::vector<int32_t> banned = {0, 1, 2, 3};
    for (int64_t p = 0; p < 300; ++p) {
      std::vector<float> logits(600, -std::numeric_limits<float>::infinity());
      for (const size_t i : {0, 1, 2, 3, 300, 599}) logits[i] = 1.0F;
      const int32_t id = sampler.pick(logits, p, {.allowed = {}, .banned = banned});
      ASSERT_TRUE(id == 300 || id == 599) << id;
    }
  }
}

TEST(Sampler, TypicalKeepsWhatIsNearTheEntropy) {
  // One certain token, one likely, many unlikely: the entropy lies nearer to the likely one.
  std::vector<float> logits(100, -1.0F);
  logits[0] = 4.0F;
  SamplerOptions options{.temperature = 1.0F};
  options.typical_p = 0.2F;
  // Plain definition: p, surprise, sorted by distance to the entropy.
  double sum = 0, entropy = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  for (const float l : logits) entropy -= std::exp(l) / sum * (l - std::log(sum));
  const double certain = std::fabs(-(4.0 - std::log(sum)) - entropy);
  const double unlikely = std::fabs(-(-1.0 - std::log(sum)) - entropy);
  Sampler sampler(options);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.sample(logits) == 0, certain < unlikely);
}

// The plainest sampler: sort everything, cut, normalise. Frequencies of the fast one must follow it.
TEST(Sampler, MatchesAPlainSamplerOnALargeVocabulary) {
  std::vector<float> logits;
  for (int i = 0; i < 2000; ++i) logits.push_back(static_cast<float>(random_unit(9, 0, i) * 12.0));
  for (SamplerOptions options :
       {SamplerOptions{.temperature = 0.8F, .top_k = 300}, SamplerOptions{.temperature = 1.3F, .top_p = 0.7F},
        SamplerOptions{.temperature = 1.0F, .top_k = 600, .top_p = 0.5F, .min_p = 0.2F},
        SamplerOptions{.temperature = 0.5F, .min_p = 0.05F}, SamplerOptions{.temperature = 1.0F}}) {
    options.seed = 3;
    std::vector<std::pair<double, int32_t>> sorted;
    for (size_t i = 0; i < logits.size(); ++i) sorted.push_back({-logits[i], static_cast<int32_t>(i)});
    std::sort(sorted.begin(), sorted.end());
    if (options.top_k > 0) sorted.resize(static_cast<size_t>(options.top_k));
    double sum = 0;
    for (const auto& [minus, id] : sorted) sum += std::exp(-minus);
    double mass = 0;
    size_t keep = 0;
    while (keep < sorted.size() && mass < options.top_p) mass += std::exp(-sorted[keep++].first) / sum;
    sorted.resize(keep);
    const double floor = std::exp(-sorted[0].first) * options.min_p;
    while (std::exp(-sorted.back().first) < floor) sorted.pop_back();
    std::map<int32_t, double> p;
    double total = 0;
    for (const auto& [minus, id] : sorted)
      total += p[id] = std::exp((-minus + sorted[0].first) / options.temperature);
    constexpr int kDraws = 5000;
    std::map<int32_t, int> counts;
    Sampler sampler(options);
    for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(logits)];
    double chi = 0;
    int cells = 0;
    for (const auto& [id, n] : counts) ASSERT_TRUE(p.contains(id)) << "id " << id << " was cut";
    for (const auto& [id, weight] : p) {
      const double expected = kDraws * weight / total;
      if (expected < 5) continue;
      chi += std::pow(counts[id] - expected, 2) / expected;
      ++cells;
    }
    EXPECT_LT(chi, cells + 5 * std::sqrt(2.0 * cells)) << cells;
  }
}

}  // namespace
}  // namespace synod
