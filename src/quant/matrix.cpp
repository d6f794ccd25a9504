// Decoding and slicing of stored matrices. The reference for every matrix kernel.
#include "quant/matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/small_floats.h"

namespace synod {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_scales(Storage storage) { return storage != Storage::kPlain && storage != Storage::kBlock; }

// Scale formats that the storage fixes, whatever integer type the file declares for them.
DType stored_scale_type(const Matrix& m) {
  switch (m.storage) {
    case Storage::kFp4:
    case Storage::kMxFp8:
      return DType::kF8E8M0;
    case Storage::kNvFp4:
      return DType::kF8E4M3;
    default:
      return m.scale_type;
  }
}

// Rows of the scale tensor that the matrix touches.
int64_t scale_rows(const Matrix& m) {
  if (m.storage != Storage::kFp8Block) return m.n_out;
  return m.n_out == 0 ? 0 : (m.row_offset + m.n_out - 1) / m.tile_out + 1;
}

// Index of the scale row of `row`, counted from `scales`.
int64_t scale_row(const Matrix& m, int64_t row) {
  return m.storage == Storage::kFp8Block ? (m.row_offset + row) / m.tile_out : row;
}

float scalar(DType type, const std::byte* values, int64_t index) {
  float value;
  decode(type, values + index * info(type).block_bytes, 1, &value);
  return value;
}

// Calls run(begin, end, scale, index of the scale in its row) for the groups of one row; the last may be
// short.
template <typename Run>
void for_groups(const Matrix& m, const std::byte* scales, Run run) {
  SYNOD_ASSERT(m.group > 0 && scales != nullptr);
  const DType type = stored_scale_type(m);
  for (int64_t begin = 0, g = 0; begin < m.n_in; begin += m.group, ++g) {
    run(begin, std::min(begin + m.group, m.n_in), scalar(type, scales, g), g);
  }
}

void decode_fp8(const Matrix& m, const std::byte* codes, const std::byte* scales, float* out) {
  for_groups(m, scales, [&](int64_t begin, int64_t end, float scale, int64_t) {
    for (int64_t i = begin; i < end; ++i) out[i] = kE4m3Values[std::to_integer<uint8_t>(codes[i])] * scale;
  });
}

// E2M1 times the scale is exact in f32 (short of overflow).
void decode_fp4(const Matrix& m, const std::byte* codes, const std::byte* scales, float* out) {
  for_groups(m, scales, [&](int64_t begin, int64_t end, float scale, int64_t) {
    for (int64_t i = begin; i < end; ++i) {
      const auto pair = std::to_integer<uint8_t>(codes[i / 2]);
      out[i] = kE2m1Values[i % 2 == 0 ? pair & 15U : pair >> 4] * scale;
    }
  });
}

// Eight codes of `bits` fill `bits` bytes, so eight at a time never straddle a 64-bit word.
void decode_affine(const Matrix& m, const std::byte* codes, const std::byte* scales, const std::byte* biases,
                   float* out) {
  SYNOD_ASSERT(m.bits >= 1 && m.bits <= 8 && m.group % 8 == 0 && m.n_in % 8 == 0 && biases != nullptr);
  const uint64_t mask = (uint64_t{1} << m.bits) - 1;
  for_groups(m, scales, [&](int64_t begin, int64_t end, float scale, int64_t g) {
    const float bias = scalar(m.scale_type, biases, g);
    for (int64_t i = begin; i < end; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, codes + i / 8 * m.bits, static_cast<size_t>(m.bits));
      for (int64_t j = 0; j < 8; ++j, word >>= m.bits) {
        out[i + j] = scale * static_cast<float>(word & mask) + bias;
      }
    }
  });
}

void apply_global(const Matrix& m, float* out) {
  if (m.global_scale == 1.0F) return;
  for (int64_t i = 0; i < m.n_in; ++i) {
    out[i] = m.global_divides ? out[i] / m.global_scale : out[i] * m.global_scale;
  }
}

