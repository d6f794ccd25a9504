// Cache rows on the device: f32, f16, bf16 or Q8_0 values behind page tables.
#pragma once

#include "base/dtype.h"
#include "cuda/kernels/common.cuh"

namespace synod::cuda {

__device__ __forceinline__ std::byte* cache_row(const CacheTable& rows, int32_t seq, int64_t index) {
  std::byte* page = rows.pages[seq * rows.pages_per_seq + index / rows.rows_per_page];
  return page + index % rows.rows_per_page * rows.row_bytes;
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

// Four values of a row at column i (a multiple of 4).
__device__ __forceinline__ float4 load4(int32_t dtype, const std::byte* row, int i) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF32:
      return *reinterpret_cast<const float4*>(row + 4 * i);
    case DType::kF16: {
      const uint2 v = *reinterpret_cast<const uint2*>(row + 2 * i);
      return make_float4(f16_value(static_cast<uint16_t>(v.x)), f16_value(static_cast<uint16_t>(v.x >> 16)),
                         f16_value(static_cast<uint16_t>(v.y)), f16_value(static_cast<uint16_t>(v.y >> 16)));
    }
    case DType::kBF16: {
      const uint2 v = *reinterpret_cast<const uint2*>(row + 2 * i);
      return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000U),
                         __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000U));
    }
    default: {  // Q8_0
      const std::byte* block = row + i / 32 * 34;
      const float d = f16_value(*reinterpret_cast<const uint16_t*>(block));
      const auto* q = reinterpret_cast<const int8_t*>(block + 2) + i % 32;
      return make_float4(d * static_cast<float>(q[0]), d * static_cast<float>(q[1]),
                         d * static_cast<float>(q[2]), d * static_cast<float>(q[3]));
    }
  }
}

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
