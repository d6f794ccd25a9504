// A stored weight matrix [n_out, n_in] as a checkpoint holds it: plain values, GGUF blocks, or codes with
// scales in other tensors. Every storage is row-wise, so a range of rows is again a Matrix over the same
// bytes: fused matrices are sliced, stacked experts are arrays of Matrix, nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"

namespace synod {

enum class Storage : uint8_t {
  kPlain,      // f32, f16, bf16, f64
  kBlock,      // a GGUF block type
  kFp8Block,   // E4M3 codes, one scale per tile of `tile_out` x `group` (edge tiles partial)
  kFp4,        // E2M1 pairs (low nibble first), one E8M0 scale per `group` inputs
  kNvFp4,      // E2M1 pairs, one E4M3 scale per `group` inputs, one f32 factor per matrix
  kMlxAffine,  // little-endian stream of `bits`-wide codes; value = scale * code + bias per `group` inputs
  kMxFp8,      // E4M3 codes, one E8M0 scale per `group` inputs
};
std::string_view name(Storage storage);

struct Matrix {
  Storage storage = Storage::kPlain;
  DType type = DType::kF32;  // of `data`: the plain or block type; kU8 where codes are packed
  int64_t n_out = 0;
  int64_t n_in = 0;
  const std::byte* data = nullptr;  // null in a dry run
  int64_t row_stride = 0;           // bytes from one row's codes to the next

  const std::byte* scales = nullptr;  // first scale of row 0 (or of the first tile row)
  const std::byte* biases = nullptr;  // kMlxAffine only, laid out like `scales`
  DType scale_type = DType::kF32;
  int64_t scale_stride = 0;  // bytes from one row's scales to the next (tile rows for kFp8Block)
  int64_t group = 0;         // inputs per scale
  int64_t tile_out = 0;      // kFp8Block: outputs per scale
  int64_t row_offset = 0;    // kFp8Block: index of row 0 inside its first tile (after slicing)
  int bits = 0;              // kMlxAffine
  // Multiplies every value: NVFP4's per-tensor factor. `global_divides` is compressed-tensors' convention.
  float global_scale = 1.0F;
  bool global_divides = false;
  std::string_view name;  // for messages; owned by the checkpoint

  explicit operator bool() const { return n_out > 0; }
  int64_t code_bytes() const;  // bytes of the codes of one row
  int64_t bytes() const;       // codes, scales and biases of all rows: what one pass over the matrix reads
  Matrix rows(int64_t begin, int64_t end) const;  // the matrix of output rows [begin, end)
};

// Makes a plain or block matrix of a 2-D tensor.
Matrix matrix_of(const Tensor& tensor);

// Decodes row `row` to f32 [n_in]. Exactly one rounding per value where the format has scales.
void decode_row(const Matrix& matrix, int64_t row, float* out);

}  // namespace synod
