// Block codecs: one decoder per stored type, encoders for the types that conversion writes.
// Formulas: GGUF block layouts; evaluated in f32 in the written order, so results equal ggml's bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace synod {

// Decodes `n` values (a whole number of blocks) of `type` stored at `in`. Integer types convert to f32.
// `type` must satisfy can_decode(type).
void decode(DType type, const std::byte* in, int64_t n, float* out);
bool can_decode(DType type);

// Encodes `n` values (a whole number of blocks). Only types with can_encode(type). Q8_0 throws Error
// (kNumeric) on values that are not finite or whose scale exceeds f16.
void encode(DType type, const float* in, int64_t n, std::byte* out);
bool can_encode(DType type);

// False when a block holds a scale that no writer makes: non-finite f16 scales, E8M0 255, NVFP4 scale bytes
// >= 0x7F; and NaN codes of plain f8_e4m3 and f8_e8m0. `first_bad` (may be null) receives the index of the
// first such block; untouched otherwise.
bool valid_blocks(DType type, std::span<const std::byte> blocks, int64_t* first_bad);

// Scalars of the small float formats.
float e4m3_to_f32(uint8_t code);    // "fn" variant: no infinities, 0x7F and 0xFF are NaN
uint8_t f32_to_e4m3(float value);   // nearest, ties to even, saturates at +-448
float e8m0_to_f32(uint8_t code);    // 2^(code - 127); code 0 is 2^-127; 255 is NaN
float e2m1_to_f32(uint8_t nibble);  // 0 .5 1 1.5 2 3 4 6, bit 3 is the sign

}  // namespace synod
