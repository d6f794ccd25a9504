// Single values of the block types that keep their stored form: correct for every type, fast for none.
// Formulas as in quant/*_blocks.cpp, evaluated in f32 in the same order.
#pragma once

#include "base/dtype.h"
#include "cuda/kernels/common.cuh"

namespace synod::cuda {

__device__ __forceinline__ uint32_t u16_at(const uint8_t* p) {
  return p[0] | static_cast<uint32_t>(p[1]) << 8;
}
__device__ __forceinline__ uint32_t u32_at(const uint8_t* p) { return u16_at(p) | u16_at(p + 2) << 16; }
__device__ __forceinline__ float f16_at(const uint8_t* p) {
  return f16_value(static_cast<uint16_t>(u16_at(p)));
}

__device__ __forceinline__ float e4m3_of(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15U, mantissa = code & 7U;
  float m = exponent != 0 ? __uint_as_float((exponent + 120) << 23 | mantissa << 20)
                          : static_cast<float>(mantissa) * 0x1p-9F;
  if ((code & 0x7fU) == 0x7fU) m = __uint_as_float(0x7fc00000U);
  return (code & 0x80U) != 0 ? -m : m;
}
__device__ __forceinline__ float e8m0_of(uint32_t e) {  // 2^(e - 127); 0 is 2^-127, 255 is NaN
  if (e == 255) return __uint_as_float(0x7fc00000U);
  return e == 0 ? __uint_as_float(0x00400000U) : __uint_as_float(e << 23);
}
__device__ __forceinline__ float e8m0_half_of(uint32_t e) {
  return __uint_as_float(e < 2 ? 0x00200000U << e : (e - 1) << 23);
}
__device__ __forceinline__ float e2m1_of(uint32_t nibble) {
  const uint32_t m = nibble & 7U;
  const float v =
      m < 2 ? 0.5F * static_cast<float>(m) : __uint_as_float((m / 2 + 126U) << 23 | (m & 1U) << 22);
  return (nibble & 8U) != 0 ? -v : v;
}
// Twice E2M1 as an integer; code 8 is +0.
__device__ __forceinline__ int e2m1_doubled(uint32_t nibble) {
  const uint32_t m = nibble & 7U;
  const int v = m < 4 ? static_cast<int>(m) : m == 4 ? 4 : m == 5 ? 6 : m == 6 ? 8 : 12;
  return (nibble & 8U) != 0 ? -v : v;
}
__device__ __forceinline__ int iq4_value(uint32_t nibble) {
  const uint32_t words[4] = {0xBFAD9881U, 0xF6EADDCFU, 0x26190D01U, 0x71594535U};
  return static_cast<int8_t>(words[nibble / 4] >> (8 * (nibble % 4)));
}
__device__ __forceinline__ uint32_t signs_of(uint32_t seven_bits) {
  return seven_bits | (__popc(seven_bits) & 1U) << 7;
}
// {scale, min} of the 32 values g of Q4_K and Q5_K from 12 packed bytes.
__device__ __forceinline__ void k_scale_min_of(const uint8_t* s, int g, int& scale, int& min) {
  if (g < 4) {
    scale = s[g] & 63, min = s[g + 4] & 63;
  } else {
    scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    min = (s[g + 4] >> 4) | (s[g] >> 6) << 4;
  }
}
__device__ __forceinline__ float signed_entry(float scale, const uint8_t* coordinates, int j,
                                              uint32_t signs) {
  const float v = scale * static_cast<float>(coordinates[j]);
  return (signs >> j & 1U) != 0 ? -v : v;
}

// Value i of block `b` of type `type`. `book` is the codebook of the IQ types.
__device__ inline float block_value(DType type, const uint8_t* b, int i, const void* book_of_type) {
  const auto* book = static_cast<const uint8_t*>(book_of_type);
  const int k = i / 32, g = i / 8, l = g % 4, j = i % 8;
  switch (type) {
    case DType::kQ4_1: {
      const int n = i < 16 ? b[4 + i] & 15 : b[4 + i - 16] >> 4;
      return static_cast<float>(n) * f16_at(b) + f16_at(b + 2);
    }
    case DType::kQ5_1: {
      const int n = (i < 16 ? b[8 + i] & 15 : b[8 + i - 16] >> 4) | static_cast<int>(u32_at(b + 4) >> i & 1U)
                                                                        << 4;
      return static_cast<float>(n) * f16_at(b) + f16_at(b + 2);
    }
    case DType::kQ8_1:
      return static_cast<float>(static_cast<int8_t>(b[4 + i])) * f16_at(b);
    case DType::kQ8_K:
      return __uint_as_float(u32_at(b)) * static_cast<float>(static_cast<int8_t>(b[4 + i]));
    case DType::kQ3_K: {
      const int s16 = i / 16, r = i % 16;
      const uint8_t* scales = b + 96;
      const int low = s16 < 8 ? scales[s16] & 15 : scales[s16 - 8] >> 4;
      const int code_scale = low | ((scales[8 + s16 % 4] >> (2 * (s16 / 4))) & 3) << 4;
      const float scale = f16_at(b + 108) * static_cast<float>(code_scale - 32);
      const uint8_t* q = b + 32 + 32 * (s16 / 8) + 16 * (s16 % 2);
      const uint8_t* high = b + 16 * (s16 % 2);
      const int code = (q[r] >> (2 * (s16 % 8 / 2)) & 3) - ((high[r] >> (s16 / 2) & 1) != 0 ? 0 : 4);
      return scale * static_cast<float>(code);
    }
    case DType::kTQ1_0: {
      constexpr uint32_t kPowers = 0x1B090301U;  // 1, 3, 9, 27; then 81
      int byte, power;
      if (i < 160) {
        byte = b[i % 32], power = i / 32;
      } else if (i < 240) {
        byte = b[32 + (i - 160) % 16], power = (i - 160) / 16;
      } else {
        byte = b[48 + (i - 240) % 4], power = (i - 240) / 4;
      }
      const uint32_t factor = power == 4 ? 81U : kPowers >> (8 * power) & 255U;
      const uint32_t trit = (static_cast<uint32_t>(byte) * factor & 255U) * 3U >> 8;
      return static_cast<float>(static_cast<int>(trit) - 1) * f16_at(b + 52);
    }
    case DType::kTQ2_0: {
      const int q = b[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
      return static_cast<float>(q - 1) * f16_at(b + 64);
    }
    case DType::kQ1_0: {
      const float d = f16_at(b);
      return (b[2 + i / 8] >> (i % 8) & 1) != 0 ? d : -d;
    }
    case DType::kQ2_0:
      return static_cast<float>((b[2 + i / 4] >> (2 * (i % 4)) & 3) - 1) * f16_at(b);
    case DType::kNVFP4: {
      const int s = i / 16, r = i % 16;
      const uint32_t code = b[s];
      const float scale = code == 0x7f ? 0.0F : code == 0xff ? 240.0F : e4m3_of(code & 0x7fU) * 0.5F;
      const uint32_t pair = b[4 + 8 * s + r % 8];
      return scale * static_cast<float>(e2m1_doubled(r < 8 ? pair & 15U : pair >> 4));
    }
    case DType::kIQ4_XS: {
      const int low = (b[4 + k / 2] >> (4 * (k % 2))) & 15;
      const int scale = low | static_cast<int>(u16_at(b + 2) >> (2 * k) & 3U) << 4;
      const uint32_t pair = b[8 + 16 * k + i % 16];
      return f16_at(b) * static_cast<float>(scale - 32) *
             static_cast<float>(iq4_value(i % 32 < 16 ? pair & 15U : pair >> 4));
    }
    case DType::kIQ2_XS: {
      const uint32_t q = u16_at(b + 2 + 2 * g);
      const uint32_t code = b[66 + g / 4] >> (l < 2 ? 0 : 4) & 15U;
      const float scale = f16_at(b) * (0.5F + static_cast<float>(code)) * 0.25F;
      return signed_entry(scale, book + 8 * (q & 511U), j, signs_of(q >> 9));
    }
    case DType::kIQ2_S: {
      const uint32_t code = b[74 + k] >> (l < 2 ? 0 : 4) & 15U;
      const float scale = f16_at(b) * (0.5F + static_cast<float>(code)) * 0.25F;
      const uint32_t index = b[2 + g] | (b[66 + k] >> (2 * l) & 3U) << 8;
      return signed_entry(scale, book + 8 * index, j, b[34 + g]);
    }
    case DType::kIQ3_XXS: {
      const uint32_t w = u32_at(b + 66 + 4 * k);
      const float scale = f16_at(b) * (0.5F + static_cast<float>(w >> 28)) * 0.5F;
      const uint32_t index = b[2 + 8 * k + 2 * l + j / 4];
      const float v = scale * static_cast<float>(book[4 * index + j % 4]);
      return (signs_of(w >> (7 * l) & 127U) >> j & 1U) != 0 ? -v : v;
    }
    case DType::kIQ3_S: {
      const int code = b[106 + k / 2] >> (4 * (k % 2)) & 15;
      const float scale = f16_at(b) * static_cast<float>(1 + 2 * code);
      const uint32_t index = b[2 + 2 * g + j / 4] | (b[66 + k] >> (2 * l + j / 4) & 1U) << 8;
      const float v = scale * static_cast<float>(book[4 * index + j % 4]);
      return (b[74 + g] >> j & 1) != 0 ? -v : v;
    }
    case DType::kIQ1_S: {
      const uint32_t h = u16_at(b + 34 + 2 * k);
      const float scale = f16_at(b) * static_cast<float>(2 * (h >> 12 & 7U) + 1);
      const uint32_t index = b[2 + g] | (h >> (3 * l) & 7U) << 8;
      return scale * (static_cast<float>(static_cast<int8_t>(book[8 * index + j])) +
                      ((h >> 15) != 0 ? -0.125F : 0.125F));
    }
    case DType::kIQ1_M: {
      const uint8_t* s = b + 48;
      const uint32_t d = u16_at(s) >> 12 | (u16_at(s + 2) >> 8 & 0xf0U) | (u16_at(s + 4) >> 4 & 0xf00U) |
                         (u16_at(s + 6) & 0xf000U);
      const uint32_t y = b[32 + g / 2] >> (4 * (g % 2)) & 15U;
      const int code = u16_at(s + 2 * (k / 2)) >> (6 * (k % 2) + 3 * (l / 2)) & 7;
      const float scale = f16_value(static_cast<uint16_t>(d)) * static_cast<float>(2 * code + 1);
      const uint32_t index = b[g] | (y & 7U) << 8;
      return scale * (static_cast<float>(static_cast<int8_t>(book[8 * index + j])) +
                      ((y & 8U) != 0 ? -0.125F : 0.125F));
    }
    default:
      return __uint_as_float(0x7fc00000U);
  }
}

}  // namespace synod::cuda
