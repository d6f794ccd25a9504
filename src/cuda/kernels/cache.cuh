// Cache rows on the device: f32, f16, bf16 or Q8_0 values behind page tables.
#pragma once

#include "base/dtype.h"
#include "cuda/kernels/common.cuh"

namespace synod::cuda {

// Row indices fit 32 bits, whose division is far cheaper.
__device__ __forceinline__ std::byte* cache_row(const CacheTable& rows, int32_t seq, int64_t index) {
  const auto row = static_cast<uint32_t>(index), per_page = static_cast<uint32_t>(rows.rows_per_page);
  const uint32_t page = row / per_page;
  return rows.pages[seq * rows.pages_per_seq + page] + (row - page * per_page) * rows.row_bytes;
}

// Sequence and row of the n-th block of `ratio` tokens that the batch closes.
__device__ __forceinline__ void closed_block(const BatchArrays& batch, int ratio, int n, int32_t& seq,
                                             int64_t& row) {
  for (int s = 0; s < batch.n_sequences; ++s) {
    const int past = batch.past[s], total = past + batch.row_start[s + 1] - batch.row_start[s];
    const int first = past / ratio, count = total / ratio - first;
    if (n < count) {
      seq = s, row = first + n;
      return;
    }
    n -= count;
  }
  seq = 0, row = 0;
}

__device__ __forceinline__ float4 f16_values(const uint2& v) {
  return make_float4(f16_value(static_cast<uint16_t>(v.x)), f16_value(static_cast<uint16_t>(v.x >> 16)),
                     f16_value(static_cast<uint16_t>(v.y)), f16_value(static_cast<uint16_t>(v.y >> 16)));
}
__device__ __forceinline__ float4 bf16_values(const uint2& v) {
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000U),
                     __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000U));
}

// Four values of a row at column i (a multiple of 4).
__device__ __forceinline__ float4 load4(int32_t dtype, const std::byte* row, int i) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF32:
      return *reinterpret_cast<const float4*>(row + 4 * i);
    case DType::kF16:
      return f16_values(*reinterpret_cast<const uint2*>(row + 2 * i));
    case DType::kBF16:
      return bf16_values(*reinterpret_cast<const uint2*>(row + 2 * i));
    default: {  // Q8_0
      const std::byte* block = row + i / 32 * 34;
      const float d = f16_value(*reinterpret_cast<const uint16_t*>(block));
      const auto* q = reinterpret_cast<const int8_t*>(block + 2) + i % 32;
      return make_float4(d * static_cast<float>(q[0]), d * static_cast<float>(q[1]),
                         d * static_cast<float>(q[2]), d * static_cast<float>(q[3]));
    }
  }
}

// Four values as a row stores them, for loads of many before the first use: a type known to the compiler has
// no branch between two loads, and volatile loads stay where they are written.
struct F32Quad {
  static constexpr int kRegisters = 4;  // about, a power of two
  float4 v = {};
  __device__ __forceinline__ void load(int32_t, const std::byte* row, int i) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(row + 4 * i));
  }
  __device__ __forceinline__ float4 values() const { return v; }
};
template <DType kType>
struct HalfQuad {
  static constexpr int kRegisters = 2;
  uint2 v = {};
  __device__ __forceinline__ void load(int32_t, const std::byte* row, int i) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(row + 2 * i));
  }
  __device__ __forceinline__ float4 values() const {
    return kType == DType::kF16 ? f16_values(v) : bf16_values(v);
  }
};
struct Q8Quad {
  static constexpr int kRegisters = 4;
  uint16_t d = 0, low = 0, high = 0;  // blocks are aligned to two bytes only
  __device__ __forceinline__ void load(int32_t, const std::byte* row, int i) {
    const std::byte* block = row + i / 32 * 34;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(d) : "l"(block));
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(low) : "l"(block + 2 + i % 32));
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(high) : "l"(block + 4 + i % 32));
  }
  __device__ __forceinline__ float4 values() const {
    const float f = f16_value(d);
    return make_float4(f * static_cast<float>(static_cast<int8_t>(low)),
                       f * static_cast<float>(static_cast<int8_t>(low >> 8)),
                       f * static_cast<float>(static_cast<int8_t>(high)),
                       f * static_cast<float>(static_cast<int8_t>(high >> 8)));
  }
};
struct AnyQuad {  // of a type known at run time
  static constexpr int kRegisters = 8;
  float4 v = {};
  __device__ __forceinline__ void load(int32_t dtype, const std::byte* row, int i) {
    v = load4(dtype, row, i);
  }
  __device__ __forceinline__ float4 values() const { return v; }
};

// Stores x[0, n) as the values [column, column + n) of a row; `thread` of `threads` take part.
__device__ __forceinline__ void store_row(int32_t dtype, std::byte* row, int column, const float* x, int n,
                                          int thread, int threads, const StatusWord& status) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF32:
      for (int i = thread; i < n; i += threads) reinterpret_cast<float*>(row)[column + i] = x[i];
      return;
    case DType::kF16:
      for (int i = thread; i < n; i += threads) {
        reinterpret_cast<uint16_t*>(row)[column + i] = __half_as_ushort(__float2half_rn(x[i]));
      }
      return;
    case DType::kBF16:
      for (int i = thread; i < n; i += threads) {
        reinterpret_cast<uint16_t*>(row)[column + i] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
      }
      return;
    default:  // Q8_0: a thread per block
      for (int b = thread; b < n / 32; b += threads) {
        const float* v = x + 32 * b;
        std::byte* block = row + (column / 32 + b) * 34;
        float largest = 0.0F;
        bool finite = true;
        for (int i = 0; i < 32; ++i) {
          largest = fmaxf(largest, fabsf(v[i]));
          finite = finite && fabsf(v[i]) <= 3.402823466e38F;
        }
        const float d = largest / 127.0F;
        if (!finite || d > 65504.0F) {
          raise(status, 1);
          for (int i = 0; i < 34; ++i) block[i] = std::byte{0};
          continue;
        }
        float inverse = d == 0.0F ? 0.0F : 1.0F / d;
        if (!(inverse <= 3.402823466e38F)) inverse = 0.0F;
        *reinterpret_cast<uint16_t*>(block) = __half_as_ushort(__float2half_rn(d));
        for (int i = 0; i < 32; ++i) {
          reinterpret_cast<int8_t*>(block + 2)[i] = static_cast<int8_t>(roundf(v[i] * inverse));
        }
      }
  }
}

}  // namespace synod::cuda
