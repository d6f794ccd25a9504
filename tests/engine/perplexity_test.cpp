#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/session.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

const std::string kCheckpoints = SYNOD_SOURCE_DIR "/tests/data/checkpoints/";

std::vector<int32_t> some_ids(int64_t n, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((i * i * 31 + i * 7 + 3) % vocab));
  return ids;
}

double log_sum(const float* logits, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(double(logits[i]));
  return std::log(sum);
}

struct Fixture {
  explicit Fixture(const std::string& name)
      : checkpoint(Checkpoint::open(kCheckpoints + name)), model(load_model(checkpoint, {})) {}
  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
};

TEST(Perplexity, OfEqualLogitsIsTheVocabulary) {
  const std::vector<float> flat(128, 3.0F);
  EXPECT_NEAR(std::exp(negative_log_likelihood(flat, 7)), 128.0, 1e-9);
  EXPECT_EQ(kl_divergence(flat, flat), 0.0);
}

TEST(Perplexity, DivergenceOfTwoCoinsIsWhatTheBookSays) {
  const std::vector<float> fair = {0, 0}, biased = {std::log(3.0F), 0};  // 1/2 1/2 against 3/4 1/4
  EXPECT_NEAR(kl_divergence(fair, biased), 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25), 1e-7);
  EXPECT_NEAR(kl_divergence(biased, fair), 0.75 * std::log(0.75 / 0.5) + 0.25 * std::log(0.25 / 0.5), 1e-7);
}

// The definition, written out: chunks, BOS in front, second half scored.
TEST(Perplexity, ScoresTheSecondHalfOfEachChunkWithBosInFront) {
  const Fixture f("gemma4-dense-tiny");
  RefBackend ref;
  const int64_t vocab = f.model->info().vocab_size, size = 16;
  const std::vector<int32_t> ids = some_ids(3 * size + 5, vocab);
  for (const int32_t bos : {-1, 2}) {
    double sum = 0, squares = 0;
    int64_t n = 0;
    for (int64_t c = 0; c < 3; ++c) {
      std::vector<int32_t> chunk(ids.begin() + c * size, ids.begin() + (c + 1) * size);
      if (bos >= 0) chunk[0] = bos;
      Session session(*f.model, ref);
      const std::vector<float> logits = session.logits(chunk, Session::Rows::kAll);
      for (int64_t j = size / 2; j < size - 1; ++j) {
        const float* row = logits.data() + j * vocab;
        const double nll = log_sum(row, vocab) - double(row[chunk[static_cast<size_t>(j + 1)]]);
        sum += nll, squares += nll * nll, ++n;
      }
    }
    const double mean = sum / double(n);
    std::vector<double> running;
    const PerplexityResult got =
        measure_perplexity(*f.model, ref, ids, bos, {.chunk_tokens = size, .step_tokens = 3},
                           [&](int64_t chunk, int64_t n_chunks, const PerplexityResult& so_far) {
                             EXPECT_EQ(n_chunks, 3);
                             EXPECT_EQ(so_far.n_chunks, chunk);
                             running.push_back(so_far.perplexity.mean);
                           });
    EXPECT_EQ(got.n_scored, n);
    EXPECT_NEAR(got.nll.mean, mean, 1e-6);
    EXPECT_NEAR(got.perplexity.mean, std::exp(mean), 1e-4);
    const double error = std::sqrt((squares / double(n) - mean * mean) / double(n - 1));
    EXPECT_NEAR(got.nll.error, error, 1e-6);
    EXPECT_NEAR(got.perplexity.error, std::exp(mean) * error, 1e-4);
    ASSERT_EQ(running.size(), 3U);
    EXPECT_EQ(running.back(), got.perplexity.mean);
  }
}

TEST(Perplexity, DoesNotDependOnTheStep) {
  const Fixture f("deepseek4-tiny");
  RefBackend ref;
  const std::vector<int32_t> ids = some_ids(64, f.model->info().vocab_size);
  const auto run = [&](int64_t step) {
    return measure_perplexity(*f.model, ref, ids, 0, {.chunk_tokens = 32, .step_tokens = step}).nll.mean;
  };
  EXPECT_EQ(run(512), run(5));
  EXPECT_EQ(run(512), run(1));
}

