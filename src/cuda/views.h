// Tensors as kernels see them.
#pragma once

#include "base/tensor.h"
#include "cuda/kernels/params.h"

namespace synod::cuda {

// Innermost vectors of a tensor of rank 1 to 3 (rank 4: contiguous in its two middle dimensions).
inline View view_of(const Tensor& t) {
  View v;
  v.p = t.as<float>();
  v.d = static_cast<int32_t>(t.inner());
  if (t.rank >= 2) v.s0 = t.stride[0] / 4;
  if (t.rank == 3) v.n1 = static_cast<int32_t>(t.dim(1)), v.s1 = t.stride[1] / 4;
  if (t.rank == 4) {
    SYNOD_ASSERT(t.stride[1] == t.dim(2) * t.stride[2]);
    v.n1 = static_cast<int32_t>(t.dim(1) * t.dim(2)), v.s1 = t.stride[2] / 4;
  }
  return v;
}

inline bool same(const View& a, const View& b) {
  return a.p == b.p && a.s0 == b.s0 && a.s1 == b.s1 && a.n1 == b.n1 && a.d == b.d;
}

struct Extent {
  const std::byte *begin = nullptr, *end = nullptr;
  bool overlaps(const Extent& o) const { return begin < o.end && o.begin < end; }
};
// All bytes of a tensor; empty extents overlap nothing.
inline Extent memory_of(const Tensor& t) {
  if (t.rank == 0 || t.size() == 0) return {};
  int64_t last = 0;
  for (int i = 0; i + 1 < t.rank; ++i) last += (t.dim(i) - 1) * t.stride[static_cast<size_t>(i)];
  return {t.data, t.data + last + row_bytes(t.type, t.inner())};
}
inline Extent extent_of(const View& v, int64_t n_rows) {
  const int64_t last = n_rows - 1;
  const auto* begin = reinterpret_cast<const std::byte*>(v.p);
  return {begin, begin + 4 * (last / v.n1 * v.s0 + (v.n1 > 1 ? (v.n1 - 1) * v.s1 : 0) + v.d)};
}

}  // namespace synod::cuda
