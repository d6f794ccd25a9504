// Passes over a vocabulary's logits, written so that compilers vectorise them for any instruction set and so
// that they give the same bits everywhere: no libm, fixed lanes.
#pragma once

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

// e^x for x <= 0, relative error below 2e-7; 0 below -87 and for NaN. x = n ln 2 + r, |r| <= ln 2 / 2, and
// e^r by its Taylor series to r^7 / 7! (the remainder is under 6e-9).
inline float exp_negative(float x) {
  constexpr float kLog2E = 1.44269504F, kLn2High = 0.693145752F, kLn2Low = 1.42860677e-6F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
  const float clamped = x > -87.0F ? x : -87.0F;
  const float n = (clamped * kLog2E + kRound) - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  const float value = p * scale;
  return x > -87.0F ? value : 0.0F;
}

// sum of e^(x - offset) over all values, in 8 lanes of f64. Values above `offset` count as equal to it.
inline double sum_exp(std::span<const float> x, float offset) {
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::array<float, kLanes> e{};
  size_t i = 0;
  const auto term = [offset](float v) {
    const float d = v - offset;
    return exp_negative(d < 0.0F ? d : (d >= 0.0F ? 0.0F : -std::numeric_limits<float>::infinity()));
  };
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) e[lane] = term(x[i + lane]);
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(e[lane]);
  }
  for (; i < x.size(); ++i) sums[0] += static_cast<double>(term(x[i]));
  double sum = 0.0;
  for (const double s : sums) sum += s;
  return sum;
}

}  // namespace synod
