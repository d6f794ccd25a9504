// What happens to one head of one token: rotation, norms, cache rows, small-float round trips, Hadamard.
#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/small_floats.cuh"

namespace synod::cuda {
namespace {

constexpr int kHeadWarps = 4;

// One warp per (token, head).
__global__ void __launch_bounds__(32 * kHeadWarps) rope_kernel(const __grid_constant__ RopeParams p) {
  begin();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32;
  if (r >= p.n_rows) return;
  float* x = row_of(p.x, r) + p.first;
  const auto position = static_cast<float>(p.positions[r / p.x.n1]);
  const int step = p.interleaved != 0 ? 2 : 1, partner = p.interleaved != 0 ? 1 : p.n_pairs;
  for (int i = static_cast<int>(threadIdx.x % 32); i < p.n_pairs; i += 32) {
    turn(x[i * step], x[i * step + partner], position * p.freqs[i], p.inverse != 0);
  }
}

// One warp per (token, head, chain of items). Latency is all that counts: weights and frequencies are loaded
// before the wait, and everything of the first item in one go after it.
__global__ void __launch_bounds__(32 * kHeadWarps) head_kernel(const __grid_constant__ HeadProgram p) {
  extern __shared__ float rows[];        // [kHeadWarps][p.widest]
  constexpr int kHeld = 16, kPairs = 8;  // values and pairs of a lane in registers
  const int64_t w = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32;
  float* h = rows + threadIdx.x / 32 * p.widest;
  const auto chain = static_cast<int>(w % p.n_chains), head = static_cast<int>(w / p.n_chains % p.max_heads);
  const int64_t t = w / p.n_chains / p.max_heads;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float weight[kHeld], freqs[kPairs];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) weight[j] = 1.0F;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) freqs[j] = lane + 32 * j < p.n_pairs ? p.freqs[lane + 32 * j] : 0.0F;
  const auto load_weight = [&](const HeadItem& item) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = lane + 32 * j;
      weight[j] = item.weight != nullptr && i < item.out.d ? item.weight[i] : 1.0F;
    }
  };
  int loaded = -1;  // item whose weights are held
  for (int n = p.n_items - 1; n >= 0; --n) {
    if (p.items[n].chain == chain) loaded = n;
  }
  if (loaded >= 0) load_weight(p.items[loaded]);
  begin();
  if (t >= p.n_tokens) return;
  const int32_t position = p.positions == nullptr ? 0 : p.positions[t];
  for (int n = 0; n < p.n_items; ++n) {
    const HeadItem& item = p.items[n];
    if (item.chain != chain || head >= item.n_heads) continue;
    const int64_t offset = t * item.out.s0 + head * item.out.s1;
    const float* x = item.x + offset;
    float* out = item.out.p + offset;
    const int d = item.out.d;
    std::byte* row = nullptr;
    float held[kHeld], sum = 0.0F;
    for (int base = 0; base < d; base += 32 * kHeld) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int i = base + lane + 32 * j;
        held[j] = i < d ? x[i] : 0.0F;
      }
      if (base == 0 && item.store != 0) row = cache_row(item.rows, p.batch.sequence[t], p.batch.position[t]);
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int i = base + lane + 32 * j;
        if (i < d) h[i] = held[j];
        sum = fmaf(held[j], held[j], sum);
      }
    }
    if (item.norm != 0) {
      const float factor = item.factor / sqrtf(warp_sum(sum) / static_cast<float>(d) + item.eps);
      if (loaded != n) load_weight(item);
      loaded = n;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        const int i = lane + 32 * j;
        if (i < d) h[i] = h[i] * factor * weight[j];
      }
      for (int i = lane + 32 * kHeld; i < d; i += 32) {
        h[i] = h[i] * factor * (item.weight == nullptr ? 1.0F : item.weight[i]);
      }
    }
    __syncwarp();
    if (item.rotate != 0) {
      float* turned = h + item.first;
      const int step = p.interleaved != 0 ? 2 : 1, partner = p.interleaved != 0 ? 1 : p.n_pairs;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int i = lane + 32 * j;
        if (i >= p.n_pairs) break;
        turn(turned[i * step], turned[i * step + partner], static_cast<float>(position) * freqs[j], false);
      }
      for (int i = lane + 32 * kPairs; i < p.n_pairs; i += 32) {
        turn(turned[i * step], turned[i * step + partner], static_cast<float>(position) * p.freqs[i], false);
      }
      __syncwarp();
    }
