// Routers: one warp per token chooses k experts, ascending by id, and their weights.
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

constexpr int kHeldExperts = 8;  // per lane in registers

__global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ RouteParams p) {
  extern __shared__ uint64_t keys[];  // [n_experts]; 0 = taken. Unused when the registers hold all
  begin();
  const int64_t t = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const float* logits = row_of(p.logits, t);
  bool good = true;
  const bool in_registers = p.n_experts <= 32 * kHeldExperts;
  uint32_t held[kHeldExperts] = {};  // high halves of keys of experts lane + 32 j
  const auto key_at = [&](int e) {
    const float v = logits[e];
    const float ranked = p.mode == 1 ? score_of(v) + p.bias[e] : v;
    good = good && finite(v) && finite(ranked);
    return key_of(ranked, e);
  };
  if (in_registers) {
#pragma unroll
    for (int j = 0; j < kHeldExperts; ++j) {
      if (lane + 32 * j < p.n_experts) held[j] = static_cast<uint32_t>(key_at(lane + 32 * j) >> 32);
    }
  } else {
    for (int e = lane; e < p.n_experts; e += 32) keys[e] = key_at(e);
  }
  __syncwarp();
  bool in_range = true;
  int id = 0x7fffffff;  // of slot `lane`, unsorted
  if (p.mode == 2) {
    const int32_t token = p.token_ids[t];
    const bool known = token >= 0 && token < p.table_rows;
    if (known && lane < p.k) id = p.table[static_cast<int64_t>(token) * p.k + lane];
    in_range = known && __all_sync(0xffffffffU, lane >= p.k || (id >= 0 && id < p.n_experts)) != 0;
  } else if (in_registers) {
    for (int s = 0; s < p.k; ++s) {
      uint32_t best = 0;
#pragma unroll
      for (int j = 0; j < kHeldExperts; ++j) best = max(best, held[j]);
      best = __reduce_max_sync(0xffffffffU, best);
      uint32_t first = 0xffffffffU;  // the lowest id of that key
#pragma unroll
      for (int j = kHeldExperts - 1; j >= 0; --j) {
        if (held[j] == best) first = static_cast<uint32_t>(lane + 32 * j);
      }
      first = __reduce_min_sync(0xffffffffU, first);
      if (lane == s) id = static_cast<int>(min(first, static_cast<uint32_t>(p.n_experts - 1)));
#pragma unroll
      for (int j = 0; j < kHeldExperts; ++j) {
        if (static_cast<uint32_t>(lane + 32 * j) == first) held[j] = 0;
      }
    }
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
  return make_launch("route", route_kernel, static_cast<unsigned>(p.n_tokens), 32, p,
                     sizeof(uint64_t) * static_cast<size_t>(p.n_experts));
}

}  // namespace synod::cuda
