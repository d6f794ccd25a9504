// Picks the next token from logits.
//
// Order of the samplers:
//   1. suppressed and banned ids, logit bias, the grammar's mask
//   2. penalties: repetition, frequency, presence
//   3. temperature 0: the arg-max (lowest id among equals), and nothing below
//   4. top-k, typical, top-p, min-p: on probabilities at temperature 1, renormalised after each
//   5. temperature
//   6. one draw
// This is llama.cpp's order: the temperature shapes the draw among the tokens that are kept, not which are
// kept.
//
// The draw uses one number that depends on seed, choice and position alone (no generator state), so a text
// can be reproduced under any load, after preemption, and with drafts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace synod {

struct LogitBias {
  int32_t id = 0;
  float bias = 0.0F;  // added to the logit; -inf bans the id
};

struct SamplerOptions {
  float temperature = 0.0F;  // 0 = greedy
  int64_t top_k = 0;         // keep the k most likely; 0 = all
  float top_p = 1.0F;        // keep the smallest set of at least this probability, in (0, 1]
  float min_p = 0.0F;        // drop tokens below min_p * largest probability, in [0, 1)
  uint64_t seed = 0;
  std::vector<int32_t> suppress;  // ids that are never chosen (generation_config's suppress_tokens)
  // Keep the tokens whose surprise is nearest to the entropy, of at least this probability, in (0, 1].
  float typical_p = 1.0F;
  // Logits of ids in the last `repeat_last_n` tokens (prompt included; -1 = all, 0 = off) are divided by it
  // when positive and multiplied when negative. Above 0; 1 = off.
  float repetition_penalty = 1.0F;
  int64_t repeat_last_n = -1;
  // Subtracted from logits of generated ids, per occurrence and once (OpenAI's definition), in [-2, 2].
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::vector<LogitBias> logit_bias;

  // Throws kUsage naming the option and its range; ids are compared with the vocabulary if one is given.
  void check(int64_t vocab_size = 0) const;
  bool has_penalties() const;
  // True when the arg-max of the raw logits is the answer, so that no logits need to be copied.
  bool plain_greedy() const {
    return temperature == 0.0F && suppress.empty() && logit_bias.empty() && !has_penalties();
  }
};

// A number in [0, 1) that is a function of its arguments: 53 bits of two rounds of a 64-bit mix.
double random_unit(uint64_t seed, int64_t choice, int64_t position);

class Sampler {
 public:
  // Memory for the work of one pick. Samplers of one thread may share it.
  struct Scratch;
  explicit Sampler(const SamplerOptions& options, int64_t choice = 0,
                   std::shared_ptr<Scratch> scratch = nullptr);
  static std::shared_ptr<Scratch> make_scratch();

  // What the penalties look back on: prompt ids first, then each generated id.
  void accept_prompt(std::span<const int32_t> ids);
  void accept(int32_t id);

  // Limits for one pick, besides the options.
  struct Limits {
    std::span<const uint32_t> allowed;  // bit per id; empty = all (engine/constraint.h)
    std::span<const int32_t> banned;
  };
  // `logits` f32 [vocabulary] are modified. `position` counts generated tokens from 0. Throws kNumeric when
  // no token with a finite logit is left.
  int32_t pick(std::span<float> logits, int64_t position, const Limits& limits);
  // The same on a copy, at the next position, with accept().
  int32_t sample(std::span<const float> logits);

  const SamplerOptions& options() const { return options_; }

 private:
  struct Candidate {
    int32_t id;
    float logit;
    float p;
  };
  void restrict(std::span<float> logits, const Limits& limits) const;
  void penalise(std::span<float> logits) const;
  float scan(std::span<const float> logits);
  int32_t draw(std::span<const float> logits, float top, int64_t position);
  int32_t draw_of_all(std::span<const float> logits, float top, float floor, int64_t position);
  int32_t first_of(std::span<const float> logits, float top) const;
  static uint64_t rank(float logit, uint32_t id);
  size_t collect(std::span<const float> logits, float least, size_t first_block, size_t end_block, size_t n);
  std::span<uint64_t> ranked(std::span<const float> logits, size_t n, size_t most);
  void take_sorted(std::span<const float> logits, std::span<uint64_t> ranks);
  void collect_top_p(std::span<const float> logits, float top);
  void collect_top_p_of_bins(std::span<const float> logits, float top);
  void collect_top_k(std::span<const float> logits, size_t k);
  void collect_above(std::span<const float> logits, float floor);
  double weigh();
  void keep_typical();
  void keep_mass(double target);

  SamplerOptions options_;
  int64_t choice_;
  int64_t position_ = 0;                            // of sample()
  std::vector<int32_t> history_;                    // only with a repetition penalty over a bounded range
  std::unordered_map<int32_t, int32_t> recent_;     // occurrences within repeat_last_n
  std::unordered_map<int32_t, int32_t> generated_;  // occurrences in the output
  std::shared_ptr<Scratch> scratch_;
  float top_ = 0.0F;         // largest logit of the candidates
  std::vector<float> copy_;  // scratch of sample()
};

}  // namespace synod