bool is_plain_float(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kF64;
}

}  // namespace

std::string_view name(Storage storage) {
  constexpr std::array<std::string_view, 7> kNames = {"plain", "block",      "fp8_block", "fp4",
                                                      "nvfp4", "mlx_affine", "mxfp8"};
  return kNames[static_cast<size_t>(storage)];
}

int64_t Matrix::code_bytes() const {
  switch (storage) {
    case Storage::kPlain:
    case Storage::kBlock:
      return row_bytes(type, n_in);
    case Storage::kFp8Block:
    case Storage::kMxFp8:
      return n_in;
    case Storage::kFp4:
    case Storage::kNvFp4:
      return divide_up(n_in, 2);
    case Storage::kMlxAffine:
      return divide_up(n_in * bits, 8);
  }
  return 0;
}

int64_t Matrix::bytes() const {
  int64_t total = n_out * code_bytes();
  if (!has_scales(storage)) return total;
  const int64_t scale_bytes =
      scale_rows(*this) * divide_up(n_in, group) * info(stored_scale_type(*this)).block_bytes;
  total += scale_bytes;
  if (storage == Storage::kMlxAffine) total += scale_bytes;
  return total;
}

Matrix Matrix::rows(int64_t begin, int64_t end) const {
  SYNOD_ASSERT(begin >= 0 && begin <= end && end <= n_out);
  Matrix m = *this;
  m.n_out = end - begin;
  if (m.data != nullptr) m.data += begin * row_stride;
  if (!has_scales(storage)) return m;
  const int64_t skipped = scale_row(*this, begin) * scale_stride;
  if (m.scales != nullptr) m.scales += skipped;
  if (m.biases != nullptr) m.biases += skipped;
  if (storage == Storage::kFp8Block) m.row_offset = (row_offset + begin) % tile_out;
  return m;
}

Matrix matrix_of(const Tensor& tensor) {
  if (tensor.rank != 2) {
    bad_file("{}: expected a matrix, got shape {}", tensor.name, shape_string(tensor));
  }
  const bool block = is_block_type(tensor.type);
  if (!block && !is_plain_float(tensor.type)) {
    bad_file("{}: expected floats or a block type, got {} without scales", tensor.name,
             synod::name(tensor.type));
  }
  if (tensor.inner() % info(tensor.type).block_values != 0) {
    bad_file("{}: rows of {} values are not whole blocks of {} ({})", tensor.name, tensor.inner(),
             info(tensor.type).block_values, synod::name(tensor.type));
  }
  Matrix m;
  m.storage = block ? Storage::kBlock : Storage::kPlain;
  m.type = tensor.type;
  m.n_out = tensor.dim(0);
  m.n_in = tensor.inner();
  m.data = tensor.data;
  m.row_stride = tensor.stride[0];
  m.name = tensor.name;
  return m;
}

void decode_row(const Matrix& matrix, int64_t row, float* out) {
  SYNOD_ASSERT(row >= 0 && row < matrix.n_out && matrix.data != nullptr);
  const std::byte* codes = matrix.data + row * matrix.row_stride;
  const int64_t scale_begin = has_scales(matrix.storage) ? scale_row(matrix, row) * matrix.scale_stride : 0;
  const std::byte* scales = matrix.scales == nullptr ? nullptr : matrix.scales + scale_begin;
  const std::byte* biases = matrix.biases == nullptr ? nullptr : matrix.biases + scale_begin;
  switch (matrix.storage) {
    case Storage::kPlain:
    case Storage::kBlock:
      decode(matrix.type, codes, matrix.n_in, out);
      break;
    case Storage::kFp8Block:
    case Storage::kMxFp8:
      decode_fp8(matrix, codes, scales, out);
      break;
    case Storage::kFp4:
    case Storage::kNvFp4:
      decode_fp4(matrix, codes, scales, out);
      break;
    case Storage::kMlxAffine:
      decode_affine(matrix, codes, scales, biases, out);
      break;
  }
  apply_global(matrix, out);
}

}  // namespace synod
