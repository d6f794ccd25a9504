// Attention of single queries over split keys. A block takes one split of one query for kHeads heads that
// share keys, 64 keys at a time. A lane owns four columns of all heads; kQuads warps share a key and 8 /
// kQuads keys are in work at a time. Logits meet in shared memory, where one warp per head turns them into
// weights, so that no warp waits for sums over its lanes but to write logits, and loads of values are under
// way meanwhile. A query of one split is done then; otherwise the last block of a query to finish adds its
// splits, in groups if they are many. Splits start at absolute positions and their size follows the query's
// own length, so neither chunking nor the batch changes a result.
#include <algorithm>
#include <type_traits>

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/digits.cuh"

namespace synod::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kBatchKeys = 64;  // keys between two rescalings
// More splits than this are added in groups, which different blocks read at the same time.
constexpr int kDirectSplits = 32;
constexpr float kLog2E = 1.4426950408889634F;

// The keys of one query: rows [first, position] of the window, then n_more compressed rows.
struct Keys {
  int first, end;  // window rows
  int n_more;
  int shift;  // keys per split, as a power of two
  int window_splits, splits;
};
__device__ __forceinline__ Keys keys_of(const AttentionParams& p, int position) {
  static_assert(kSplitKeys == 64);
  Keys k;
  k.first = p.window > 0 ? max(0, position - p.window + 1) : 0;
  k.end = position + 1;
  k.n_more = 0;
  if (p.compressed.pages != nullptr) {
    k.n_more = (position + 1) / p.ratio;
    if (p.selected != nullptr) k.n_more = min(k.n_more, p.n_selected);
  }
  const int visible = max(k.end - k.first, k.n_more);
  k.shift = visible <= 8192 ? 6 : visible <= 65536 ? 8 : 10;
  k.window_splits = (position >> k.shift) - (k.first >> k.shift) + 1;
  k.splits = k.window_splits + ((k.n_more + (1 << k.shift) - 1) >> k.shift);
  return k;
}

__device__ __forceinline__ float4 fma4(float w, const float4& v, const float4& sum) {
  return make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w));
}

// Sums kCount values over the warp; lane l gets the sum of value l * kCount / 32. A shuffle carries a value
// to half of the lanes and another one to the other half, so that it takes about kCount of them.
template <int kCount, int kLeft = kCount>
__device__ __forceinline__ float warp_sums(float (&v)[kCount]) {
  if constexpr (kLeft == 1) {
#pragma unroll
    for (int o = 16 / kCount; o > 0; o /= 2) v[0] += __shfl_xor_sync(0xffffffffU, v[0], o);
    return v[0];
  } else {
    constexpr int kHalf = kLeft / 2, kLanes = 32 * kHalf / kCount;
    const bool upper = (threadIdx.x & kLanes) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      // Copies: a choice between two elements is one of addresses, and the array then leaves the registers.
      const float a = v[i], b = v[i + kHalf];
      const float given = upper ? a : b;
      v[i] = (upper ? b : a) + __shfl_xor_sync(0xffffffffU, given, kLanes);
    }
    return warp_sums<kCount, kHalf>(v);
  }
}

__device__ __forceinline__ float sink_of(const AttentionParams& p, int head) {
  return p.sinks == nullptr ? -INFINITY : p.sinks[head] * kLog2E;
}
// An infinite sink takes all of the mass; exp(inf - inf) would be NaN.
__device__ __forceinline__ float sink_mass(float sink, float largest) {
  return sink == -INFINITY ? 0.0F : sink == largest ? 1.0F : exp2f(sink - largest);
}
__device__ __forceinline__ float split_weight(float top, float largest) {
  return top == -INFINITY ? 0.0F : exp2f(top - largest);
}

// Cosine and sine of each pair that the results are rotated by.
__device__ __forceinline__ float2* turns() {
  __shared__ float2 values[kMostTurns];
  return values;
}
__device__ __forceinline__ void turn_pair(const AttentionParams& p, int column, float& a, float& b) {
  const int pair = (column - p.turn_first) / 2;
  if (column < p.turn_first || pair >= p.turn_pairs) return;
  const float2 turn = turns()[pair];
  const float turned = a * turn.x + b * turn.y;
  b = b * turn.x - a * turn.y;
  a = turned;
}

