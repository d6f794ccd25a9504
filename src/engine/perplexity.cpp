#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/session.h"

namespace synod {
namespace {

constexpr int64_t kMaxLogitRows = 64;  // logits held at once: 64 MiB for a vocabulary of 262144

// ln of the sum of exponentials, and the largest logit.
struct LogSum {
  double value = 0.0;
  int32_t top = 0;  // lowest id on ties

  explicit LogSum(std::span<const float> logits) {
    top = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    const double largest = logits[static_cast<size_t>(top)];
    double sum = 0.0;
    for (const float v : logits) sum += std::exp(static_cast<double>(v) - largest);
    value = largest + std::log(sum);
  }
};

// Sums of values and squares: mean and standard error of the mean.
class Accumulator {
 public:
  void add(double v) {
    sum_ += v;
    squares_ += v * v;
    ++n_;
  }
  int64_t n() const { return n_; }
  Estimate estimate() const {
    if (n_ == 0) return {};
    const auto n = static_cast<double>(n_);
    const double mean = sum_ / n;
    const double variance = std::max(squares_ / n - mean * mean, 0.0);
    return {mean, n_ < 2 ? 0.0 : std::sqrt(variance / (n - 1.0))};
  }

 private:
  double sum_ = 0.0, squares_ = 0.0;
  int64_t n_ = 0;
};

PerplexityResult result_of(const Accumulator& nll, int64_t n_chunks) {
  PerplexityResult r;
  r.n_chunks = n_chunks;
  r.n_scored = nll.n();
  r.nll = nll.estimate();
  r.perplexity.mean = std::exp(r.nll.mean);
  r.perplexity.error = r.perplexity.mean * r.nll.error;
  return r;
}

struct Chunks {
  Chunks(std::span<const int32_t> all, int32_t bos_id, const PerplexityOptions& options)
      : ids(all), bos(bos_id), size(options.chunk_tokens) {
    if (size < 4) fail(Error::Kind::kUsage, "expected chunks of at least 4 tokens, got {}", size);
    if (options.step_tokens < 1) fail(Error::Kind::kUsage, "expected steps of at least 1 token");
    const auto n = static_cast<int64_t>(ids.size());
    if (n < 2 * size) {
      fail(Error::Kind::kUsage,
           "the text has {} tokens: expected at least {}, two chunks of {}; give more text or a smaller "
           "--ctx-size",
           n, 2 * size, size);
    }
    count = n / size;
    if (options.max_chunks >= 0) count = std::min(count, options.max_chunks);
    if (count == 0) fail(Error::Kind::kUsage, "expected at least 1 chunk, got 0");
  }

  std::vector<int32_t> chunk(int64_t index) const {
    const auto part = ids.subspan(static_cast<size_t>(index * size), static_cast<size_t>(size));
    std::vector<int32_t> tokens(part.begin(), part.end());
    if (bos >= 0) tokens.front() = bos;
    return tokens;
  }

  std::span<const int32_t> ids;
  int32_t bos;
  int64_t size;
  int64_t count = 0;
};

// Logits of a chunk's scored positions, in pieces of at most kMaxLogitRows.
class ChunkRun {
 public:
  ChunkRun(const Model& model, Backend& backend, std::span<const int32_t> tokens, int64_t step)
      : session_(model, backend), tokens_(tokens), vocab_(model.info().vocab_size) {
    const auto first = static_cast<int64_t>(tokens.size()) / 2;
    for (next_ = 0; next_ < first;) {
      const int64_t n = std::min(step, first - next_);
      session_.append(tokens.subspan(static_cast<size_t>(next_), static_cast<size_t>(n)));
      next_ += n;
    }
  }

  // Position whose logits come next; the last token of a chunk predicts nothing.
  int64_t position() const { return next_; }
  bool done() const { return next_ + 1 >= static_cast<int64_t>(tokens_.size()); }
  // f32 [n, vocab] of the next n <= kMaxLogitRows positions.
  std::vector<float> next(int64_t& n) {
    n = std::min(kMaxLogitRows, static_cast<int64_t>(tokens_.size()) - 1 - next_);
    std::vector<float> logits = session_.logits(
        tokens_.subspan(static_cast<size_t>(next_), static_cast<size_t>(n)), Session::Rows::kAll);
    next_ += n;
    return logits;
  }
  std::span<const float> row(const std::vector<float>& logits, int64_t r) const {
    return std::span(logits).subspan(static_cast<size_t>(r * vocab_), static_cast<size_t>(vocab_));
  }

