// Perplexity as llama.cpp measures it, and how far one model's predictions are from another's.
//
// The text is cut into chunks of `chunk_tokens`; each is a context of its own, its first token replaced by
// BOS where the tokenizer adds one. Of every chunk the second half is scored: position j predicts token j + 1
// for chunk_tokens / 2 <= j < chunk_tokens - 1. Perplexity = exp(mean of -ln p).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/model.h"
#include "ops/backend.h"

namespace synod {

struct PerplexityOptions {
  int64_t chunk_tokens = 512;
  int64_t max_chunks = -1;    // -1 = the whole text
  int64_t step_tokens = 512;  // tokens per forward call; does not change results
  std::function<bool()> cancelled;
};

// Mean of `n` values with its standard error (0 where there are fewer than 2).
struct Estimate {
  double mean = 0.0;
  double error = 0.0;
};

struct PerplexityResult {
  int64_t n_chunks = 0;
  int64_t n_scored = 0;
  Estimate nll;         // nats per token
  Estimate perplexity;  // exp(nll); error by the delta method
};

// Of a model against a base model on the same tokens.
struct DivergenceResult {
  PerplexityResult model, base;
  Estimate kl;           // KL(base || model) in nats per position
  double kl_median = 0;  // percentiles over positions
  double kl_99 = 0;
  double kl_99_9 = 0;
  double kl_max = 0;
  Estimate same_top;   // share of positions where both have the same most likely token
  Estimate log_ratio;  // ln(perplexity / base's)
};

// Called after each chunk with the values so far.
using PerplexityProgress =
    std::function<void(int64_t chunk, int64_t n_chunks, const PerplexityResult& so_far)>;
using DivergenceProgress =
    std::function<void(int64_t chunk, int64_t n_chunks, const DivergenceResult& so_far)>;

// Throws kUsage when the text is shorter than two chunks (as llama.cpp does: less says nothing).
// `bos` >= 0 replaces each chunk's first token.
PerplexityResult measure_perplexity(const Model& model, Backend& backend, std::span<const int32_t> ids,
                                    int32_t bos, const PerplexityOptions& options,
                                    const PerplexityProgress& progress = {});

// Both models must have the same vocabulary (kUsage). They run one after the other, chunk by chunk.
DivergenceResult measure_divergence(const Model& model, const Model& base, Backend& backend,
                                    std::span<const int32_t> ids, int32_t bos,
                                    const PerplexityOptions& options,
                                    const DivergenceProgress& progress = {});

// -ln softmax(logits)[target], in f64. For tests and for the two above.
double negative_log_likelihood(std::span<const float> logits, int32_t target);
// KL(softmax(base) || softmax(logits)) in nats, at least 0.
double kl_divergence(std::span<const float> base, std::span<const float> logits);

}  // namespace synod
