#include "engine/drafter.h"

#include <algorithm>
#include <bit>

namespace synod {

size_t NgramDrafter::slot(const int32_t* gram) const {
  uint64_t hash = 0;
  for (int64_t i = 0; i < kOrder; ++i) hash = (hash ^ static_cast<uint32_t>(gram[i])) * 0x9E3779B97F4A7C15U;
  return static_cast<size_t>(hash >> 32) & (next_.size() - 1);
}

void NgramDrafter::extend(std::span<const int32_t> ids) {
  const auto n = static_cast<int64_t>(ids.size());
  if (static_cast<size_t>(2 * n) > next_.size()) {
    next_.assign(std::bit_ceil(static_cast<size_t>(4 * std::max<int64_t>(n, 128))), -1);
    indexed_ = 0;
  }
  // The gram that ends the text has no continuation yet.
  for (int64_t end = std::max(indexed_, kOrder); end < n; ++end) {
    next_[slot(ids.data() + end - kOrder)] = static_cast<int32_t>(end);
  }
  indexed_ = std::max(indexed_, n);
}

std::vector<int32_t> NgramDrafter::draft(std::span<const int32_t> ids, int64_t most) {
  const auto n = static_cast<int64_t>(ids.size());
  if (n <= kOrder || next_.empty() || most <= 0) return {};
  const int32_t* gram = ids.data() + n - kOrder;
  const int64_t at = next_[slot(gram)];
  if (at < kOrder || at >= n || !std::equal(gram, gram + kOrder, ids.data() + at - kOrder)) return {};
  const int64_t end = std::min(n, at + most);
  return {ids.begin() + at, ids.begin() + end};
}

}  // namespace synod