// Four values of the result at column 4 * quad; the lanes of a block of 32 columns come together.
__device__ __forceinline__ void put_result(const AttentionParams& p, int token, int head, int quad,
                                           const float4& sum, float mass) {
  float4 x = make_float4(sum.x / mass, sum.y / mass, sum.z / mass, sum.w / mass);
  if (p.turn_pairs > 0) {
    turn_pair(p, 4 * quad, x.x, x.y);
    turn_pair(p, 4 * quad + 2, x.z, x.w);
  }
  float* out = p.out.p + token * p.out.s0 + head * p.out.s1 + 4 * quad;
  out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
  if (p.digits.p == nullptr) return;
  const int row = (token * p.n_heads + head) / p.digit_heads;
  write_digits(p.digits.p + row * p.digits.stride, p.digit_heads * p.head_dim,
               (head % p.digit_heads * p.head_dim + 4 * quad) / 32, x, true, 255U << (threadIdx.x & 24U));
}

// Whether this block is the last of `count` to come here; it then sees what the others have written.
__device__ bool is_last(uint32_t* ticket, int count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  const auto others = static_cast<uint32_t>(count) - 1;
  if (threadIdx.x == 0) last = atomicInc(ticket, others) == others;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// Adds `count` splits of kHeads heads, first, first + step, ..., in an order that only their number decides.
// The sum replaces the first of them, or is the result. Reads what other blocks wrote, past the first cache.
template <int kQuads, int kHeads>
__device__ void merge(const AttentionParams& p, int token, int first_head, float* partial, int first,
                      int step, int count, bool result, float2* states, float4* scratch) {
  constexpr int kItems = 32 * kQuads * kHeads;
  constexpr int kShares = kItems < kThreads ? kThreads / kItems : 1;  // threads that share a sum
  constexpr int kLoads = 8;
  __shared__ float2 totals[kHeads];  // largest logit, mass
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int64_t pitch = p.head_dim + 4;
  const auto slot = [&](int head, int i) {
    return partial + (static_cast<int64_t>(head) * p.n_splits + first + i * step) * pitch;
  };
  __syncthreads();  // of an earlier use of shared memory
  for (int i = tid; i < count * kHeads; i += kThreads) {
    states[i] = __ldcg(reinterpret_cast<const float2*>(slot(i / count, i % count)));
  }
  __syncthreads();
  if (warp < kHeads) {
    const float sink = result ? sink_of(p, first_head + warp) : -INFINITY;
    float largest = sink, mass = 0.0F;
    for (int i = lane; i < count; i += 32) largest = fmaxf(largest, states[warp * count + i].x);
    largest = warp_max(largest);
    for (int i = lane; i < count; i += 32) {
      float2& state = states[warp * count + i];
      state.x = split_weight(state.x, largest);
      mass = fmaf(state.x, state.y, mass);
    }
    mass = warp_sum(mass) + sink_mass(sink, largest);
    if (lane == 0) totals[warp] = make_float2(largest, mass);
  }
  __syncthreads();
#pragma unroll 1
  for (int item = tid; item < kItems * kShares; item += kThreads) {
    const int share = item / kItems, head = item % kItems / (32 * kQuads), quad = item % (32 * kQuads);
    const bool mine = 4 * quad < p.head_dim;
    float4 sum = make_float4(0, 0, 0, 0);
    if (mine) {
      for (int i = share; i < count; i += kLoads * kShares) {
        float4 v[kLoads];
#pragma unroll
        for (int u = 0; u < kLoads; ++u) {
          v[u] = __ldcg(
              reinterpret_cast<const float4*>(slot(head, min(i + u * kShares, count - 1)) + 4 + 4 * quad));
        }
#pragma unroll
        for (int u = 0; u < kLoads; ++u) {
          const int s = i + u * kShares;
          if (s < count) sum = fma4(states[head * count + s].x, v[u], sum);
        }
      }
    }
    if constexpr (kShares > 1) {
      scratch[tid] = sum;
      __syncthreads();
#pragma unroll
      for (int i = 1; i < kShares; ++i) {
        if (share == 0) sum = fma4(1.0F, scratch[tid + i * kItems], sum);
      }
    }
    if (!mine || share > 0) continue;
    if (result) {
      put_result(p, token, first_head + head, quad, sum, totals[head].y);
    } else {
      reinterpret_cast<float4*>(slot(head, 0) + 4)[quad] = sum;
    }
  }
  if (!result && tid < kHeads) *reinterpret_cast<float2*>(slot(tid, 0)) = totals[tid];
}

// kFew: one block of a processor, with twice as many keys on their way.
template <typename Quad, int kQuads, int kHeads, bool kFew>
__global__ void __launch_bounds__(kThreads, kFew ? 1 : 2)
    split_kernel(const __grid_constant__ AttentionParams p) {
  constexpr int kGroups = kWarps / kQuads;          // of warps, a key each
  constexpr int kGroupKeys = kBatchKeys / kGroups;  // of a group in a batch
  constexpr int kMostStep =
      (kHeads < 4 ? 32 : 16) * (kFew ? 2 : 1) / Quad::kRegisters;  // what registers hold twice
  constexpr int kStep = kGroupKeys < kMostStep ? kGroupKeys : kMostStep;
  constexpr int kSteps = kGroupKeys / kStep;
  constexpr int kSums = 16 / kHeads < kStep ? 16 / kHeads : kStep;  // keys whose logits are summed together
  extern __shared__ float2 split_states[];
  __shared__ const std::byte* rows[kWarps][2][kGroupKeys];
  __shared__ float logits[kQuads][kBatchKeys * kHeads];  // of the columns of a warp; keys in order of groups
  __shared__ __align__(16) float weights[kBatchKeys * kHeads];
  __shared__ float keeps[kHeads];
  __shared__ float2 states[kHeads];  // largest logit, mass
  __shared__ float4 sums[kWarps][kHeads][32];
  // The batch and the page tables are the host's: they are read before the wait.
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int group = warp / kQuads, part = warp % kQuads;
  const int token = p.first_token + static_cast<int>(blockIdx.z);
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int32_t seq = p.batch.sequence[token], position = p.batch.position[token];
  const Keys keys = keys_of(p, position);
  const int s = static_cast<int>(blockIdx.x);
  if (s >= keys.splits) return begin();
  const bool window = s < keys.window_splits;
  int begin_key, end_key;
  if (window) {
    const int start = ((keys.first >> keys.shift) + s) << keys.shift;
    begin_key = max(start, keys.first), end_key = min(start + (1 << keys.shift), keys.end);
  } else {
    begin_key = (s - keys.window_splits) << keys.shift;
    end_key = min(begin_key + (1 << keys.shift), keys.n_more);
  }
  const bool own_values = window && p.shared_kv == 0;
  const int32_t k_type = window ? p.k.dtype : p.compressed.dtype, v_type = own_values ? p.v.dtype : k_type;
  const int quads = p.head_dim / 4, quad = 32 * part + lane;
  const bool mine = quad < quads;
  const int column = first_head / (p.n_heads / p.n_kv_heads) * p.head_dim + 4 * quad;

  // Every warp looks up its own keys: no barrier.
  const auto look_up = [&](int base, int n) {
#pragma unroll
    for (int i = lane; i < 2 * kGroupKeys; i += 32) {
      const int which = i / kGroupKeys;
      int key = base + min(i % kGroupKeys * kGroups + group, n - 1);
      if (!window && p.selected != nullptr) {
        key = max(p.selected[static_cast<int64_t>(token) * p.n_selected + key], 0);
      }
      rows[warp][which][i % kGroupKeys] = cache_row(!window                    ? p.compressed
                                                    : which != 0 && own_values ? p.v
                                                                               : p.k,
                                                    seq, key);
    }
    __syncwarp();
  };
  for (int i = tid; i < p.turn_pairs; i += kThreads) {
    float sine, cosine;
    sincosf(static_cast<float>(p.turn_positions[token]) * p.turn_freqs[i], &sine, &cosine);
    turns()[i] = make_float2(cosine, sine);
  }
  const bool chosen = !window && p.selected != nullptr;  // by a kernel
  if (!chosen) look_up(begin_key, min(kBatchKeys, end_key - begin_key));
  begin();
  float4 q[kHeads], acc[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    acc[h] = q[h] = make_float4(0, 0, 0, 0);
    if (mine) {
      q[h] = reinterpret_cast<const float4*>(p.q.p + token * p.q.s0 + (first_head + h) * p.q.s1)[quad];
    }
  }
  if (chosen) look_up(begin_key, min(kBatchKeys, end_key - begin_key));
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float f = p.scale * kLog2E;
    q[h].x *= f, q[h].y *= f, q[h].z *= f, q[h].w *= f;
  }

  float top = -INFINITY, mass = 0.0F;  // of head `warp`
  for (int base = begin_key; base < end_key; base += kBatchKeys) {
    const int n = min(kBatchKeys, end_key - base);
    // Steps read keys, then values; a step is loaded while the one before the last is in work.
    Quad held[2][kStep];
    const auto has_keys = [&](int step) { return step % kSteps * kStep * kGroups + group < n; };
    const auto load = [&](int step) {
      const bool values = step >= kSteps;
#pragma unroll
      for (int i = 0; i < kStep; ++i) held[step % 2][i] = Quad();
      if (!mine || !has_keys(step)) return;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        held[step % 2][i].load(values ? v_type : k_type,
                               rows[warp][values ? 1 : 0][step % kSteps * kStep + i], column);
      }
    };
    load(0);
    load(1);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (has_keys(step)) {
#pragma unroll
        for (int first = 0; first < kStep; first += kSums) {
          float sum[kSums * kHeads];
#pragma unroll
          for (int i = 0; i < kSums; ++i) {
            const float4 k = held[step % 2][first + i].values();
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
              sum[i * kHeads + h] = fmaf(q[h].w, k.w, fmaf(q[h].z, k.z, fmaf(q[h].y, k.y, q[h].x * k.x)));
            }
          }
          const float logit = warp_sums(sum);
          constexpr int kLanes = 32 / (kSums * kHeads);  // that have the same sum
          if (lane % kLanes == 0) {
            logits[part][(group * kGroupKeys + step * kStep + first) * kHeads + lane / kLanes] = logit;
          }
        }
      }
      load(step + 2);
    }

    __syncthreads();
    if (warp < kHeads) {
      float logit[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = lane + 32 * r;
        logit[r] = 0.0F;
#pragma unroll
        for (int c = 0; c < kQuads; ++c) logit[r] += logits[c][i * kHeads + warp];
        if (i % kGroupKeys * kGroups + i / kGroupKeys >= n) logit[r] = -INFINITY;
      }
      const float largest = fmaxf(top, warp_max(fmaxf(logit[0], logit[1])));
      const float keep = exp2f(top - largest);
      float e[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        e[r] = exp2f(logit[r] - largest);
        weights[(lane + 32 * r) * kHeads + warp] = e[r];
      }
      if (lane == 0) keeps[warp] = keep;
      mass = fmaf(mass, keep, warp_sum(e[0] + e[1]));
      top = largest;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float keep = keeps[h];
      acc[h].x *= keep, acc[h].y *= keep, acc[h].z *= keep, acc[h].w *= keep;
    }
