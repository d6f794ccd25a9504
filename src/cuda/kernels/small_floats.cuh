// Rotation of a pair, and rounding to the grids of small floats.
#pragma once

#include "cuda/kernels/common.cuh"

namespace synod::cuda {

__device__ __forceinline__ void turn(float& a, float& b, float phase, bool inverse) {
  float s, c;
  sincosf(phase, &s, &c);
  if (inverse) s = -s;
  const float ta = a * c - b * s;
  b = b * c + a * s;
  a = ta;
}

__device__ __forceinline__ float power_of_two_scale(float a, float inverse_max) {
  const uint32_t bits = __float_as_uint(a * inverse_max);
  const int exponent = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  return ldexpf(1.0F, exponent);
}
__device__ __forceinline__ float to_e2m1(float v) {
  const float m = fabsf(v);
  if (v != v) return v;
  const float r = m <= 0.25F   ? 0.0F
                  : m < 0.75F  ? 0.5F
                  : m <= 1.25F ? 1.0F
                  : m < 1.75F  ? 1.5F
                  : m <= 2.5F  ? 2.0F
                  : m < 3.5F   ? 3.0F
                  : m <= 5.0F  ? 4.0F
                               : 6.0F;
  return copysignf(r, v);
}
// Nearest E4M3 value, ties to even, saturating at 448.
__device__ __forceinline__ float to_e4m3(float v) {
  if (v != v) return v;
  const float m = fminf(fabsf(v), 448.0F);
  // Step of the binade; below 2^-6 the grid is that of the subnormals, 2^-9.
  const int exponent = max(static_cast<int>(__float_as_uint(m) >> 23) - 127, -6);
  const float step = ldexpf(1.0F, exponent - 3);
  return copysignf(fminf(rintf(m / step) * step, 448.0F), v);
}

// Of a block of values: the least |value| that its scale is made for, the scale, and a value on the grid.
__device__ __forceinline__ float smallest_range(bool fp4) { return fp4 ? 6.0F * 0x1p-126F : 1e-4F; }
__device__ __forceinline__ float small_float_scale(float largest, bool fp4) {
  return power_of_two_scale(largest, fp4 ? 1.0F / 6.0F : 1.0F / 448.0F);
}
__device__ __forceinline__ float to_small_float(float v, float scale, bool fp4) {
  const float code = fp4 ? to_e2m1(v / scale) : to_e4m3(v / scale);
  return round_to_bf16(code * scale);
}

}  // namespace synod::cuda
