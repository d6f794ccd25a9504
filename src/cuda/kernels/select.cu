// The indexer: scores of compressed rows, and the exact k best of them in ascending order.
#include "cuda/kernels/cache.cuh"

namespace synod::cuda {
namespace {

constexpr int kRows = 32, kHeadWarps = 8, kThreads = 32 * kHeadWarps;
constexpr int kRowsPerWarp = kRows / kHeadWarps;
constexpr int kHeadsAtOnce = 8;  // of a warp, for one load of a key

// A block scores 32 rows for one token: lane = row, the warps share the heads.
__global__ void __launch_bounds__(kThreads) scores_kernel(const __grid_constant__ IndexParams p) {
  extern __shared__ __align__(16) float shared[];  // keys [32][d + 4], queries [n_heads][d], beta [n_heads]
  __shared__ float sums[kHeadWarps][kRows];
  const int64_t token = blockIdx.y;
  const int64_t n_visible = (p.batch.position[token] + 1) / p.ratio;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  if (n_visible <= p.k || first >= n_visible) return begin();  // all of them are taken, or none is here
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, d = p.head_dim,
            pitch = d + 4;
  float *queries = shared + kRows * pitch, *beta = queries + p.n_heads * d;
  const std::byte* keys[kRowsPerWarp];
#pragma unroll
  for (int j = 0; j < kRowsPerWarp; ++j) {
    keys[j] = cache_row(p.keys, p.batch.sequence[token], min(first + warp + j * kHeadWarps, n_visible - 1));
  }
  begin();
#pragma unroll
  for (int j = 0; j < kRowsPerWarp; ++j) {
    float* to = shared + (warp + j * kHeadWarps) * pitch;
    for (int i = 4 * lane; i < d; i += 128) {
      *reinterpret_cast<float4*>(to + i) = load4(p.keys.dtype, keys[j], i);
    }
  }
#pragma unroll 4
  for (int h = warp; h < p.n_heads; h += kHeadWarps) {
    const float* q = p.q.p + token * p.q.s0 + h * p.q.s1;
    for (int i = 4 * lane; i < d; i += 128) {
      *reinterpret_cast<float4*>(queries + h * d + i) = *reinterpret_cast<const float4*>(q + i);
    }
  }
  for (int h = tid; h < p.n_heads; h += kThreads) beta[h] = p.beta.p[token * p.beta.s0 + h];
  __syncthreads();
  const float* key = shared + lane * pitch;
  float score = 0.0F;
  for (int base = warp; base < p.n_heads; base += kHeadWarps * kHeadsAtOnce) {
    const float* q[kHeadsAtOnce];
    float4 match[kHeadsAtOnce];
#pragma unroll
    for (int u = 0; u < kHeadsAtOnce; ++u) {
      q[u] = queries + min(base + u * kHeadWarps, p.n_heads - 1) * d;
      match[u] = make_float4(0, 0, 0, 0);
    }
    for (int i = 0; i < d; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(key + i);
#pragma unroll
      for (int u = 0; u < kHeadsAtOnce; ++u) {
        const float4 y = *reinterpret_cast<const float4*>(q[u] + i);
        float4& m = match[u];
        m.x = fmaf(x.x, y.x, m.x), m.y = fmaf(x.y, y.y, m.y), m.z = fmaf(x.z, y.z, m.z),
        m.w = fmaf(x.w, y.w, m.w);
      }
    }
#pragma unroll
    for (int u = 0; u < kHeadsAtOnce; ++u) {
      const int h = base + u * kHeadWarps;
      if (h >= p.n_heads) break;
      const float sum = (match[u].x + match[u].y) + (match[u].z + match[u].w);
      score = fmaf(beta[h], sum < 0.0F ? 0.0F : sum, score);  // keeps a NaN
    }
  }
  sums[warp][lane] = score;
  __syncthreads();
  if (warp != 0 || first + lane >= n_visible) return;
  float sum = 0.0F;
#pragma unroll
  for (int w = 0; w < kHeadWarps; ++w) sum += sums[w][lane];
  p.scores[token * p.max_rows + first + lane] = sum;
}

// Order-preserving: a larger score has a larger key.
__device__ __forceinline__ uint32_t key_of(float v) {
  const uint32_t bits = __float_as_uint(v == 0.0F ? 0.0F : v);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

constexpr int kSelectThreads = 1024;

// Exclusive sum of a flag over the block, and the total.
__device__ __forceinline__ int ranks(bool flag, int* scratch, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t votes = __ballot_sync(0xffffffffU, flag);
  if (lane == 0) scratch[warp] = __popc(votes);
  __syncthreads();
  const int count = scratch[lane];
  total = __reduce_add_sync(0xffffffffU, count);
  const int before = __reduce_add_sync(0xffffffffU, lane < warp ? count : 0);
  __syncthreads();
  return before + __popc(votes & ((1U << lane) - 1U));
}

struct Choice {
  uint32_t key;     // the digits found so far
  int wanted, had;  // of the keys that begin with them: still to be taken, and all
};

// By one warp: the digit whose bin holds the choice.wanted-th largest key, and how many of its keys are
// wanted.
__device__ __forceinline__ void choose_bin(const int* histogram, int shift, Choice& choice) {
  constexpr int kBins = 256 / 32;  // of a lane
  const int lane = static_cast<int>(threadIdx.x) % 32, wanted = choice.wanted;
  int bins[kBins], own = 0;
#pragma unroll
  for (int i = 0; i < kBins; ++i) own += bins[i] = histogram[kBins * lane + i];
  int upward = own;  // of this lane and those above
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int more = __shfl_down_sync(0xffffffffU, upward, o);
    if (lane + o < 32) upward += more;
  }
  __syncwarp();
  int left = wanted - (upward - own);
  if (left <= 0 || left > own) return;  // another lane's
#pragma unroll
  for (int i = kBins - 1; i >= 0; --i) {
    if (left <= 0) break;
    if (bins[i] >= left) {
      choice = {choice.key | static_cast<uint32_t>(kBins * lane + i) << shift, left, bins[i]};
      break;
    }
    left -= bins[i];
  }
}

// One block per token: radix selection of the k-th key, then one ordered pass.
__global__ void __launch_bounds__(kSelectThreads) top_k_kernel(const __grid_constant__ IndexParams p) {
  constexpr int kHeld = 8;  // keys of a thread in registers
  __shared__ int histogram[256];
  __shared__ int scratch[32];
  __shared__ Choice choice;
  const int64_t token = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t n = (p.batch.position[token] + 1) / p.ratio;
  int32_t* out = p.selected + token * p.k;
  begin();
  if (n <= p.k) {
    for (int i = tid; i < p.k; i += kSelectThreads) out[i] = i < n ? i : -1;
    return;
  }
  const float* scores = p.scores + token * p.max_rows;
  bool bad = false;
  const auto load = [&](int64_t i) {
    const float score = scores[i];
    bad = bad || !(fabsf(score) <= 3.402823466e38F);
    return key_of(score);
  };
  uint32_t held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int64_t i = tid + j * kSelectThreads;
    held[j] = i < n ? load(i) : 0;
  }
  for (int64_t i = tid + kHeld * kSelectThreads; i < n; i += kSelectThreads) static_cast<void>(load(i));
  if (__syncthreads_or(bad ? 1 : 0) != 0) {
    if (tid == 0) raise(p.status, 1);
    for (int i = tid; i < p.k; i += kSelectThreads) out[i] = i;
    return;
  }
  if (tid == 0) choice = {0, p.k, 0};
  uint32_t mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (tid < 256) histogram[tid] = 0;
    __syncthreads();
    const uint32_t prefix = choice.key;
    const auto count = [&](uint32_t key) {
      if ((key & mask) == prefix) atomicAdd(&histogram[key >> shift & 255U], 1);
    };
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (tid + j * kSelectThreads < n) count(held[j]);
    }
    for (int64_t i = tid + kHeld * kSelectThreads; i < n; i += kSelectThreads) count(key_of(scores[i]));
    __syncthreads();
    if (tid < 32) choose_bin(histogram, shift, choice);
    mask |= 255U << shift;
    __syncthreads();
  }
  const uint32_t threshold = choice.key;
  const bool all_equal = choice.had == choice.wanted;  // every key equal to the threshold is taken
  int equal_left = choice.wanted, written = 0;
  const auto place = [&](int64_t i, uint32_t key) {
    bool taken = i < n && key >= threshold;
    if (!all_equal) {
      const bool equal = taken && key == threshold;
      int n_equal;
      const int rank = ranks(equal, scratch, n_equal);
      taken = taken && (!equal || rank < equal_left);
      equal_left -= min(n_equal, equal_left);
    }
    int n_taken;
    const int rank = ranks(taken, scratch, n_taken);
    if (taken) out[written + rank] = static_cast<int32_t>(i);
    written += n_taken;
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j * kSelectThreads < n) place(tid + j * kSelectThreads, held[j]);
  }
  for (int64_t i = tid + kHeld * kSelectThreads; i - tid < n; i += kSelectThreads) {
    place(i, i < n ? key_of(scores[i]) : 0);
  }
}

}  // namespace

Launch index_scores(const IndexParams& p) {
  const dim3 grid(static_cast<unsigned>(div_up<int64_t>(p.max_rows, kRows)),
                  static_cast<unsigned>(p.batch.n_tokens));
  const size_t bytes = sizeof(float) * (static_cast<size_t>(kRows) * static_cast<size_t>(p.head_dim + 4) +
                                        static_cast<size_t>(p.n_heads) * static_cast<size_t>(p.head_dim + 1));
  return make_launch("index_scores", scores_kernel, grid, kThreads, p, bytes);
}
Launch index_top_k(const IndexParams& p) {
  return make_launch("index_top_k", top_k_kernel, static_cast<unsigned>(p.batch.n_tokens), kSelectThreads, p);
}

}  // namespace synod::cuda
