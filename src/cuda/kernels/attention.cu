// Attention of single queries over split keys. A block takes one split of one query for kHeads heads that
// share keys; its warps take every eighth key in turn, and their states are added in warp order. The last
// block of a query combines its splits. Splits start at absolute positions and their size follows the query's
// own length, so neither chunking nor the batch changes a result.
#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/digits.cuh"

namespace synod::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kBatchKeys = 64;  // keys whose rows are looked up together
constexpr float kLog2E = 1.4426950408889634F;

// The keys of one query: rows [first, position] of the window, then n_more compressed rows.
struct Keys {
  int64_t first, end;  // window rows
  int64_t n_more;
  int64_t split;  // keys per split
  int64_t window_splits, splits;
};
__device__ __forceinline__ Keys keys_of(const AttentionParams& p, int64_t position) {
  Keys k;
  k.first = p.window > 0 ? max(int64_t{0}, position - p.window + 1) : 0;
  k.end = position + 1;
  k.n_more = 0;
  if (p.compressed.pages != nullptr) {
    k.n_more = (position + 1) / p.ratio;
    if (p.selected != nullptr) k.n_more = min(k.n_more, static_cast<int64_t>(p.n_selected));
  }
  const int64_t visible = max(k.end - k.first, k.n_more);
  k.split = visible <= 8192 ? kSplitKeys : visible <= 65536 ? 4 * kSplitKeys : 16 * kSplitKeys;
  k.window_splits = position / k.split - k.first / k.split + 1;
  k.splits = k.window_splits + div_up(k.n_more, k.split);
  return k;
}

// Adds the splits of one head in order. Reads what other blocks wrote, past the first cache.
__device__ void combine(const AttentionParams& p, int64_t token, int head, const float* partial, int splits,
                        float* weights, float* scratch) {
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t pitch = p.head_dim + 4;
  const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[head] * kLog2E;
  float* masses = weights + p.n_splits;
  float largest = sink;
  for (int s = tid; s < splits; s += kThreads) {
    const float2 state = __ldcg(reinterpret_cast<const float2*>(partial + s * pitch));
    weights[s] = state.x, masses[s] = state.y;
    largest = fmaxf(largest, state.x);
  }
  largest = warp_max(largest);
  if (tid % 32 == 0) scratch[tid / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, scratch[w]);
  for (int s = tid; s < splits; s += kThreads)
    weights[s] = weights[s] == -INFINITY ? 0.0F : exp2f(weights[s] - largest);
  __syncthreads();
  // An infinite sink takes all of the mass; exp(inf - inf) would be NaN.
  float mass = sink == -INFINITY ? 0.0F : sink == largest ? 1.0F : exp2f(sink - largest);
  for (int s = 0; s < splits; ++s) mass = fmaf(weights[s], masses[s], mass);
  float* out = row_of(p.out, token * p.n_heads + head);
  for (int i = 4 * tid; i < p.head_dim; i += 4 * kThreads) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(partial + s * pitch + 4 + i));
      const float w = weights[s];
      sum.x = fmaf(w, v.x, sum.x), sum.y = fmaf(w, v.y, sum.y);
      sum.z = fmaf(w, v.z, sum.z), sum.w = fmaf(w, v.w, sum.w);
    }
    sum = make_float4(sum.x / mass, sum.y / mass, sum.z / mass, sum.w / mass);
    out[i] = sum.x, out[i + 1] = sum.y, out[i + 2] = sum.z, out[i + 3] = sum.w;
    if (p.digits.p != nullptr) {
      write_digits(p.digits.p + token * p.digits.stride, p.n_heads * p.head_dim, (head * p.head_dim + i) / 32,
                   sum);
    }
  }
  __syncthreads();
}

