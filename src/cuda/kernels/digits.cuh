// Activations as two base-254 digits: q = 254 * high + low, |q| <= 32380, x = s * q with one s per 32 values.
// Integer products with weight codes are exact; the error of x is 2^-16 of the block's largest value.
#pragma once

#include "cuda/kernels/common.cuh"

namespace synod::cuda {

inline constexpr float kLargestDigits = 32380.0F;

// How a block of 32 values becomes digits, from the bits of the largest |value|. Bits order like values, and
// NaN and infinity above all others: they make the scale NaN, which reaches the check of the next decision. A
// scale that underflows is zero: the block is then zero to f32 accuracy of any sum it enters.
struct DigitScale {
  float scale, inverse;
  __device__ __forceinline__ explicit DigitScale(uint32_t largest_bits) {
    const float largest = __uint_as_float(largest_bits);
    const bool finite = largest_bits < 0x7f800000U, some = finite && largest > 1e-33F;
    scale = !finite ? __uint_as_float(0x7fc00000U) : some ? largest * (1.0F / kLargestDigits) : 0.0F;
    inverse = some ? kLargestDigits * __frcp_rn(largest) : 0.0F;
  }
  // The low digit is q - 254 * high.
  __device__ __forceinline__ int code(float v) const {
    return inverse == 0.0F ? 0 : __float2int_rn(v * inverse);
  }
  static __device__ __forceinline__ int high(int q) {
    return __float2int_rn(static_cast<float>(q) * (1.0F / 254.0F));
  }
  __device__ __forceinline__ float4 meta(int first, int second) const {
    return make_float4(scale, scale * static_cast<float>(first + second), scale * static_cast<float>(first),
                       scale * static_cast<float>(second));
  }
};
__device__ __forceinline__ uint32_t magnitude_bits(float v) { return __float_as_uint(v) & 0x7fffffffU; }
__device__ __forceinline__ float4* digit_meta(uint8_t* row, int n_in, int block) {
  return reinterpret_cast<float4*>(row + 2 * static_cast<int64_t>(n_in)) + block;
}

// The lanes of a warp hold the 32 values of block `block`; all lanes take part.
__device__ __forceinline__ void write_digits(uint8_t* row, int n_in, int block, float x) {
  const int lane = threadIdx.x % 32;
  const DigitScale scale(__reduce_max_sync(0xffffffffU, magnitude_bits(x)));
  const int q = scale.code(x), high = DigitScale::high(q);
  row[block * 32 + lane] = static_cast<uint8_t>(high);
  row[n_in + block * 32 + lane] = static_cast<uint8_t>(q - 254 * high);
  const int both = __reduce_add_sync(0xffffffffU, q);
  const int first = __reduce_add_sync(0xffffffffU, lane < 16 ? q : 0);
  if (lane == 0) *digit_meta(row, n_in, block) = scale.meta(first, both - first);
}

// The same for 8 neighbouring lanes with four values each. The lanes of `mask`, groups of eight, take part,
// and those with `there` write.
__device__ __forceinline__ void write_digits(uint8_t* row, int n_in, int block, const float4& x, bool there,
                                             uint32_t mask) {
  const int eighth = threadIdx.x % 8;
  uint32_t largest =
      max(max(magnitude_bits(x.x), magnitude_bits(x.y)), max(magnitude_bits(x.z), magnitude_bits(x.w)));
#pragma unroll
  for (int o = 4; o > 0; o >>= 1) largest = max(largest, __shfl_xor_sync(mask, largest, o));
  const DigitScale scale(largest);
  uint32_t highs = 0, lows = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int q = scale.code(i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w), high = DigitScale::high(q);
    highs |= static_cast<uint32_t>(high & 255) << (8 * i);
    lows |= static_cast<uint32_t>((q - 254 * high) & 255) << (8 * i);
    sum += q;
  }
  sum += __shfl_xor_sync(mask, sum, 1);
  sum += __shfl_xor_sync(mask, sum, 2);  // of 16 values
  const int other = __shfl_xor_sync(mask, sum, 4);
  if (!there) return;
  reinterpret_cast<uint32_t*>(row + block * 32)[eighth] = highs;
  reinterpret_cast<uint32_t*>(row + n_in + block * 32)[eighth] = lows;
  if (eighth == 0) *digit_meta(row, n_in, block) = scale.meta(sum, other);
}

}  // namespace synod::cuda
