// Picks the next token from logits. Order of the samplers: top-k, top-p, min-p, temperature, draw.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace synod {

struct SamplerOptions {
  float temperature = 0.0F;  // 0 = greedy
  int64_t top_k = 0;         // keep the k most likely; 0 = all
  float top_p = 1.0F;        // keep the smallest set of at least this probability, in (0, 1]
  float min_p = 0.0F;        // drop tokens below min_p * largest probability, in [0, 1)
  uint64_t seed = 0;
  std::vector<int32_t> suppress;  // ids that are never chosen (generation_config's suppress_tokens)
  // Throws kUsage naming the option and its range.
  void check() const;
  // True when the arg-max of the raw logits is the answer, so that no logits need to be copied.
  bool plain_greedy() const { return temperature == 0.0F && suppress.empty(); }
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  // `logits` f32 [vocabulary]. Equal logits keep the order of ids. Throws kNumeric when none is finite.
  int32_t sample(std::span<const float> logits);

 private:
  struct Choice {
    int32_t id;
    float logit;
    double p;  // softmax at temperature 1, over all tokens
  };
  SamplerOptions options_;
  std::mt19937_64 random_;  // its output is fixed by the C++ standard, unlike that of the distributions
  std::vector<Choice> choices_;
};

}  // namespace synod