TEST(Perplexity, OfTheSameModelDivergesNowhere) {
  const Fixture f("gemma4-moe-tiny");
  RefBackend ref;
  const DivergenceResult d =
      measure_divergence(*f.model, *f.model, ref, some_ids(48, 100), 2, {.chunk_tokens = 16});
  EXPECT_EQ(d.kl.mean, 0.0);
  EXPECT_EQ(d.kl_max, 0.0);
  EXPECT_EQ(d.same_top.mean, 1.0);
  EXPECT_EQ(d.log_ratio.mean, 0.0);
  EXPECT_EQ(d.model.perplexity.mean, d.base.perplexity.mean);
}

// Two models of one vocabulary: statistics over positions computed from logits.
TEST(Perplexity, DivergenceStatisticsAreThoseOfThePositions) {
  const Fixture a("gemma4-moe-tiny"), b("gemma4-dense-tiny");
  const int64_t vocab = a.model->info().vocab_size, size = 16;
  if (b.model->info().vocab_size != vocab) GTEST_SKIP() << "the fixtures have different vocabularies";
  RefBackend ref;
  const std::vector<int32_t> ids = some_ids(2 * size, vocab);
  std::vector<double> kl;
  double same = 0;
  for (int64_t c = 0; c < 2; ++c) {
    const std::span chunk(ids.data() + c * size, static_cast<size_t>(size));
    Session sa(*a.model, ref), sb(*b.model, ref);
    const auto la = sa.logits(chunk, Session::Rows::kAll), lb = sb.logits(chunk, Session::Rows::kAll);
    for (int64_t j = size / 2; j < size - 1; ++j) {
      const float *q = la.data() + j * vocab, *p = lb.data() + j * vocab;
      const double zq = log_sum(q, vocab), zp = log_sum(p, vocab);
      double sum = 0;
      for (int64_t i = 0; i < vocab; ++i)
        sum += std::exp(double(p[i]) - zp) * (double(p[i]) - zp - double(q[i]) + zq);
      kl.push_back(sum);
      same += std::max_element(q, q + vocab) - q == std::max_element(p, p + vocab) - p ? 1 : 0;
    }
  }
  const DivergenceResult d = measure_divergence(*a.model, *b.model, ref, ids, -1, {.chunk_tokens = size});
  double mean = 0;
  for (const double v : kl) mean += v / double(kl.size());
  EXPECT_NEAR(d.kl.mean, mean, 1e-6);
  EXPECT_GT(d.kl.mean, 0.0);
  EXPECT_NEAR(d.same_top.mean, same / double(kl.size()), 1e-12);
  std::ranges::sort(kl);
  EXPECT_NEAR(d.kl_max, kl.back(), 1e-6);
  EXPECT_LE(d.kl_99, d.kl_99_9);
  EXPECT_LE(d.kl_99_9, d.kl_max);
  EXPECT_NEAR(d.kl_median,
              kl.size() % 2 == 1 ? kl[kl.size() / 2] : (kl[kl.size() / 2] + kl[kl.size() / 2 - 1]) / 2, 1e-6);
}

TEST(Perplexity, RefusesTextsThatAreTooShortAndOtherVocabularies) {
  const Fixture f("gemma4-dense-tiny");
  RefBackend ref;
  for (const int64_t n : {0, 1, 31}) {
    try {
      measure_perplexity(*f.model, ref, some_ids(n, 100), 2, {.chunk_tokens = 16});
      ADD_FAILURE() << n;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kUsage);
    }
  }
  EXPECT_THROW(measure_perplexity(*f.model, ref, some_ids(64, 100), 2, {.chunk_tokens = 16, .max_chunks = 0}),
               Error);
  EXPECT_EQ(
      measure_perplexity(*f.model, ref, some_ids(64, 100), 2, {.chunk_tokens = 16, .max_chunks = 2}).n_chunks,
      2);
}

}  // namespace
}  // namespace synod
