// Rows of one sequence as f32, decoded once per call when they are stored in another type.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "ops/cache_rows.h"
#include "quant/codec.h"

namespace synod::ref {

class CacheReader {
 public:
  // Rows [first, end) of sequence `seq`; none of their pages may be gone.
  CacheReader(const CacheRows& rows, int64_t seq, int64_t first, int64_t end)
      : rows_(rows), seq_(seq), first_(first), end_(end) {
    if (rows.type == DType::kF32) return;
    decoded_.resize(static_cast<size_t>((end - first) * rows.row_dim));
    for (int64_t r = first; r < end; ++r) {
      decode(rows.type, stored(r), rows.row_dim, decoded_.data() + (r - first) * rows.row_dim);
    }
  }

  const float* row(int64_t r) const {
    if (rows_.type == DType::kF32) return reinterpret_cast<const float*>(stored(r));
    SYNOD_ASSERT(r >= first_ && r < end_);
    return decoded_.data() + (r - first_) * rows_.row_dim;
  }

 private:
  const std::byte* stored(int64_t r) const {
    SYNOD_ASSERT(r >= first_ && r < end_);
    const RowTable& table = rows_.sequences[static_cast<size_t>(seq_)];
    SYNOD_ASSERT(table.pages[static_cast<size_t>(r / rows_.rows_per_page)] != nullptr);
    return rows_.row(seq_, r);
  }

  CacheRows rows_;
  int64_t seq_, first_, end_;
  std::vector<float> decoded_;
};

}  // namespace synod::ref
