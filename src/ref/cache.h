// Reads and writes cache rows in their stored type.
#pragma once

#include <cstring>
#include <vector>

#include "ops/cache_rows.h"
#include "quant/codec.h"

namespace synod::ref {

// Row `index` of sequence `seq` as f32. Plain f32 rows are returned where they lie; others are decoded into
// `buffer`.
inline const float* read_row(const CacheRows& rows, int64_t seq, int64_t index, std::vector<float>& buffer) {
  const std::byte* stored = rows.row(seq, index);
  if (rows.type == DType::kF32) return reinterpret_cast<const float*>(stored);
  buffer.resize(static_cast<size_t>(rows.row_dim));
  decode(rows.type, stored, rows.row_dim, buffer.data());
  return buffer.data();
}

inline void write_row(const CacheRows& rows, int64_t seq, int64_t index, const float* x) {
  encode(rows.type, x, rows.row_dim, rows.row(seq, index));
}

}  // namespace synod::ref