#pragma unroll
    for (int step = kSteps; step < 2 * kSteps; ++step) {
      if (has_keys(step)) {
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
          const float4 v = held[step % 2][i].values();
          const float* w = weights + (group * kGroupKeys + step % kSteps * kStep + i) * kHeads;
#pragma unroll
          for (int h = 0; h < kHeads; ++h) acc[h] = fma4(w[h], v, acc[h]);
        }
      }
      if (step + 2 < 2 * kSteps) load(step + 2);
    }
    if (base + kBatchKeys < end_key) {
      __syncwarp();
      look_up(base + kBatchKeys, min(kBatchKeys, end_key - base - kBatchKeys));
    }
  }

#pragma unroll
  for (int h = 0; h < kHeads; ++h) sums[warp][h][lane] = acc[h];
  const bool whole = keys.splits == 1;
  if (warp < kHeads && lane == 0) {
    states[warp] = make_float2(top, mass);
    if (whole) {
      const float sink = sink_of(p, first_head + warp), largest = fmaxf(sink, top);
      const float w = split_weight(top, largest);
      states[warp] = make_float2(w, fmaf(w, mass, sink_mass(sink, largest)));
    }
  }
  __syncthreads();
  float* partial =
      p.partial + (static_cast<int64_t>(blockIdx.z) * p.n_heads + first_head) * p.n_splits * (p.head_dim + 4);
