// Hyper-connections. The products with `fn` are cut into kHcSplits slices of the flattened streams, added in
// slice order; one block per token then makes the weights, collapses the streams and norms the result. The
// Sinkhorn iterations run in one warp while the others collapse: only `pre` is needed for that.
#include "cuda/kernels/common.cuh"

namespace synod::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxStreams = 8, kMaxMixes = 2 * kMaxStreams + kMaxStreams * kMaxStreams;

// kTokens tokens and one slice per block.
template <int kTokens, int kMixesPerPass>
__global__ void __launch_bounds__(kThreads) products_kernel(const __grid_constant__ HcParams p) {
  __shared__ float warp_sums[kThreads / 32][kTokens * (kMixesPerPass + 1)];
  begin();
  const int width = p.n_streams * p.x.d, slice = static_cast<int>(blockIdx.y);
  const int per = div_up(width, kHcSplits);
  const int first = slice * per, end = min(first + per, width);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens;
  const auto x_at = [&](int t, int i) {
    const int64_t row = min(token + t, static_cast<int64_t>(p.n_tokens) - 1) * p.n_streams + i / p.x.d;
    return row_of(p.x, row)[i % p.x.d];
  };
  for (int base = 0; base < p.n_mixes; base += kMixesPerPass) {
    float acc[kTokens][kMixesPerPass + 1] = {};  // the last: squares
    for (int i = first + tid; i < end; i += kThreads) {
      float x[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        x[t] = x_at(t, i);
        acc[t][kMixesPerPass] = fmaf(x[t], x[t], acc[t][kMixesPerPass]);
      }
#pragma unroll
      for (int m = 0; m < kMixesPerPass; ++m) {
        const float f = base + m < p.n_mixes ? p.fn[(base + m) * p.fn_stride + i] : 0.0F;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) acc[t][m] = fmaf(f, x[t], acc[t][m]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int m = 0; m <= kMixesPerPass; ++m) {
        const float sum = warp_sum(acc[t][m]);
        if (lane == 0) warp_sums[warp][t * (kMixesPerPass + 1) + m] = sum;
      }
    }
    __syncthreads();
    for (int i = tid; i < kTokens * (kMixesPerPass + 1); i += kThreads) {
      const int t = i / (kMixesPerPass + 1), m = i % (kMixesPerPass + 1);
      float sum = 0.0F;
      for (int w = 0; w < kThreads / 32; ++w) sum += warp_sums[w][i];
      const bool squares = m == kMixesPerPass;
      if (token + t < p.n_tokens && (squares ? base == 0 : base + m < p.n_mixes)) {
        const int at = squares ? p.n_mixes : base + m;
        p.partial[((token + t) * kHcSplits + slice) * (p.n_mixes + 1) + at] = sum;
      }
    }
  }
}

__device__ __forceinline__ float sigmoid(float z) { return 1.0F / (1.0F + expf(-z)); }