template <int kQuads, int kHeads>
__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ float4 shared[];  // [kWarps][kHeads][kQuads * 32]
  __shared__ const std::byte* rows[2][kBatchKeys];
  __shared__ float2 states[kWarps][kHeads];  // largest logit, mass
  begin();
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int64_t token = static_cast<int64_t>(p.first_token) + blockIdx.z;
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int32_t seq = p.batch.sequence[token], position = p.batch.position[token];
  const Keys keys = keys_of(p, position);
  const int64_t s = blockIdx.x;
  if (s >= keys.splits) return;
  const bool window = s < keys.window_splits;
  int64_t begin_key, end_key;
  if (window) {
    const int64_t start = (keys.first / keys.split + s) * keys.split;
    begin_key = max(start, keys.first), end_key = min(start + keys.split, keys.end);
  } else {
    begin_key = (s - keys.window_splits) * keys.split;
    end_key = min(begin_key + keys.split, keys.n_more);
  }
  const int kv_head = first_head / (p.n_heads / p.n_kv_heads);
  const int quads = p.head_dim / 4;
  const int32_t k_type = window ? p.k.dtype : p.compressed.dtype;
  const int column = kv_head * p.head_dim;

  float4 q[kHeads][kQuads], acc[kHeads][kQuads];
  float top[kHeads], mass[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const auto* row = reinterpret_cast<const float4*>(row_of(p.q, token * p.n_heads + first_head + h));
    top[h] = -INFINITY, mass[h] = 0.0F;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int i = lane + 32 * j;
      q[h][j] = i < quads ? row[i] : make_float4(0, 0, 0, 0);
      acc[h][j] = make_float4(0, 0, 0, 0);
      const float f = p.scale * kLog2E;
      q[h][j].x *= f, q[h][j].y *= f, q[h][j].z *= f, q[h][j].w *= f;
    }
  }

  for (int64_t base = begin_key; base < end_key; base += kBatchKeys) {
    __syncthreads();
    if (tid < kBatchKeys && base + tid < end_key) {
      int64_t key = base + tid;
      if (window) {
        rows[0][tid] = cache_row(p.k, seq, key);
        rows[1][tid] = p.shared_kv != 0 ? rows[0][tid] : cache_row(p.v, seq, key);
      } else {
        if (p.selected != nullptr) key = max(p.selected[token * p.n_selected + key], 0);
        rows[0][tid] = rows[1][tid] = cache_row(p.compressed, seq, key);
      }
    }
    __syncthreads();
    const int n = static_cast<int>(min(static_cast<int64_t>(kBatchKeys), end_key - base));
    constexpr int kUnroll = kQuads * kHeads > 4 ? 2 : 4;
    for (int first = warp; first < n; first += kWarps * kUnroll) {
      float4 k[kUnroll][kQuads], v[kUnroll][kQuads];
      float logit[kUnroll][kHeads];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int key = min(first + u * kWarps, n - 1);
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
          const int i = lane + 32 * j;
          k[u][j] = i < quads ? load4(k_type, rows[0][key], column + 4 * i) : make_float4(0, 0, 0, 0);
        }
        if (p.shared_kv == 0) {
#pragma unroll
          for (int j = 0; j < kQuads; ++j) {
            const int i = lane + 32 * j;
            v[u][j] = i < quads ? load4(p.v.dtype, rows[1][key], column + 4 * i) : make_float4(0, 0, 0, 0);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kQuads; ++j) v[u][j] = k[u][j];
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          float sum = 0.0F;
#pragma unroll
          for (int j = 0; j < kQuads; ++j) {
            sum = fmaf(q[h][j].x, k[u][j].x, sum), sum = fmaf(q[h][j].y, k[u][j].y, sum);
            sum = fmaf(q[h][j].z, k[u][j].z, sum), sum = fmaf(q[h][j].w, k[u][j].w, sum);
          }
          logit[u][h] = sum;
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          logit[u][h] = warp_sum(logit[u][h]);
          if (first + u * kWarps >= n) logit[u][h] = -INFINITY;
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float largest = top[h];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) largest = fmaxf(largest, logit[u][h]);
        const float keep = exp2f(top[h] - largest);
        top[h] = largest;
        mass[h] *= keep;
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
          acc[h][j].x *= keep, acc[h][j].y *= keep, acc[h][j].z *= keep, acc[h][j].w *= keep;
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const float e = exp2f(logit[u][h] - largest);
          mass[h] += e;
#pragma unroll
          for (int j = 0; j < kQuads; ++j) {
            acc[h][j].x = fmaf(e, v[u][j].x, acc[h][j].x), acc[h][j].y = fmaf(e, v[u][j].y, acc[h][j].y);
            acc[h][j].z = fmaf(e, v[u][j].z, acc[h][j].z), acc[h][j].w = fmaf(e, v[u][j].w, acc[h][j].w);
          }
        }
      }
    }
  }

