// RoundTrip's FP8 grid as arithmetic on whole vectors: the same values as the op of the reference.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace synod::cpu {

// Nearest E4M3 value, ties to even; |v| is cut at 448. A NaN stays one.
inline float nearest_e4m3(float v) {
  const float m = std::min(std::fabs(v), 448.0F);
  const auto bits = std::bit_cast<uint32_t>(m);
  // 3 of 23 fraction bits stay; below 2^-6 the step is 2^-9, which adding 2^-9 * 2^23 * 1.5 rounds to.
  const auto normal = std::bit_cast<float>((bits + 0x7ffffU + (bits >> 20 & 1U)) & 0xfff00000U);
  constexpr float kMagic = 0x1.8p14F;
  const float small = (m + kMagic) - kMagic;
  const float rounded = std::copysign(m < 0x1p-6F ? small : normal, v);
  return std::isnan(v) ? v : rounded;
}

// One block in place: s = 2^ceil(log2(max(|x|, 1e-4) / 448)), x = e4m3(x / s) * s. The result has few enough
// bits to be a bf16 value already.
inline void round_fp8_block(float* x, int64_t n) {
  float a = 1e-4F;
  for (int64_t i = 0; i < n; ++i) a = std::max(a, std::fabs(x[i]));
  const auto bits = std::bit_cast<uint32_t>(a * (1.0F / 448.0F));
  const int exponent = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  const float scale = std::ldexp(1.0F, exponent);
  for (int64_t i = 0; i < n; ++i) x[i] = nearest_e4m3(x[i] / scale) * scale;
}

}  // namespace synod::cpu
