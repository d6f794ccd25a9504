// Passes over a vocabulary's logits, written so that compilers vectorise them for any instruction set and so
// that they give the same bits everywhere: no libm, fixed lanes, no fused multiply-add.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace synod {

// Largest value; NaN is skipped, -inf when there is nothing else.
float largest(std::span<const float> x);

inline constexpr size_t kScanBlock = 64;  // logits that are looked at together

// out[b] = largest of x[b * kScanBlock, ...), for every block; returns the largest of all.
float largest_of_blocks(std::span<const float> x, float* out);

// Writes first + i for every x[i] >= least, in order, and returns how many; `out` has room for x.size().
size_t at_least(std::span<const float> x, float least, uint32_t first, uint32_t* out);

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
// kExpBlock.
double exp_all(std::span<const float> x, float top, float scale, float* out);
// The same sum, and the sum of every block, without the values.
double exp_sums(std::span<const float> x, float top, float scale, double* block_sums);

}  // namespace synod