 private:
  Session session_;
  std::span<const int32_t> tokens_;
  int64_t vocab_;
  int64_t next_ = 0;
};

double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0.0;
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(below);
  return sorted[below] * (1.0 - part) + sorted[above] * part;
}

double divergence(std::span<const float> base, const LogSum& base_sum, std::span<const float> logits,
                  const LogSum& sum) {
  double kl = 0.0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double log_p = static_cast<double>(base[i]) - base_sum.value;
    const double log_q = static_cast<double>(logits[i]) - sum.value;
    const double p = std::exp(log_p);
    if (p > 0.0) kl += p * (log_p - log_q);
  }
  return std::max(kl, 0.0);  // rounding may leave -1e-17
}

}  // namespace

double negative_log_likelihood(std::span<const float> logits, int32_t target) {
  return LogSum(logits).value - static_cast<double>(logits[static_cast<size_t>(target)]);
}

double kl_divergence(std::span<const float> base, std::span<const float> logits) {
  SYNOD_ASSERT(base.size() == logits.size());
  return divergence(base, LogSum(base), logits, LogSum(logits));
}

PerplexityResult measure_perplexity(const Model& model, Backend& backend, std::span<const int32_t> ids,
                                    int32_t bos, const PerplexityOptions& options,
                                    const PerplexityProgress& progress) {
  const Chunks chunks(ids, bos, options);
  Accumulator nll;
  PerplexityResult result;
  for (int64_t c = 0; c < chunks.count; ++c) {
    if (options.cancelled && options.cancelled()) break;
    const std::vector<int32_t> tokens = chunks.chunk(c);
    ChunkRun run(model, backend, tokens, options.step_tokens);
    while (!run.done()) {
      const int64_t first = run.position();
      int64_t n = 0;
      const std::vector<float> logits = run.next(n);
      for (int64_t r = 0; r < n; ++r) {
        nll.add(negative_log_likelihood(run.row(logits, r), tokens[static_cast<size_t>(first + r + 1)]));
      }
    }
    result = result_of(nll, c + 1);
    if (progress) progress(c + 1, chunks.count, result);
  }
  return result;
}

DivergenceResult measure_divergence(const Model& model, const Model& base, Backend& backend,
                                    std::span<const int32_t> ids, int32_t bos,
                                    const PerplexityOptions& options, const DivergenceProgress& progress) {
  if (model.info().vocab_size != base.info().vocab_size) {
    fail(Error::Kind::kUsage, "expected two models of one vocabulary, got {} and {} tokens",
         model.info().vocab_size, base.info().vocab_size);
  }
  const Chunks chunks(ids, bos, options);
  Accumulator nll, base_nll, kl, same, ratio;
  std::vector<double> all;
  DivergenceResult result;
  for (int64_t c = 0; c < chunks.count; ++c) {
    if (options.cancelled && options.cancelled()) break;
    const std::vector<int32_t> tokens = chunks.chunk(c);
    ChunkRun run(model, backend, tokens, options.step_tokens);
    ChunkRun base_run(base, backend, tokens, options.step_tokens);
    while (!run.done()) {
      const int64_t first = run.position();
      int64_t n = 0;
      const std::vector<float> logits = run.next(n), base_logits = base_run.next(n);
      for (int64_t r = 0; r < n; ++r) {
        const auto target = static_cast<size_t>(tokens[static_cast<size_t>(first + r + 1)]);
        const auto q = run.row(logits, r), p = base_run.row(base_logits, r);
        const LogSum q_sum(q), p_sum(p);
        const double model_nll = q_sum.value - static_cast<double>(q[target]);
        const double reference_nll = p_sum.value - static_cast<double>(p[target]);
        nll.add(model_nll);
        base_nll.add(reference_nll);
        ratio.add(model_nll - reference_nll);
        same.add(q_sum.top == p_sum.top ? 1.0 : 0.0);
        all.push_back(divergence(p, p_sum, q, q_sum));
        kl.add(all.back());
      }
    }
    result.model = result_of(nll, c + 1);
    result.base = result_of(base_nll, c + 1);
    result.kl = kl.estimate();
    result.same_top = same.estimate();
    result.log_ratio = ratio.estimate();
    result.kl_max = *std::ranges::max_element(all);
    if (progress) progress(c + 1, chunks.count, result);
  }
  std::ranges::sort(all);
  result.kl_median = percentile(all, 0.5);
  result.kl_99 = percentile(all, 0.99);
  result.kl_99_9 = percentile(all, 0.999);
  return result;
}

}  // namespace synod
