// Device helpers that all kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <limits>

#include "cuda/kernels/params.h"

namespace synod::cuda {

// Programmatic dependent launch: a kernel may start while its predecessor drains. Everything but constants is
// read after `begin()`. Dependents are released right after our own wait, so at most two kernels overlap.
__device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <typename Params>
Launch make_launch(const char* name, void (*kernel)(Params), dim3 grid, dim3 block, const Params& p,
                   size_t shared_bytes = 0) {
  Launch l;
  l.function = reinterpret_cast<const void*>(kernel);
  l.name = name;
  l.grid = {grid.x, grid.y, grid.z};
  l.block = {block.x, block.y, block.z};
  l.shared_bytes = static_cast<uint32_t>(shared_bytes);
  l.params.resize(sizeof(Params));
  std::memcpy(l.params.data(), &p, sizeof(Params));
  return l;
}

template <typename T>
__host__ __device__ constexpr T div_up(T a, T b) {
  return (a + b - 1) / b;
}

__device__ __forceinline__ float* row_of(const View& v, int64_t r) {
  return v.n1 == 1 ? v.p + r * v.s0 : v.p + r / v.n1 * v.s0 + r % v.n1 * v.s1;
}

// kWide neighbouring values, read and written at once.
template <int kWide>
struct RowPiece {
  float v[kWide];
  __device__ __forceinline__ void load_from(const float* p) {
    if constexpr (kWide == 4) {
      const float4 f = *reinterpret_cast<const float4*>(p);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
      v[0] = *p;
    }
  }
  __device__ __forceinline__ void store_to(float* p) const {
    if constexpr (kWide == 4) {
      *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      *p = v[0];
    }
  }
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffU, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, o));
  return v;
}
__device__ __forceinline__ int warp_sum(int v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffU, v, o);
  return v;
}

// Sum over the block in warp order; `scratch` has 32 floats. All threads get the result.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  const int warps = static_cast<int>(blockDim.x + 31) / 32;
  if (warps == 1) return v;
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = static_cast<int>(threadIdx.x % 32) < warps ? scratch[threadIdx.x % 32] : 0.0F;
  sum = warp_sum(sum);
  __syncthreads();
  return sum;
}

__device__ __forceinline__ void raise(const StatusWord& status, uint32_t bit) {
  if (atomicOr(status.bits, bit) == 0) status.bits[1] = status.label + 1;
}

__device__ __forceinline__ float silu(float z) { return z / (1.0F + expf(-z)); }
__device__ __forceinline__ float gelu_tanh(float z) {
  const float inner = 0.7978845608028654F * (z + 0.044715F * z * z * z);
  return 0.5F * z * (1.0F + tanhf(inner));
}
// act(min(gate, limit)) * clamp(up, -limit, limit) * weight; comparisons keep a NaN.
__device__ __forceinline__ float glu(float gate, float up, int act, float limit, float weight) {
  if (limit > 0.0F) {
    if (gate > limit) gate = limit;
    if (up > limit) up = limit;
    if (up < -limit) up = -limit;
  }
  return (act == 0 ? silu(gate) : gelu_tanh(gate)) * up * weight;
}

__device__ __forceinline__ float bf16_value(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ __forceinline__ float f16_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ float round_to_bf16(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }

}  // namespace synod::cuda
