// Passes over a vocabulary's logits, written so that compilers vectorise them for any instruction set and so
// that they give the same bits everywhere: no libm, fixed lanes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace synod {

// Largest value; NaN is skipped, -inf when there is nothing else.
inline float largest(std::span<const float> x) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> best;
  best.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = x[i + lane] > best[lane] ? x[i + lane] : best[lane];
    }
  }
  for (; i < x.size(); ++i) best[0] = x[i] > best[0] ? x[i] : best[0];
  float result = best[0];
  for (const float v : best) result = v > result ? v : result;
  return result;
}

inline constexpr float kLeastExponent = -87.0F;  // e^-87 = 1.6e-38, the end of normal numbers

// e^x for x in [kLeastExponent, 0], relative error below 2e-7. x = n ln 2 + r, |r| <= ln 2 / 2, and e^r by
// its Taylor series to r^7 / 7! (the remainder is under 6e-9).
inline float exp_in_range(float x) {
  constexpr float kLog2E = 1.44269504F, kLn2High = 0.693145752F, kLn2Low = 1.42860677e-6F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // n sits in the low bits of `shifted`; moved to the exponent it scales by 2^n.
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound)) << 23;
  return std::bit_cast<float>(std::bit_cast<int32_t>(p) + exponent);
}

// e^x for x <= 0; below kLeastExponent, and for NaN, as there.
inline float exp_negative(float x) { return exp_in_range(x > kLeastExponent ? x : kLeastExponent); }

inline constexpr size_t kExpBlock = 256;

// out[i] = e^((x[i] - top) * scale) for x[i] <= top; returns the sum: f32 in lanes, f64 over blocks of
// kExpBlock, whose sums go to `block_sums` if it is given.
inline double exp_all(std::span<const float> x, float top, float scale, float* out,
                      double* block_sums = nullptr) {
  constexpr size_t kBlock = kExpBlock;
  double sum = 0.0;
  for (size_t begin = 0; begin < x.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, x.size() - begin);
    const float* in = x.data() + begin;
    float* p = out + begin;
    // Two loops: in one, compilers turn the clamp into a branch and give up.
    for (size_t i = 0; i < n; ++i) {
      const float v = (in[i] - top) * scale;
      p[i] = v > kLeastExponent ? v : kLeastExponent;
    }
    for (size_t i = 0; i < n; ++i) p[i] = exp_in_range(p[i]);
    std::array<float, 8> lanes{};  // 32 terms each: their rounding stays below 2e-6 of the block
    size_t i = 0;
    for (; i + lanes.size() <= n; i += lanes.size()) {
      for (size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] += p[i + lane];
    }
    for (; i < n; ++i) lanes[0] += p[i];
    double block = 0.0;
    for (const float lane : lanes) block += static_cast<double>(lane);
    if (block_sums != nullptr) block_sums[begin / kBlock] = block;
    sum += block;
  }
  return sum;
}

}  // namespace synod
