// sum_j exp(l_j - M) v_j / den in double, keys in the order given: the same for every cut of a prompt.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "ref/lanes.h"

namespace synod::ref {

inline constexpr double kNoSink = -INFINITY;

// `keys` and `values` have one pointer per row, of d values. `sink` is a logit that has no value.
inline void attend(const float* q, std::span<const float* const> keys, std::span<const float* const> values,
                   double scale, double sink, int64_t d, float* out) {
  std::vector<double> logits;
  double top = sink;
  for (const float* key : keys) {
    logits.push_back(scale * dot(q, key, d));
    top = std::max(top, logits.back());
  }
  // An infinite sink takes all of the mass; exp(inf - inf) would be NaN.
  double mass = sink == kNoSink ? 0.0 : sink == top ? 1.0 : std::exp(sink - top);
  std::vector<double> sum(static_cast<size_t>(d), 0.0);
  for (size_t j = 0; j < keys.size(); ++j) {
    const double p = std::exp(logits[j] - top);
    mass += p;
    const float* value = values[j];
    for (int64_t i = 0; i < d; ++i) sum[static_cast<size_t>(i)] += p * value[i];
  }
  for (int64_t i = 0; i < d; ++i) out[i] = static_cast<float>(sum[static_cast<size_t>(i)] / mass);
}

}  // namespace synod::ref