// Four streams: lane 4 j + k of a warp holds entry (j, k); its second half repeats the first.
__device__ void sinkhorn_four(float* c, float eps, int iterations) {
  const int at = static_cast<int>(threadIdx.x) % 16;
  const auto over = [](float v, int step, auto&& join) {
    v = join(v, __shfl_xor_sync(0xffffffffU, v, step));
    return join(v, __shfl_xor_sync(0xffffffffU, v, 2 * step));
  };
  const auto add = [](float a, float b) { return a + b; };
  float v = c[at];
  v = expf(v - over(v, 1, [](float a, float b) { return fmaxf(a, b); }));
  v = v / over(v, 1, add) + eps;
  v *= __frcp_rn(over(v, 4, add) + eps);
  for (int i = 1; i < iterations; ++i) {
    v *= __frcp_rn(over(v, 1, add) + eps);
    v *= __frcp_rn(over(v, 4, add) + eps);
  }
  __syncwarp();
  if (threadIdx.x < 16) c[at] = v;
}
// Any number of streams, by one thread.
__device__ void sinkhorn_any(float* c, int n, float eps, int iterations) {
  for (int j = 0; j < n; ++j) {
    float top = -INFINITY, sum = 0.0F;
    for (int k = 0; k < n; ++k) top = fmaxf(top, c[j * n + k]);
    for (int k = 0; k < n; ++k) c[j * n + k] = expf(c[j * n + k] - top), sum += c[j * n + k];
    for (int k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + eps;
  }
  for (int i = 0; i < iterations; ++i) {
    for (int j = 0; j < n && i > 0; ++j) {
      float sum = eps;
      for (int k = 0; k < n; ++k) sum += c[j * n + k];
      for (int k = 0; k < n; ++k) c[j * n + k] /= sum;
    }
    for (int k = 0; k < n; ++k) {
      float sum = eps;
      for (int j = 0; j < n; ++j) sum += c[j * n + k];
      for (int j = 0; j < n; ++j) c[j * n + k] /= sum;
    }
  }
}

constexpr int kWeightThreads = 512, kWorkers = kWeightThreads - 32, kPerWorker = 16, kEarlyStreams = 4;

// Warp 0: mixes and Sinkhorn; the other warps: collapse and norm.
__global__ void __launch_bounds__(kWeightThreads, 1) weights_kernel(const __grid_constant__ HcParams p) {
  __shared__ float mix[kMaxMixes + 1];
  __shared__ float pre[kMaxStreams];
  __shared__ float scratch[kWeightThreads / 32];
  begin();
  const int64_t t = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x), n = p.n_streams, d = p.x.d;
  // The first streams are on their way while the weights are made.
  const int worker = tid - 32;
  const bool collapses = worker >= 0 && p.collapsed.p != nullptr;
  float early[kEarlyStreams][kPerWorker];
#pragma unroll
  for (int s = 0; s < kEarlyStreams; ++s) {
    const float* x = row_of(p.x, t * n + min(s, n - 1));
#pragma unroll
    for (int j = 0; j < kPerWorker; ++j) {
      const int i = worker + j * kWorkers;
      early[s][j] = collapses && i < d ? x[i] : 0.0F;
    }
  }
  static_assert(kHcSplits == 64, "two slices per lane");
  for (int m = tid / 32; m <= p.n_mixes; m += kWeightThreads / 32) {
    const float* partial = p.partial + t * kHcSplits * (p.n_mixes + 1) + m;
    const int lane = tid % 32;
    const float sum = warp_sum(partial[lane * (p.n_mixes + 1)] + partial[(lane + 32) * (p.n_mixes + 1)]);
    if (lane == 0) mix[m] = sum;
  }
  __syncthreads();
  const float rms = rsqrtf(mix[p.n_mixes] / static_cast<float>(n * d) + p.norm_eps);
  if (tid < n) {
    pre[tid] = sigmoid(mix[tid] * rms * p.scale[0] + p.base[tid]) + p.eps;
    p.pre[t * n + tid] = pre[tid];
  }
  __syncthreads();
  if (tid < 32) {
    if (p.head != 0) return;
    if (tid < n) p.post[t * n + tid] = 2.0F * sigmoid(mix[n + tid] * rms * p.scale[1] + p.base[n + tid]);
    for (int i = tid; i < n * n; i += 32)
      mix[2 * n + i] = mix[2 * n + i] * rms * p.scale[2] + p.base[2 * n + i];
    __syncwarp();
    if (n == 4) {
      sinkhorn_four(mix + 2 * n, p.eps, p.iterations);
    } else if (tid == 0) {
      sinkhorn_any(mix + 2 * n, n, p.eps, p.iterations);
    }
    __syncwarp();
    for (int i = tid; i < n * n; i += 32) p.comb[t * n * n + i] = mix[2 * n + i];
    return;
  }
  if (!collapses) return;
  float v[kPerWorker], squares = 0.0F;
#pragma unroll
  for (int j = 0; j < kPerWorker; ++j) {
    v[j] = 0.0F;
#pragma unroll
    for (int s = 0; s < kEarlyStreams; ++s) {
      if (s < n) v[j] = fmaf(pre[s], early[s][j], v[j]);
    }
  }
  for (int s = kEarlyStreams; s < n; ++s) {
    const float* x = row_of(p.x, t * n + s);
#pragma unroll
    for (int j = 0; j < kPerWorker; ++j) {
      const int i = worker + j * kWorkers;
      v[j] = fmaf(pre[s], i < d ? x[i] : 0.0F, v[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kPerWorker; ++j) squares = fmaf(v[j], v[j], squares);
  float factor = 1.0F;
  if (p.normed.p != nullptr) {
    squares = warp_sum(squares);
    if (tid % 32 == 0) scratch[tid / 32] = squares;
    asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
    float sum = 0.0F;
    for (int w = 1; w < kWeightThreads / 32; ++w) sum += scratch[w];
    factor = 1.0F / sqrtf(sum / static_cast<float>(d) + p.out_eps);
  }
#pragma unroll
  for (int j = 0; j < kPerWorker; ++j) {
    const int i = worker + j * kWorkers;
    if (i >= d) continue;
    if (p.normed.p != nullptr) {
      row_of(p.normed, t)[i] = v[j] * factor * (p.norm == nullptr ? 1.0F : p.norm[i]);
    } else {
      row_of(p.collapsed, t)[i] = v[j];
    }
  }
}

// A thread per column, all streams.
__global__ void __launch_bounds__(256) post_kernel(const __grid_constant__ HcPostParams p) {
  begin();
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * 256 + threadIdx.x), n = p.n_streams;
  if (i >= p.y.d) return;
  const float y = row_of(p.y, t)[i];
  float x[kMaxStreams];
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) x[j] = j < n ? row_of(p.x, t * n + j)[i] : 0.0F;
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    if (k >= n) break;
    float sum = p.post[t * n + k] * y;
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j < n) sum = fmaf(p.comb[(t * n + j) * n + k], x[j], sum);
    }
    row_of(p.out, t * n + k)[i] = sum;
  }
}

