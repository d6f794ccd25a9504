// The k largest of n scores, ties to the lower index: the one selection rule of routers and the indexer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace synod::ref {

// Ascending indices. Scores must not be NaN: the order would be undefined.
inline std::vector<int32_t> top_k(std::span<const float> scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float sa = scores[static_cast<size_t>(a)], sb = scores[static_cast<size_t>(b)];
    return sa > sb || (sa == sb && a < b);
  };
  const auto end = order.begin() + std::min(k, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), end, order.end(), better);
  order.erase(end, order.end());
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace synod::ref
