// Routers: one block per token chooses k experts, ascending by id, and their weights.
#include "cuda/kernels/common.cuh"

namespace synod::cuda {
namespace {

__device__ __forceinline__ bool finite(float v) { return fabsf(v) <= 3.402823466e38F; }

// sqrt(softplus(v))
__device__ __forceinline__ float score_of(float v) { return sqrtf(fmaxf(v, 0.0F) + log1pf(expf(-fabsf(v)))); }

// Larger score first, then the lower id.
__device__ __forceinline__ uint64_t key_of(float v, int id) {
  const uint32_t bits = __float_as_uint(v == 0.0F ? 0.0F : v);
  const uint32_t key = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<uint64_t>(key) << 32 | (0xffffffffU - static_cast<uint32_t>(id));
}

constexpr int kMostThreads = 256;

// A choice by score with a thread per expert: its place is the number of better ones, so that nothing is
// chosen one after the other.
__global__ void __launch_bounds__(kMostThreads) ranked_route_kernel(const __grid_constant__ RouteParams p) {
  __shared__ __align__(16) uint32_t keys[kMostThreads];
  __shared__ uint32_t chosen[kMostThreads / 32], faults[kMostThreads / 32];
  __shared__ float tops[kMostThreads / 32], masses[kMostThreads / 32];
  const int64_t t = blockIdx.x;
  const int e = static_cast<int>(threadIdx.x), lane = e % 32, warp = e / 32;
  const int n_warps = static_cast<int>(blockDim.x) / 32;
  const bool there = e < p.n_experts;
  // What no kernel writes, before the wait.
  float extra = p.mode == 0 ? 1.0F : 0.0F;
  if (p.mode == 0 && there && p.expert_scale != nullptr) extra = p.expert_scale[e];
  if (p.mode == 1 && there) extra = p.bias[e];
  begin();
  const float logit = there ? row_of(p.logits, t)[e] : 0.0F;
  const float ranked = p.mode == 1 ? score_of(logit) + extra : logit;
  const bool good = !there || (finite(logit) && finite(ranked));
  const uint32_t key = there ? static_cast<uint32_t>(key_of(ranked, 0) >> 32) : 0;
  keys[e] = key;
  const uint32_t bad = __ballot_sync(0xffffffffU, !good);
  if (lane == 0) faults[warp] = bad;
  __syncthreads();
  int better = 0;
#pragma unroll 4
  for (int i = 0; i < 32 * n_warps; i += 4) {
    const uint4 k = *reinterpret_cast<const uint4*>(keys + i);
    better +=
        (k.x > key || (k.x == key && i < e) ? 1 : 0) + (k.y > key || (k.y == key && i + 1 < e) ? 1 : 0) +
        (k.z > key || (k.z == key && i + 2 < e) ? 1 : 0) + (k.w > key || (k.w == key && i + 3 < e) ? 1 : 0);
  }
  const bool mine = there && better < p.k;
  const uint32_t votes = __ballot_sync(0xffffffffU, mine);
  const float top = warp_max(mine ? logit : -INFINITY);
  if (lane == 0) chosen[warp] = votes, tops[warp] = top;
  __syncthreads();
  int before = 0;  // chosen experts of lower ids: slots are in order of ids
  uint32_t fault = 0;
  float largest = -INFINITY;
  for (int w = 0; w < n_warps; ++w) {
    if (w < warp) before += __popc(chosen[w]);
    fault |= faults[w];
    largest = fmaxf(largest, tops[w]);
  }
  float weight = 0.0F;
  if (mine) weight = p.mode == 0 ? expf(logit - largest) : score_of(logit);
  const float sum = warp_sum(weight);
  if (lane == 0) masses[warp] = sum;
  __syncthreads();
  float mass = 0.0F;
  for (int w = 0; w < n_warps; ++w) mass += masses[w];
  weight = p.mode == 0 ? weight / mass * extra : weight / (mass + 1e-20F) * p.scale;
  const bool ok = __syncthreads_and(!mine || finite(weight)) != 0 && fault == 0;
  int32_t* ids = p.ids + t * p.ids_stride;
  float* weights = p.weights + t * p.weights_stride;
  if (!ok) {
    if (e < p.k) ids[e] = 0, weights[e] = 0.0F;
    if (e == 0) raise(p.status, 1);
    return;
  }
  if (!mine) return;
  const int slot = before + __popc(votes & ((1U << lane) - 1U));
  ids[slot] = e, weights[slot] = weight;
}

// Any number of experts, or those a table lists (maybe one twice).
__global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ RouteParams p) {
  extern __shared__ uint64_t keys[];  // [n_experts]; 0 = taken
  begin();
  const int64_t t = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const float* logits = row_of(p.logits, t);
  bool good = true;
  const auto key_at = [&](int e) {
    const float v = logits[e];
    const float ranked = p.mode == 1 ? score_of(v) + p.bias[e] : v;
    good = good && finite(v) && finite(ranked);
    return key_of(ranked, e);
  };
  for (int e = lane; e < p.n_experts; e += 32) keys[e] = key_at(e);
  __syncwarp();
  bool in_range = true;
  int id = 0x7fffffff;  // of slot `lane`, unsorted
  if (p.mode == 2) {
    const int32_t token = p.token_ids[t];
    const bool known = token >= 0 && token < p.table_rows;
    if (known && lane < p.k) id = p.table[static_cast<int64_t>(token) * p.k + lane];
    in_range = known && __all_sync(0xffffffffU, lane >= p.k || (id >= 0 && id < p.n_experts)) != 0;
  } else {
    for (int s = 0; s < p.k; ++s) {
      uint64_t best = 0;
      for (int e = lane; e < p.n_experts; e += 32) best = keys[e] > best ? keys[e] : best;
#pragma unroll
      for (int o = 16; o > 0; o >>= 1) {
        const uint64_t other = __shfl_xor_sync(0xffffffffU, best, o);
        best = other > best ? other : best;
      }
      const auto chosen = static_cast<int>(0xffffffffU - static_cast<uint32_t>(best));
      if (lane == s) id = chosen;
      if (lane == 0) keys[chosen] = 0;
      __syncwarp();
    }
  }
  good = __all_sync(0xffffffffU, good) != 0;
  int32_t* ids = p.ids + t * p.ids_stride;
  float* weights = p.weights + t * p.weights_stride;
  const auto give_up = [&](uint32_t bit) {
    if (lane < p.k) ids[lane] = 0, weights[lane] = 0.0F;
    if (lane == 0) raise(p.status, bit);
  };
  if (!in_range) return give_up(2);
  if (!good) return give_up(1);
  int rank = 0;
  for (int s = 0; s < p.k; ++s) {
    const int other = __shfl_sync(0xffffffffU, id, s);
    rank += other < id || (other == id && s < lane) ? 1 : 0;
  }
  // Slot order by id: lane `rank` takes the id.
  for (int s = 0, mine = id; s < p.k; ++s) {
    const int to = __shfl_sync(0xffffffffU, rank, s), value = __shfl_sync(0xffffffffU, mine, s);
    if (to == lane) id = value;
  }
  const bool used = lane < p.k;
  const float logit = used ? logits[id] : -INFINITY;
  float weight;
  if (p.mode == 0) {
    float top = logit;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, o));
    const float e = used ? expf(logit - top) : 0.0F;
    weight = e / warp_sum(e) * (used && p.expert_scale != nullptr ? p.expert_scale[id] : 1.0F);
  } else {
    const float g = used ? score_of(logit) : 0.0F;
    weight = g / (warp_sum(g) + 1e-20F) * p.scale;
  }
  if (__all_sync(0xffffffffU, !used || finite(weight)) == 0) return give_up(1);
  if (used) ids[lane] = id, weights[lane] = weight;
}

}  // namespace

Launch route(const RouteParams& p) {
  if (p.mode != 2 && p.n_experts <= kMostThreads && p.k <= p.n_experts) {
    const auto threads = static_cast<unsigned>(div_up(p.n_experts, 32) * 32);
    return make_launch("route", ranked_route_kernel, static_cast<unsigned>(p.n_tokens), threads, p);
  }
  return make_launch("route", route_kernel, static_cast<unsigned>(p.n_tokens), 32, p,
                     sizeof(uint64_t) * static_cast<size_t>(p.n_experts));
}

}  // namespace synod::cuda
