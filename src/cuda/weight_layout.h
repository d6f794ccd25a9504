// How stored matrices lie on the device: which codec and planes, bytes, alignment. Pure host logic.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/params.h"
#include "quant/matrix.h"

namespace synod::cuda {

// One plane: bytes [offset, offset + bytes) of every block (planar codecs), or of every row.
struct PlaneLayout {
  int32_t offset = 0;
  int32_t bytes = 0;
  int64_t stride = 0;  // bytes per row on the device
};

struct WeightLayout {
  Codec codec = Codec::kF32;
  int n_planes = 1;
  std::array<PlaneLayout, kMaxPlanes> planes;
  int32_t block_bytes = 0;  // of a planar codec; 0 = rows are copied as stored

  bool planar() const { return block_bytes > 0; }
};

// Layout of a plain or block matrix. Others (codes and scales in separate tensors) have codes, scales, biases
// as planes of their own; see layout_of().
WeightLayout layout_of(const Matrix& m);

// Bytes that `n_rows` rows take on the device: every plane starts at a multiple of kPlaneAlign.
inline constexpr int64_t kPlaneAlign = 256;
int64_t device_bytes(const WeightLayout& layout, int64_t n_rows, int64_t scale_rows);

// Rows of the scale tensor that rows [0, n_out) of the matrix touch.
int64_t scale_rows_of(const Matrix& m);
int64_t scale_row_bytes(const Matrix& m);

// The parameters of the codec and its planes at `base`.
DeviceMatrix describe(const Matrix& m, const WeightLayout& layout, int64_t n_rows, std::byte* base);

// True when matrices can be stacked by rows into one device matrix.
bool alike(const Matrix& a, const Matrix& b);

}  // namespace synod::cuda