#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane == 0) states[warp][h] = make_float2(top[h], mass[h]);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) shared[((warp * kHeads + h) * kQuads + j) * 32 + lane] = acc[h][j];
  }
  __syncthreads();
  for (int h = 0; h < kHeads; ++h) {
    float largest = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, states[w][h].x);
    float weight[kWarps], sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      weight[w] = states[w][h].x == -INFINITY ? 0.0F : exp2f(states[w][h].x - largest);
      sum = fmaf(weight[w], states[w][h].y, sum);
    }
    float* out =
        p.partial +
        ((static_cast<int64_t>(blockIdx.z) * p.n_heads + first_head + h) * p.n_splits + s) * (p.head_dim + 4);
    for (int i = tid; i < quads; i += kThreads) {
      float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 a = shared[((w * kHeads + h) * kQuads + i / 32) * 32 + i % 32];
        total.x = fmaf(weight[w], a.x, total.x), total.y = fmaf(weight[w], a.y, total.y);
        total.z = fmaf(weight[w], a.z, total.z), total.w = fmaf(weight[w], a.w, total.w);
      }
      reinterpret_cast<float4*>(out + 4)[i] = total;
    }
    if (tid == 0) out[0] = largest, out[1] = sum;
  }

  // The last block of these heads to get here combines them, in split order whichever it is.
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (tid == 0) {
    uint32_t* ticket = p.tickets + static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    last =
        atomicInc(ticket, static_cast<uint32_t>(keys.splits) - 1) == static_cast<uint32_t>(keys.splits) - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  auto* weights = reinterpret_cast<float*>(shared);
  for (int h = 0; h < kHeads; ++h) {
    const float* partial = p.partial + (static_cast<int64_t>(blockIdx.z) * p.n_heads + first_head + h) *
                                           p.n_splits * (p.head_dim + 4);
    combine(p, token, first_head + h, partial, static_cast<int>(keys.splits), weights,
            weights + 2 * p.n_splits);
  }
}

template <int kQuads, int kHeads>
Launch split_launch(const AttentionParams& p) {
  const dim3 grid(static_cast<unsigned>(p.n_splits), static_cast<unsigned>(p.n_heads / kHeads),
                  static_cast<unsigned>(p.n_tokens));
  const size_t sums = sizeof(float4) * kWarps * kHeads * kQuads * 32;
  const size_t weights = sizeof(float) * (2 * static_cast<size_t>(p.n_splits) + kWarps);
  return make_launch("attention", split_kernel<kQuads, kHeads>, grid, kThreads, p,
                     sums > weights ? sums : weights);
}

template <int kQuads>
Launch split_for_heads(const AttentionParams& p) {
  const int alike = p.n_heads / p.n_kv_heads;
  if constexpr (kQuads <= 2) {
    if (alike % 4 == 0) return split_launch<kQuads, 4>(p);
  }
  if constexpr (kQuads <= 4) {
    if (alike % 2 == 0) return split_launch<kQuads, 2>(p);
  }
  return split_launch<kQuads, 1>(p);
}

}  // namespace

Launch attention_split(const AttentionParams& p) {
  if (p.head_dim <= 128) return split_for_heads<1>(p);
  if (p.head_dim <= 256) return split_for_heads<2>(p);
  if (p.head_dim <= 512) return split_for_heads<4>(p);
  return split_for_heads<8>(p);
}
}  // namespace synod::cuda
