// The inline and table forms of the 4- and 8-bit floats, for decoders and kernels.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace synod {

// E4M3 "fn": bias 7, subnormal step 2^-9, no infinities, NaN where all magnitude bits are set.
constexpr float e4m3_value(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
  if (exponent != 0) {
    const auto bits = static_cast<uint32_t>((exponent + 120) << 23 | mantissa << 20);
    magnitude = std::bit_cast<float>(bits);
  }
  if ((code & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = e4m3_value(static_cast<uint8_t>(i));
  return values;
}();

inline constexpr std::array<float, 16> kE2m1Values = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                      -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// Half of the unsigned E4M3 scale of a GGUF NVFP4 block. Bit 7 is ignored, 0x7F is zero, as in ggml; 0xFF
// reads as 480 / 2 (files that hold it are refused).
constexpr float nvfp4_half_scale(uint8_t code) {
  if (code == 0x7f) return 0.0F;
  if (code == 0xff) return 240.0F;
  return e4m3_value(code & 0x7f) * 0.5F;
}

// 2^(e - 128): half of an E8M0 scale, which meets doubled E2M1 codes. 0 and 1 are subnormal; 255 is 2^127.
constexpr float e8m0_half(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000U << e : static_cast<uint32_t>(e - 1) << 23;
  return std::bit_cast<float>(bits);
}

}  // namespace synod
