// Spreads the items of an op over the pool where that pays.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/pool.h"

namespace synod::cpu {

// Below this much work waking the other threads costs more than it saves.
inline constexpr double kMinParallelUs = 20.0;

// body(item) for every item in [0, n_items). `work_us`: estimated time of all items on one thread.
template <typename Body>
void for_items(Pool& pool, int64_t n_items, double work_us, const Body& body) {
  if (n_items < 2 || work_us < kMinParallelUs || pool.n_threads() == 1) {
    for (int64_t i = 0; i < n_items; ++i) body(i);
  } else {
    pool.run(n_items, [&body](int64_t item, int) { body(item); });
  }
}

// body(begin, end) for ranges that cover [0, n). `grain` elements per range; `element_us`: time of one.
template <typename Body>
void for_ranges(Pool& pool, int64_t n, int64_t grain, double element_us, const Body& body) {
  grain = std::max<int64_t>(1, grain);
  for_items(pool, (n + grain - 1) / grain, static_cast<double>(n) * element_us,
            [&](int64_t item) { body(item * grain, std::min(n, (item + 1) * grain)); });
}

}  // namespace synod::cpu
