// Sums of products in double with a fixed order: element k goes to lane k mod 8, lanes are added as a tree.
// One (token, output) is always the same sequence of operations, whatever else the call computes; eight
// independent chains let the compiler use vector instructions.
#pragma once

#include <cstdint>

namespace synod::ref {

inline constexpr int64_t kLanes = 8;

inline double sum_lanes(const double (&s)[kLanes]) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

template <typename A, typename B>
double dot(const A* a, const B* b, int64_t n) {
  double sums[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i)
      sums[i] += static_cast<double>(a[k + i]) * static_cast<double>(b[k + i]);
  }
  for (int64_t i = 0; k < n; ++k, ++i) sums[i] += static_cast<double>(a[k]) * static_cast<double>(b[k]);
  return sum_lanes(sums);
}

}  // namespace synod::ref
