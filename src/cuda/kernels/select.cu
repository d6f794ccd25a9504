// The indexer: scores of compressed rows, and the exact k best of them in ascending order.
#include "cuda/kernels/cache.cuh"

namespace synod::cuda {
namespace {

constexpr int kRows = 32, kHeadWarps = 8, kThreads = 32 * kHeadWarps;

// A block scores 32 rows for one token: lane = row, the warps share the heads.
__global__ void __launch_bounds__(kThreads) scores_kernel(const __grid_constant__ IndexParams p) {
  extern __shared__ float shared[];  // keys [32][d + 4], queries [n_heads][d]
  __shared__ float sums[kHeadWarps][kRows];
  begin();
  const int64_t token = blockIdx.y;
  const int64_t n_visible = (p.batch.position[token] + 1) / p.ratio;
  if (n_visible <= p.k) return;  // all of them are taken
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  if (first >= n_visible) return;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, d = p.head_dim,
            pitch = d + 4;
  float* queries = shared + kRows * pitch;
  for (int r = warp; r < kRows; r += kHeadWarps) {
    const int64_t row = min(first + r, n_visible - 1);
    const std::byte* key = cache_row(p.keys, p.batch.sequence[token], row);
    for (int i = lane; i < d / 4; i += 32) {
      *reinterpret_cast<float4*>(shared + r * pitch + 4 * i) = load4(p.keys.dtype, key, 4 * i);
    }
  }
  for (int i = tid; i < p.n_heads * d; i += kThreads) {
    queries[i] = row_of(p.q, token * p.n_heads + i / d)[i % d];
  }
  __syncthreads();
  const float* key = shared + lane * pitch;
  const float* beta = row_of(p.beta, token);
  float score = 0.0F;
  for (int h = warp; h < p.n_heads; h += kHeadWarps) {
    const float* q = queries + h * d;
    float a = 0.0F, b = 0.0F, c = 0.0F, e = 0.0F;
    for (int i = 0; i < d; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(key + i), y = *reinterpret_cast<const float4*>(q + i);
      a = fmaf(x.x, y.x, a), b = fmaf(x.y, y.y, b), c = fmaf(x.z, y.z, c), e = fmaf(x.w, y.w, e);
    }
    const float match = (a + b) + (c + e);
    score = fmaf(beta[h], match < 0.0F ? 0.0F : match, score);  // keeps a NaN
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
  int before = 0;
  total = 0;
  for (int w = 0; w < kSelectThreads / 32; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return before + __popc(votes & ((1U << lane) - 1U));
}

// One block per token: radix selection of the k-th key, then one ordered pass.
__global__ void __launch_bounds__(kSelectThreads) top_k_kernel(const __grid_constant__ IndexParams p) {
  __shared__ int histogram[256];
  __shared__ int scratch[32];
  __shared__ uint32_t chosen;
  __shared__ int wanted;
  begin();
  const int64_t token = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t n = (p.batch.position[token] + 1) / p.ratio;
  int32_t* out = p.selected + token * p.k;
  if (n <= p.k) {
    for (int i = tid; i < p.k; i += kSelectThreads) out[i] = i < n ? i : -1;
    return;
  }
  const float* scores = p.scores + token * p.max_rows;
  bool bad = false;
  for (int64_t i = tid; i < n; i += kSelectThreads) bad = bad || !(fabsf(scores[i]) <= 3.402823466e38F);
  if (__syncthreads_or(bad ? 1 : 0) != 0) {
    if (tid == 0) raise(p.status, 1);
    for (int i = tid; i < p.k; i += kSelectThreads) out[i] = i;
    return;
  }
  if (tid == 0) chosen = 0, wanted = p.k;
  uint32_t mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (tid < 256) histogram[tid] = 0;
    __syncthreads();
    const uint32_t prefix = chosen;
    for (int64_t i = tid; i < n; i += kSelectThreads) {
      const uint32_t key = key_of(scores[i]);
      if ((key & mask) == prefix) atomicAdd(&histogram[key >> shift & 255U], 1);
    }
    __syncthreads();
    if (tid == 0) {
      int left = wanted, bin = 255;
      while (bin > 0 && histogram[bin] < left) left -= histogram[bin--];
      chosen = prefix | static_cast<uint32_t>(bin) << shift;
      wanted = left;  // of the keys equal to the prefix so far
    }
    mask |= 255U << shift;
    __syncthreads();
  }
  const uint32_t threshold = chosen;
  int equal_left = wanted, written = 0;
  for (int64_t first = 0; first < n; first += kSelectThreads) {
    const int64_t i = first + tid;
    const uint32_t key = i < n ? key_of(scores[i]) : 0;
    const bool equal = i < n && key == threshold;
    int n_equal, n_taken;
    const int equal_rank = ranks(equal, scratch, n_equal);
    const bool taken = i < n && (key > threshold || (equal && equal_rank < equal_left));
    const int rank = ranks(taken, scratch, n_taken);
    if (taken) out[written + rank] = static_cast<int32_t>(i);
    written += n_taken;
    equal_left -= min(n_equal, equal_left);
  }
}

}  // namespace

Launch index_scores(const IndexParams& p) {
  const dim3 grid(static_cast<unsigned>(div_up<int64_t>(p.max_rows, kRows)),
                  static_cast<unsigned>(p.batch.n_tokens));
  const size_t bytes = sizeof(float) * (static_cast<size_t>(kRows) * static_cast<size_t>(p.head_dim + 4) +
                                        static_cast<size_t>(p.n_heads) * static_cast<size_t>(p.head_dim));
  return make_launch("index_scores", scores_kernel, grid, kThreads, p, bytes);
}
Launch index_top_k(const IndexParams& p) {
  return make_launch("index_top_k", top_k_kernel, static_cast<unsigned>(p.batch.n_tokens), kSelectThreads, p);
}

}  // namespace synod::cuda
