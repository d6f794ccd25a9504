// Log-probabilities of a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace synod {

// log(sum(exp(logits))); NaN and -inf count as nothing.
double log_sum_exp(std::span<const float> logits);

// The `n` most likely ids with their log-probabilities, most likely first, lower ids first among equals.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, double log_sum, int64_t n);

}  // namespace synod
