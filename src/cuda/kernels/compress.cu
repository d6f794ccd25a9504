// Compressors: the rows of state that tokens leave, and what a block of tokens goes through when it closes.
// Latency is all that counts here, so everything that no kernel writes (tables, norm weights, phases, page
// rows) is read before the wait.
#include <algorithm>

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/small_floats.cuh"

namespace synod::cuda {
namespace {

constexpr int kStateThreads = 256, kStateColumns = 4 * kStateThreads;

// A block per token and kStateColumns columns, four per thread.
__global__ void __launch_bounds__(kStateThreads) state_kernel(const __grid_constant__ StateProgram p) {
  const int64_t t = blockIdx.x;
  const auto block = static_cast<int>(blockIdx.y);
  int which = 0;
#pragma unroll
  for (int i = 1; i < kMaxStates; ++i) {
    if (i < p.n_items && block >= p.items[i].first_block) which = i;
  }
  const StateItem& item = p.items[which];
  const int i = (block - item.first_block) * kStateColumns + 4 * static_cast<int>(threadIdx.x);
  const int column = i - item.from;  // of the table
  const bool mine = i < item.x.d, adds = mine && column >= 0 && column < item.terms.d;
  const int32_t id = item.ids[t];
  const bool known = id >= 0 && id < item.table_rows;
  float4 term = make_float4(0, 0, 0, 0);
  if (adds && known) term = *reinterpret_cast<const float4*>(item.table + id * item.table_stride + column);
  std::byte* row = cache_row(item.rows, p.batch.sequence[t], p.batch.position[t]);
  begin();
  if (!mine) return;
  if (!known && i == 0) raise(p.status, 2);
  auto* x = reinterpret_cast<float4*>(row_of(item.x, t) + i);
  float4 v = *x;
  if (adds) {
    v.x += term.x, v.y += term.y, v.z += term.z, v.w += term.w;
    *x = v;
    *reinterpret_cast<float4*>(row_of(item.terms, t) + column) = term;
  }
  *reinterpret_cast<float4*>(row + 4 * static_cast<int64_t>(i)) = v;
}

// The tokens that a closing block pools.
struct PooledTokens {
  int32_t seq;
  int64_t row, first;
  int count, older;  // tokens from `first` on; those of the block before, which have the first lane
};
__device__ __forceinline__ PooledTokens pooled_tokens(const PoolParams& p, int n) {
  PooledTokens tokens;
  closed_block(p.batch, p.ratio, n, tokens.seq, tokens.row);
  tokens.older = p.overlap != 0 && tokens.row > 0 ? p.ratio : 0;
  tokens.first = tokens.row * p.ratio - tokens.older;
  tokens.count = p.ratio + tokens.older;
  return tokens;
}

// Channel i: the values weighted by the softmax of the scores. row(t) is the state of token first + t.
template <typename Row>
__device__ __forceinline__ float pool_channel(const PoolParams& p, const PooledTokens& tokens, int i,
                                              Row&& row) {
  constexpr int kAtOnce = 8;  // loads in flight
  const int d = p.out.d, lanes = p.overlap != 0 ? 2 : 1, count = tokens.count;
  float values[kAtOnce], scores[kAtOnce];
  const auto load = [&](int base) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int t = min(base + u, count - 1);
      const float* x = row(t) + (t < tokens.older ? 0 : lanes - 1) * d + i;
      values[u] = x[0], scores[u] = x[lanes * d];
    }
  };
  float top = -INFINITY, mass = 0.0F, sum = 0.0F;
  for (int base = 0; base < count; base += kAtOnce) {
    load(base);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) top = fmaxf(top, scores[u]);
  }
  for (int base = 0; base < count; base += kAtOnce) {
    if (count > kAtOnce) load(base);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (base + u >= count) break;
      const float e = expf(scores[u] - top);
      mass += e;
      sum = fmaf(e, values[u], sum);
    }
  }
  return sum / mass;
}

__global__ void __launch_bounds__(128) pool_kernel(const __grid_constant__ PoolParams p) {
  begin();
  const PooledTokens tokens = pooled_tokens(p, static_cast<int>(blockIdx.x));
  const int i = static_cast<int>(blockIdx.y * 128 + threadIdx.x);
  if (i >= p.out.d) return;
  row_of(p.out, blockIdx.x)[i] = pool_channel(p, tokens, i, [&](int t) {
    return reinterpret_cast<const float*>(cache_row(p.state, tokens.seq, tokens.first + t));
  });
}