__global__ void __launch_bounds__(256) rows_kernel(const __grid_constant__ HcRowsParams p) {
  begin();
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * 256 + threadIdx.x), n = p.n_streams;
  if (i >= p.x.d) return;
  if (p.expand != 0) {
    const float v = row_of(p.x, t)[i];
    for (int s = 0; s < n; ++s) row_of(p.out, t * n + s)[i] = v;
    return;
  }
  float sum = 0.0F;
  for (int s = 0; s < n; ++s) sum = fmaf(p.weights[t * n + s], row_of(p.x, t * n + s)[i], sum);
  row_of(p.out, t)[i] = sum;
}

}  // namespace

Launch hc_products(const HcParams& p) {
  const int tokens = p.n_tokens >= 4 ? 4 : 1;
  const dim3 grid(static_cast<unsigned>(div_up(p.n_tokens, tokens)), kHcSplits);
  if (tokens == 4) return make_launch("hc_products", products_kernel<4, 8>, grid, kThreads, p);
  return make_launch("hc_products", products_kernel<1, 24>, grid, kThreads, p);
}
Launch hc_weights(const HcParams& p) {
  return make_launch("hc_weights", weights_kernel, static_cast<unsigned>(p.n_tokens), kWeightThreads, p);
}
Launch hc_post(const HcPostParams& p) {
  const dim3 grid(static_cast<unsigned>(p.n_tokens), static_cast<unsigned>(div_up(p.y.d, 256)));
  return make_launch("hc_post", post_kernel, grid, 256, p);
}
Launch hc_rows(const HcRowsParams& p) {
  const dim3 grid(static_cast<unsigned>(p.n_tokens), static_cast<unsigned>(div_up(p.x.d, 256)));
  return make_launch("hc_rows", rows_kernel, grid, 256, p);
}

}  // namespace synod::cuda
