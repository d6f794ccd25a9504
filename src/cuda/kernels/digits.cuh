// Activations as two base-254 digits: q = 254 * high + low, |q| <= 32380, x = s * q with one s per 32 values.
// Integer products with weight codes are exact; the error of x is 2^-16 of the block's largest value.
#pragma once

#include "cuda/kernels/common.cuh"

namespace synod::cuda {

inline constexpr float kLargestDigits = 32380.0F;

// The lanes of a warp hold the 32 values of block `block`; all lanes take part.
__device__ __forceinline__ void write_digits(uint8_t* row, int n_in, int block, float x) {
  const int lane = threadIdx.x % 32;
  const bool finite = fabsf(x) <= 3.402823466e38F;
  const bool all_finite = __all_sync(0xffffffffU, finite) != 0;
  const float largest = warp_max(fabsf(x));
  float scale = largest * (1.0F / kLargestDigits);
  // A scale that underflows is zero: the block is then zero to f32 accuracy of any sum it enters.
  const float inverse = largest > 1e-33F ? kLargestDigits / largest : 0.0F;
  if (inverse == 0.0F) scale = 0.0F;
  if (!all_finite) scale = __uint_as_float(0x7fc00000U);  // reaches the check of the next decision
  const int q = all_finite ? __float2int_rn(x * inverse) : 0;
  const int high = __float2int_rn(static_cast<float>(q) * (1.0F / 254.0F));
  const int low = q - 254 * high;
  row[block * 32 + lane] = static_cast<uint8_t>(high);
  row[n_in + block * 32 + lane] = static_cast<uint8_t>(low);
  int sum = q;
#pragma unroll
  for (int o = 8; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffU, sum, o);  // of 16 lanes
  const int other = __shfl_xor_sync(0xffffffffU, sum, 16);
  if (lane == 0) {
    auto* meta = reinterpret_cast<float4*>(row + 2 * static_cast<int64_t>(n_in)) + block;
    *meta = make_float4(scale, scale * static_cast<float>(sum + other), scale * static_cast<float>(sum),
                        scale * static_cast<float>(other));
  }
}

// The same for 8 neighbouring lanes with four values each.
__device__ __forceinline__ void write_digits(uint8_t* row, int n_in, int block, const float4& x) {
  const int lane = threadIdx.x % 32, eighth = lane % 8;
  const uint32_t mask = 255U << (lane - eighth);
  const float largest4 = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  // fmaxf drops a NaN: every value is looked at.
  const bool finite = fabsf(x.x) <= 3.402823466e38F && fabsf(x.y) <= 3.402823466e38F &&
                      fabsf(x.z) <= 3.402823466e38F && fabsf(x.w) <= 3.402823466e38F;
  const bool all_finite = __all_sync(mask, finite) != 0;
  float largest = largest4;
#pragma unroll
  for (int o = 4; o > 0; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(mask, largest, o));
  float scale = largest * (1.0F / kLargestDigits);
  const float inverse = largest > 1e-33F ? kLargestDigits / largest : 0.0F;
  if (inverse == 0.0F) scale = 0.0F;
  if (!all_finite) scale = __uint_as_float(0x7fc00000U);
  uint32_t highs = 0, lows = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float v = i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
    const int q = all_finite ? __float2int_rn(v * inverse) : 0;
    const int high = __float2int_rn(static_cast<float>(q) * (1.0F / 254.0F));
    highs |= static_cast<uint32_t>(high & 255) << (8 * i);
    lows |= static_cast<uint32_t>((q - 254 * high) & 255) << (8 * i);
    sum += q;
  }
  reinterpret_cast<uint32_t*>(row + block * 32)[eighth] = highs;
  reinterpret_cast<uint32_t*>(row + n_in + block * 32)[eighth] = lows;
  sum += __shfl_xor_sync(mask, sum, 1);
  sum += __shfl_xor_sync(mask, sum, 2);  // of 16 values
  const int other = __shfl_xor_sync(mask, sum, 4);
  if (eighth == 0) {
    auto* meta = reinterpret_cast<float4*>(row + 2 * static_cast<int64_t>(n_in)) + block;
    *meta = make_float4(scale, scale * static_cast<float>(sum + other), scale * static_cast<float>(sum),
                        scale * static_cast<float>(other));
  }
}

}  // namespace synod::cuda