#pragma unroll 4
    for (int i = lane; i < d; i += 32) out[i] = h[i];
    if (item.store != 0) store_row(item.rows.dtype, row, head * d, h, d, lane, 32, p.status);
    __syncwarp();
  }
}

// One warp per block of values; the values after `count` are copied by the warps past the last block.
__global__ void __launch_bounds__(256) round_trip_kernel(const __grid_constant__ RoundTripParams p) {
  begin();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int blocks = div_up(p.count, p.block) + 1;
  const int64_t w = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int64_t r = w / blocks;
  const auto b = static_cast<int>(w % blocks);
  if (r >= p.n_rows) return;
  const float* x = row_of(p.x, r);
  float* out = row_of(p.out, r);
  if (b == blocks - 1) {
    if (out == x) return;
    for (int i = p.count + lane; i < p.x.d; i += 32) out[i] = x[i];
    return;
  }
  const int first = b * p.block, end = min(first + p.block, p.count);
  float a = smallest_range(p.fp4 != 0);
  for (int i = first + lane; i < end; i += 32) a = fmaxf(a, fabsf(x[i]));
  a = warp_max(a);
  const float scale = small_float_scale(a, p.fp4 != 0);
  for (int i = first + lane; i < end; i += 32) out[i] = to_small_float(x[i], scale, p.fp4 != 0);
}

// One warp per row; the row lies in shared memory.
__global__ void __launch_bounds__(32) hadamard_kernel(const __grid_constant__ HadamardParams p) {
  extern __shared__ float v[];
  begin();
  float* x = row_of(p.x, blockIdx.x);
  const int d = p.x.d, lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < d; i += 32) v[i] = x[i];
  __syncwarp();
  for (int half = 1; half < d; half *= 2) {
    for (int j = lane; j < d / 2; j += 32) {
      const int i = j / half * 2 * half + j % half;
      const float a = v[i], b = v[i + half];
      v[i] = a + b;
      v[i + half] = a - b;
    }
    __syncwarp();
  }
  const float norm = 1.0F / sqrtf(static_cast<float>(d));
  for (int i = lane; i < d; i += 32) x[i] = v[i] * norm;
}

// One block of 128 threads per row.
__global__ void __launch_bounds__(128) cache_write_kernel(const __grid_constant__ CacheWriteParams p) {
  begin();
  int32_t seq;
  int64_t index;
  if (p.tokens_per_row == 1) {
    seq = p.batch.sequence[blockIdx.x];
    index = p.batch.position[blockIdx.x];
  } else {
    closed_block(p.batch, p.tokens_per_row, static_cast<int>(blockIdx.x), seq, index);
  }
  const float* x = row_of(p.x, blockIdx.x);
  std::byte* row = cache_row(p.rows, seq, index);
  store_row(p.rows.dtype, row, 0, x, p.rows.row_dim, static_cast<int>(threadIdx.x), 128, p.status);
}

__global__ void __launch_bounds__(256) gather_kernel(const __grid_constant__ GatherParams p) {
  begin();
  const int r = static_cast<int>(blockIdx.x) / p.per_row, s = static_cast<int>(blockIdx.x) % p.per_row;
  const int row = p.rows[r];
  const bool known = row >= 0 && row < p.n_tokens;
  if (!known && threadIdx.x == 0) raise(p.status, 2);
  const float* x = row_of(p.x, known ? static_cast<int64_t>(row) * p.per_row + s : 0);
  float* out = row_of(p.out, blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < p.x.d; i += 256) out[i] = known ? x[i] : 0.0F;
}