#pragma unroll 1
  for (int item = tid; item < 32 * kQuads * kHeads; item += kThreads) {
    const int h = item / (32 * kQuads), i = item % (32 * kQuads);
    if (i >= quads) continue;
    float4 sum = sums[i / 32][h][i % 32];
#pragma unroll
    for (int g = 1; g < kGroups; ++g) sum = fma4(1.0F, sums[g * kQuads + i / 32][h][i % 32], sum);
    if (whole) {
      put_result(p, token, first_head + h, i, fma4(states[h].x, sum, make_float4(0, 0, 0, 0)), states[h].y);
      continue;
    }
    float* out = partial + (static_cast<int64_t>(h) * p.n_splits + s) * (p.head_dim + 4);
    reinterpret_cast<float4*>(out + 4)[i] = sum;
    if (i == 0) *reinterpret_cast<float2*>(out) = states[h];
  }
  if (whole) return;

  bool grouped = keys.splits > kDirectSplits;
  const int own_group = s / kGroupSplits;
  uint32_t* tickets = p.tickets + (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) *
                                      (1 + div_up(p.n_splits, kGroupSplits));
  uint32_t* ticket = tickets + (grouped ? 1 + own_group : 0);
  int first = grouped ? own_group * kGroupSplits : 0, step = 1;
  int count = grouped ? min(kGroupSplits, keys.splits - first) : keys.splits;
  while (is_last(ticket, count)) {
    merge<kQuads, kHeads>(p, token, first_head, partial, first, step, count, !grouped, split_states,
                          &sums[0][0][0]);
    if (!grouped) return;
    grouped = false;
    ticket = tickets, first = 0, step = kGroupSplits, count = div_up(keys.splits, kGroupSplits);
  }
}

