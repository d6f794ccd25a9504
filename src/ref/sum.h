// Sums of the reference: float64 in a fixed number of lanes, combined in a fixed order, so that a result
// depends on its operands alone and compilers may still vectorize.
#pragma once

#include <array>
#include <cstdint>

namespace synod::ref {

inline constexpr int64_t kLanes = 8;

inline double combine(const std::array<double, kLanes>& s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

inline double dot(const float* a, const float* b, int64_t n) {
  std::array<double, kLanes> sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sum[static_cast<size_t>(lane)] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) {
    sum[static_cast<size_t>(lane)] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return combine(sum);
}

inline double sum_of_squares(const float* a, int64_t n) { return dot(a, a, n); }

}  // namespace synod::ref