// Larger value first, then the lower index. NaN beats everything, so that it is noticed.
__device__ __forceinline__ uint64_t arg_max_key(float v, uint32_t index) {
  const uint32_t bits = __float_as_uint(v);
  uint32_t key = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  if (v != v) key = 0xffffffffU;
  if (v == 0.0F) key = 0x80000000U;  // -0 equals +0
  return static_cast<uint64_t>(key) << 32 | (0xffffffffU - index);
}
__device__ __forceinline__ uint64_t block_max(uint64_t key) {
  __shared__ uint64_t scratch[32];
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    const uint64_t other = __shfl_xor_sync(0xffffffffU, key, o);
    key = other > key ? other : key;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = key;
  __syncthreads();
  key = threadIdx.x < blockDim.x / 32 ? scratch[threadIdx.x] : 0;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    const uint64_t other = __shfl_xor_sync(0xffffffffU, key, o);
    key = other > key ? other : key;
  }
  return key;
}

__global__ void __launch_bounds__(256) arg_max_kernel(const __grid_constant__ ArgMaxParams p) {
  begin();
  const float* x = row_of(p.x, blockIdx.y);
  const int d = p.x.d, part = div_up(d, p.n_parts);
  const int first = static_cast<int>(blockIdx.x) * part, end = min(first + part, d);
  uint64_t best = 0;
  for (int i = first + static_cast<int>(threadIdx.x); i < end; i += 256) {
    const uint64_t key = arg_max_key(x[i], static_cast<uint32_t>(i));
    best = key > best ? key : best;
  }
  best = block_max(best);
  if (threadIdx.x == 0) p.partial[static_cast<int64_t>(blockIdx.y) * p.n_parts + blockIdx.x] = best;
}

__global__ void __launch_bounds__(256) arg_max_final_kernel(const __grid_constant__ ArgMaxParams p) {
  begin();
  uint64_t best = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.n_parts; i += 256) {
    const uint64_t key = p.partial[static_cast<int64_t>(blockIdx.x) * p.n_parts + i];
    best = key > best ? key : best;
  }
  best = block_max(best);
  if (threadIdx.x != 0) return;
  const auto key = static_cast<uint32_t>(best >> 32);
  // Order-preserving keys of -inf (nothing finite), +inf and NaN.
  const bool decided = key > 0x007fffffU && key < 0xff800000U;
  if (!decided) raise(p.status, 1);
  p.out[blockIdx.x] = decided ? static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(best)) : 0;
}

}  // namespace

Launch rope(const RopeParams& p) {
  return make_launch("rope", rope_kernel, static_cast<unsigned>(div_up<int64_t>(p.n_rows, kHeadWarps)),
                     32 * kHeadWarps, p);
}
Launch head_program(const HeadProgram& p) {
  const int64_t warps = static_cast<int64_t>(p.n_tokens) * p.max_heads * p.n_chains;
  return make_launch("heads", head_kernel, static_cast<unsigned>(div_up<int64_t>(warps, kHeadWarps)),
                     32 * kHeadWarps, p, sizeof(float) * kHeadWarps * static_cast<size_t>(p.widest));
}
Launch round_trip(const RoundTripParams& p) {
  const int64_t warps = p.n_rows * (div_up(p.count, p.block) + 1);
  return make_launch("round_trip", round_trip_kernel, static_cast<unsigned>(div_up<int64_t>(warps, 8)), 256,
                     p);
}
Launch hadamard(const HadamardParams& p) {
  return make_launch("hadamard", hadamard_kernel, static_cast<unsigned>(p.n_rows), 32, p,
                     static_cast<size_t>(p.x.d) * sizeof(float));
}
Launch cache_write(const CacheWriteParams& p) {
  return make_launch("cache_write", cache_write_kernel, static_cast<unsigned>(p.n_rows), 128, p);
}
Launch gather_rows(const GatherParams& p) {
  return make_launch("gather_rows", gather_kernel, static_cast<unsigned>(p.n * p.per_row), 256, p);
}
Launch arg_max_parts(const ArgMaxParams& p) {
  const dim3 grid(static_cast<unsigned>(p.n_parts), static_cast<unsigned>(p.n_rows));
  return make_launch("arg_max", arg_max_kernel, grid, 256, p);
}
Launch arg_max_final(const ArgMaxParams& p) {
  return make_launch("arg_max_final", arg_max_final_kernel, static_cast<unsigned>(p.n_rows), 256, p);
}

}  // namespace synod::cuda
