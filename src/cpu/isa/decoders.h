// Vector decoding of rows whose codes have scales in other tensors, for the float contract. What an
// instruction set provides, which matrices it may be used for, and the scalars of a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "quant/matrix.h"
#include "quant/small_floats.h"

namespace synod::cpu {

// Writes row `row` as decode_row would, bit for bit (NaN for NaN). `table`: see Decoder.
using RowDecoder = void (*)(const Matrix& matrix, int64_t row, const std::byte* table, float* out);

struct Decoders {
  void (*fp4_table)(const Matrix& matrix, std::byte* table);
  RowDecoder fp4;                  // kFp4, kNvFp4: n_in and group multiples of 16
  RowDecoder nvfp4_block;          // GGUF blocks
  RowDecoder fp8;                  // kFp8Block, kMxFp8
  RowDecoder (*affine)(int bits);  // null where there is none; n_in and group multiples of 16
};

struct Decoder {
  void (*prepare)(const Matrix& matrix, std::byte* table) = nullptr;  // fills kTableBytes; may be null
  RowDecoder row = nullptr;                                           // null: decode_row
  static constexpr int64_t kTableBytes = 256 * 16 * int64_t{sizeof(float)};
};
Decoder find_decoder(const Decoders& isa, const Matrix& matrix);

// Scale code of FP4 storages to f32, as decode_row reads it.
float fp4_scale(const Matrix& matrix, uint8_t code);

inline float e8m0_scale(uint8_t code) {
  if (code == 0) return 0x1p-127F;
  return std::bit_cast<float>(code == 255 ? 0x7fc00000U : static_cast<uint32_t>(code) << 23);
}

// One row of codes, scales and biases.
struct CodeRow {
  const uint8_t* codes;
  const uint8_t* scales = nullptr;
  const uint8_t* biases = nullptr;

  CodeRow(const Matrix& m, int64_t row)
      : codes(reinterpret_cast<const uint8_t*>(m.data) + row * m.row_stride) {
    const int64_t scale_row = m.storage == Storage::kFp8Block ? (m.row_offset + row) / m.tile_out : row;
    if (m.scales != nullptr) scales = reinterpret_cast<const uint8_t*>(m.scales) + scale_row * m.scale_stride;
    if (m.biases != nullptr) biases = reinterpret_cast<const uint8_t*>(m.biases) + scale_row * m.scale_stride;
  }

  float scale(const Matrix& m, int64_t g) const {
    return m.storage == Storage::kMxFp8 ? e8m0_scale(scales[g]) : value(m.scale_type, scales, g);
  }
  float bias(const Matrix& m, int64_t g) const { return value(m.scale_type, biases, g); }

  static bool can_read(DType type) {
    return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16 || type == DType::kF8E8M0;
  }

 private:
  static float value(DType type, const uint8_t* values, int64_t g) {
    if (type == DType::kF32) {
      float v;
      __builtin_memcpy(&v, values + 4 * g, sizeof(v));
      return v;
    }
    if (type == DType::kF8E8M0) return e8m0_scale(values[g]);
    uint16_t bits;
    __builtin_memcpy(&bits, values + 2 * g, sizeof(bits));
    return type == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
};

}  // namespace synod::cpu