// A block of threads per closing block and item, a thread per channel. The threads past the last channel add
// zeros, so that a result does not depend on the other item's width.
__global__ void __launch_bounds__(kWidestCompressed)
    compress_kernel(const __grid_constant__ CompressProgram p) {
  extern __shared__ const float* state_rows[];
  __shared__ float values[kWidestCompressed];
  __shared__ float scratch[32];
  const CompressItem& item = p.items[blockIdx.y];
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int d = item.pool.out.d, n = static_cast<int>(blockIdx.x);
  const bool mine = tid < d, fp4 = item.round_fp4 != 0;
  const PooledTokens tokens = pooled_tokens(item.pool, n);
  for (int t = tid; t < tokens.count; t += threads) {
    state_rows[t] = reinterpret_cast<const float*>(cache_row(item.pool.state, tokens.seq, tokens.first + t));
  }
  std::byte* row = cache_row(item.rows, tokens.seq, tokens.row);
  const float weight = mine && item.weight != nullptr ? item.weight[tid] : 1.0F;
  const int pair = (tid - item.first) / 2;
  const bool turns = mine && tid >= item.first && pair < item.n_pairs;
  float sine = 0.0F, cosine = 1.0F;
  if (turns) sincosf(static_cast<float>(item.positions[n]) * item.freqs[pair], &sine, &cosine);
  __syncthreads();
  begin();
  float v = mine ? pool_channel(item.pool, tokens, tid, [&](int t) { return state_rows[t]; }) : 0.0F;
  const float squares = block_sum(v * v, scratch);
  v = v * (item.factor / sqrtf(squares / static_cast<float>(d) + item.eps)) * weight;
  const float partner = __shfl_xor_sync(0xffffffffU, v, 1);
  if (turns) v = tid % 2 == 0 ? v * cosine - partner * sine : v * cosine + partner * sine;
  if (item.hadamard != 0) {
    for (int half = 1; half < d; half *= 2) {
      float other = __shfl_xor_sync(0xffffffffU, v, half % 32);
      if (half >= 32) {
        values[tid] = v;
        __syncthreads();
        other = mine ? values[tid ^ half] : 0.0F;
        __syncthreads();
      }
      v = (tid & half) != 0 ? other - v : v + other;
    }
    v *= 1.0F / sqrtf(static_cast<float>(d));
  }
  if (item.round_block > 0) {
    const bool rounds = tid < item.round_count;
    float largest = warp_max(rounds ? fabsf(v) : 0.0F);
    if (tid % 32 == 0) scratch[tid / 32] = largest;
    __syncthreads();
    const int first = tid / item.round_block * item.round_block / 32;
    largest = smallest_range(fp4);
    for (int w = first; w < min(first + item.round_block / 32, threads / 32); ++w) {
      largest = fmaxf(largest, scratch[w]);
    }
    if (rounds) v = to_small_float(v, small_float_scale(largest, fp4), fp4);
  }
  values[tid] = v;
  if (mine && item.pool.out.p != nullptr) row_of(item.pool.out, n)[tid] = v;
  __syncthreads();
  store_row(item.rows.dtype, row, 0, values, d, tid, threads, p.status);
}

}  // namespace

Launch compress_pool(const PoolParams& p) {
  const dim3 grid(static_cast<unsigned>(p.n_rows), static_cast<unsigned>(div_up(p.out.d, 128)));
  return make_launch("compress_pool", pool_kernel, grid, 128, p);
}
Launch state_program(StateProgram p) {
  int blocks = 0;
  for (int i = 0; i < p.n_items; ++i) {
    p.items[i].first_block = blocks;
    blocks += div_up(p.items[i].x.d, kStateColumns);
  }
  const dim3 grid(static_cast<unsigned>(p.n_tokens), static_cast<unsigned>(blocks));
  return make_launch("states", state_kernel, grid, kStateThreads, p);
}
Launch compress_program(const CompressProgram& p) {
  int widest = 0, tokens = 0;
  for (int i = 0; i < p.n_items; ++i) {
    widest = std::max(widest, p.items[i].pool.out.d);
    tokens = std::max(tokens, 2 * p.items[i].pool.ratio);
  }
  const dim3 grid(static_cast<unsigned>(p.items[0].pool.n_rows), static_cast<unsigned>(p.n_items));
  return make_launch("compress", compress_kernel, grid, static_cast<unsigned>(widest), p,
                     sizeof(const float*) * static_cast<size_t>(tokens));
}

}  // namespace synod::cuda
