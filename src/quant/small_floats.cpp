// Scalar conversions of the 4- and 8-bit floats.
#include "quant/small_floats.h"

#include "quant/codec.h"

namespace synod {

float e4m3_to_f32(uint8_t code) { return kE4m3Values[code]; }

uint8_t f32_to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7fU;
  if (magnitude >= 0x43e00000U) return sign | 0x7eU;  // 448 and above
  if (magnitude < 0x3c800000U) {  // below 2^-6: adding 2^14 aligns the mantissa at 2^-9 and rounds it
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000U));
  }
  const uint32_t rounded = magnitude + 0x7ffffU + (magnitude >> 20 & 1U);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

float e8m0_to_f32(uint8_t code) {
  if (code == 0) return 0x1p-127F;  // subnormal in f32
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

float e2m1_to_f32(uint8_t nibble) { return kE2m1Values[nibble & 15U]; }

}  // namespace synod