template <typename Quad, int kQuads, int kHeads, bool kFew = false>
Launch split_launch(const AttentionParams& p) {
  const dim3 grid(static_cast<unsigned>(p.n_splits), static_cast<unsigned>(p.n_heads / kHeads),
                  static_cast<unsigned>(p.n_tokens));
  const int merged = std::max(std::min(p.n_splits, kDirectSplits), div_up(p.n_splits, kGroupSplits));
  return make_launch("attention", split_kernel<Quad, kQuads, kHeads, kFew>, grid, kThreads, p,
                     sizeof(float2) * kHeads * static_cast<size_t>(merged));
}

template <typename Quad, int kQuads>
Launch split_for_heads(const AttentionParams& p) {
  // Mixed types and very long heads are rare: one kernel each.
  if constexpr (kQuads <= 4 && !std::is_same_v<Quad, AnyQuad>) {
    const int alike = p.n_heads / p.n_kv_heads;
    // While there are fewer blocks than processors, two heads have more keys on their way than four. Results
    // are equal where a block adds each sum by one thread.
    if constexpr (kQuads == 4) {
      constexpr int64_t kFewBlocks = 128;
      const int64_t blocks = static_cast<int64_t>(p.n_splits) * (p.n_heads / 2) * p.n_tokens;
      if (alike % 2 == 0 && blocks <= kFewBlocks) return split_launch<Quad, kQuads, 2, true>(p);
      if (alike % 2 == 0 && blocks <= 2 * kFewBlocks) return split_launch<Quad, kQuads, 2>(p);
    }
    if (alike % 4 == 0) return split_launch<Quad, kQuads, 4>(p);
    if (alike % 2 == 0) return split_launch<Quad, kQuads, 2>(p);
  }
  return split_launch<Quad, kQuads, 1>(p);
}

template <typename Quad>
Launch split_for_columns(const AttentionParams& p) {
  if (p.head_dim <= 128) return split_for_heads<Quad, 1>(p);
  if (p.head_dim <= 256) return split_for_heads<Quad, 2>(p);
  if (p.head_dim <= 512) return split_for_heads<Quad, 4>(p);
  return split_for_heads<Quad, 8>(p);
}

}  // namespace

Launch attention_split(const AttentionParams& p) {
  const bool one_type = (p.shared_kv != 0 || p.v.dtype == p.k.dtype) &&
                        (p.compressed.pages == nullptr || p.compressed.dtype == p.k.dtype);
  if (!one_type) return split_for_columns<AnyQuad>(p);
  switch (static_cast<DType>(p.k.dtype)) {
    case DType::kF32:
      return split_for_columns<F32Quad>(p);
    case DType::kF16:
      return split_for_columns<HalfQuad<DType::kF16>>(p);
    case DType::kBF16:
      return split_for_columns<HalfQuad<DType::kBF16>>(p);
    default:
      return split_for_columns<Q8Quad>(p);
  }
}
}  // namespace synod::cuda
