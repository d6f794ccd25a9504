// Hyper-connections. The products with `fn` are cut into kHcSplits slices of columns, of all streams, added
// in slice order; a slice may first make its streams from those before the last sublayer and its output. One
// block per token then makes the weights, collapses the streams and norms the result. The Sinkhorn iterations
// run in one warp while the others collapse: only `pre` is needed for that. Weights are read before the wait.
#include "cuda/kernels/digits.cuh"

namespace synod::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxStreams = 8, kMaxMixes = 2 * kMaxStreams + kMaxStreams * kMaxStreams;

// Row k of token t.
__device__ __forceinline__ float* stream_of(const View& v, int64_t t, int k) {
  return v.p + t * v.s0 + k * v.s1;
}

// Value i of stream k of token t after a sublayer.
__device__ __forceinline__ float mixed_out(const HcPostParams& p, int64_t t, int k, int i, float y,
                                           const float (&x)[kMaxStreams]) {
  const int n = p.n_streams;
  float sum = p.post[t * n + k] * y;
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) {
    if (j < n) sum = fmaf(p.comb[(t * n + j) * n + k], x[j], sum);
  }
  stream_of(p.out, t, k)[i] = sum;
  return sum;
}
__device__ __forceinline__ void load_streams(const HcPostParams& p, int64_t t, int i,
                                             float (&x)[kMaxStreams]) {
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) x[j] = j < p.n_streams ? stream_of(p.x, t, j)[i] : 0.0F;
}

// kTokens tokens and one slice per block.
template <int kTokens, int kMixesPerPass>
__global__ void __launch_bounds__(kThreads) products_kernel(const __grid_constant__ HcParams p) {
  constexpr int kHeld = 2;  // values of a thread whose weights are read before the wait
  __shared__ float warp_sums[kThreads / 32][kTokens * (kMixesPerPass + 1)];
  const int d = p.x.d, slice = static_cast<int>(blockIdx.y), per = div_up(d, kHcSplits);
  const int first = slice * per, columns = max(0, min(per, d - first)), n_values = columns * p.n_streams;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTokens;
  const auto load_weights = [&](int base, int e, float(&f)[kMixesPerPass]) {
    const int64_t at = static_cast<int64_t>(e / columns) * d + first + e % columns;
#pragma unroll
    for (int m = 0; m < kMixesPerPass; ++m) {
      f[m] = base + m < p.n_mixes ? p.fn[(base + m) * p.fn_stride + at] : 0.0F;
    }
  };
  const auto value_of = [&](int t, int e) {
    const int64_t at = min(token + t, static_cast<int64_t>(p.n_tokens) - 1);
    const int stream = e / columns, i = first + e % columns;
    if (kTokens > 1 || p.before.n_tokens == 0) return stream_of(p.x, at, stream)[i];
    float streams[kMaxStreams];
    load_streams(p.before, at, i, streams);
    return mixed_out(p.before, at, stream, i, p.before.y.p[at * p.before.y.s0 + i], streams);
  };
  float held[kHeld][kMixesPerPass];
  const auto load_held = [&](int base) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (tid + j * kThreads < n_values) load_weights(base, tid + j * kThreads, held[j]);
    }
  };
  load_held(0);
  begin();
  for (int base = 0; base < p.n_mixes; base += kMixesPerPass) {
    float acc[kTokens][kMixesPerPass + 1] = {};  // the last: squares
    const auto take = [&](int e, const float(&f)[kMixesPerPass]) {
      float x[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        x[t] = value_of(t, e);
        acc[t][kMixesPerPass] = fmaf(x[t], x[t], acc[t][kMixesPerPass]);
      }
#pragma unroll
      for (int m = 0; m < kMixesPerPass; ++m) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) acc[t][m] = fmaf(f[m], x[t], acc[t][m]);
      }
    };
    if (base > 0) load_held(base);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (tid + j * kThreads < n_values) take(tid + j * kThreads, held[j]);
    }
    for (int e = tid + kHeld * kThreads; e < n_values; e += kThreads) {
      float f[kMixesPerPass];
      load_weights(base, e, f);
      take(e, f);
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
        p.partial[((token + t) * (p.n_mixes + 1) + at) * kHcSplits + slice] = sum;
      }
    }
  }
}

__device__ __forceinline__ float sigmoid(float z) { return 1.0F / (1.0F + expf(-z)); }

__device__ __forceinline__ float reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

// Four streams: every lane holds all of c, so that a step waits for no other lane. Rounding errors of the
// reciprocals do not add up, as every step norms anew; an iteration that changes nothing but roundings is the
// last.
__device__ void sinkhorn_four(float* c, float eps, int iterations) {
  float v[4][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) v[j][k] = c[4 * j + k];
    const float top = fmaxf(fmaxf(v[j][0], v[j][1]), fmaxf(v[j][2], v[j][3]));
#pragma unroll
    for (int k = 0; k < 4; ++k) v[j][k] = expf(v[j][k] - top);
    const float sum = (v[j][0] + v[j][1]) + (v[j][2] + v[j][3]);
#pragma unroll
    for (int k = 0; k < 4; ++k) v[j][k] = v[j][k] / sum + eps;
  }
  float change = 0.0F;  // largest of an iteration
  const auto norm_columns = [&] {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float f = reciprocal((v[0][k] + v[1][k]) + (v[2][k] + v[3][k]) + eps);
      change = fmaxf(change, fabsf(f - 1.0F));
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j][k] *= f;
    }
  };
  norm_columns();
  change = 1.0F;  // that was half of one
#pragma unroll 1
  for (int i = 1; i < iterations && !(change <= 0x1p-22F); ++i) {
    change = 0.0F;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float f = reciprocal((v[j][0] + v[j][1]) + (v[j][2] + v[j][3]) + eps);
      change = fmaxf(change, fabsf(f - 1.0F));
#pragma unroll
      for (int k = 0; k < 4; ++k) v[j][k] *= f;
    }
    norm_columns();
  }
  __syncwarp();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) c[4 * j + k] = v[j][k];
  }
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

constexpr int kWorkers = 512, kWeightThreads = kWorkers + 32;
constexpr int kPerWorker = 16, kEarlyStreams = 4;  // values of a row that a worker holds, of so many streams

// Warp 0: mixes and Sinkhorn; the workers: collapse and norm, pieces of kWide columns each.
template <int kWide>
__global__ void __launch_bounds__(kWeightThreads, 1) weights_kernel(const __grid_constant__ HcParams p) {
  using Piece = RowPiece<kWide>;
  constexpr int kPieces = kPerWorker / kWide;
  __shared__ float mix[kMaxMixes + 1];
  __shared__ float pre[kMaxStreams];
  __shared__ float bases[kMaxMixes];
  __shared__ float scratch[kWeightThreads / 32];
  const int64_t t = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x), n = p.n_streams, d = p.x.d;
  const bool collapses = tid >= 32 && p.collapsed.p != nullptr;
  const auto column = [&](int j) { return (tid - 32 + j * kWorkers) * kWide; };
  if (tid < p.n_mixes) bases[tid] = p.base[tid];
  float scales[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) scales[i] = p.scale[p.head != 0 ? 0 : i];
  Piece weight[kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) weight[j].v[e] = 1.0F;
    if (collapses && p.norm != nullptr && column(j) < d) weight[j].load_from(p.norm + column(j));
  }
  begin();
  // The first streams are on their way while the weights are made.
  constexpr int kWarps = kWeightThreads / 32, kMixesPerWarp = div_up(kMaxMixes + 1, kWarps);
  static_assert(kHcSplits == 64, "two slices per lane");
  float sums[kMixesPerWarp];
#pragma unroll
  for (int j = 0; j < kMixesPerWarp; ++j) {
    const int m = tid / 32 + j * kWarps;
    const float* partial = p.partial + (t * (p.n_mixes + 1) + m) * kHcSplits + tid % 32;
    sums[j] = m <= p.n_mixes ? partial[0] + partial[32] : 0.0F;
  }
  Piece early[kEarlyStreams][kPieces];
#pragma unroll
  for (int s = 0; s < kEarlyStreams; ++s) {
    const float* x = stream_of(p.x, t, min(s, n - 1));
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int e = 0; e < kWide; ++e) early[s][j].v[e] = 0.0F;
      if (collapses && column(j) < d) early[s][j].load_from(x + column(j));
    }
  }
#pragma unroll
  for (int j = 0; j < kMixesPerWarp; ++j) {
    const int m = tid / 32 + j * kWarps;
    if (m > p.n_mixes) break;
    const float sum = warp_sum(sums[j]);
    if (tid % 32 == 0) mix[m] = sum;
  }
  __syncthreads();
  const float rms = rsqrtf(mix[p.n_mixes] / static_cast<float>(n * d) + p.norm_eps);
  if (tid < n) {
    pre[tid] = sigmoid(mix[tid] * rms * scales[0] + bases[tid]) + p.eps;
    p.pre[t * n + tid] = pre[tid];
  }
  __syncthreads();
  if (tid < 32) {
    if (p.head != 0) return;
    if (tid < n) p.post[t * n + tid] = 2.0F * sigmoid(mix[n + tid] * rms * scales[1] + bases[n + tid]);
    for (int i = tid; i < n * n; i += 32)
      mix[2 * n + i] = mix[2 * n + i] * rms * scales[2] + bases[2 * n + i];
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
  Piece v[kPieces];
  const auto add_stream = [&](Piece& sum, float weight, const Piece& x) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) sum.v[e] = fmaf(weight, x.v[e], sum.v[e]);
  };
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) v[j].v[e] = 0.0F;
#pragma unroll
    for (int s = 0; s < kEarlyStreams; ++s) {
      if (s < n) add_stream(v[j], pre[s], early[s][j]);
    }
    for (int s = kEarlyStreams; s < n && column(j) < d; ++s) {
      Piece x;
      x.load_from(stream_of(p.x, t, s) + column(j));
      add_stream(v[j], pre[s], x);
    }
  }
  if (p.normed.p != nullptr) {
    float squares = 0.0F;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int e = 0; e < kWide; ++e) squares = fmaf(v[j].v[e], v[j].v[e], squares);
    }
    squares = warp_sum(squares);
    if (tid % 32 == 0) scratch[tid / 32] = squares;
    asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
    float sum = 0.0F;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += scratch[w];
    const float factor = 1.0F / sqrtf(sum / static_cast<float>(d) + p.out_eps);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int e = 0; e < kWide; ++e) v[j].v[e] = v[j].v[e] * factor * weight[j].v[e];
    }
  }
  float* out = (p.normed.p != nullptr ? p.normed.p + t * p.normed.s0 : p.collapsed.p + t * p.collapsed.s0);
  uint8_t* digits = p.digits.p + t * p.digits.stride;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int i = column(j);
    if (i - tid % 32 * kWide >= d) break;  // by whole warps
    if (i < d) v[j].store_to(out + i);
    if (p.digits.p == nullptr) continue;
    if constexpr (kWide == 4) {
      write_digits(digits, d, i / 32, make_float4(v[j].v[0], v[j].v[1], v[j].v[2], v[j].v[3]), i < d,
                   0xffffffffU);
    } else {  // d is a multiple of 32
      write_digits(digits, d, i / 32, v[j].v[0]);
    }
  }
}

// A thread per column, all streams.
__global__ void __launch_bounds__(256) post_kernel(const __grid_constant__ HcPostParams p) {
  begin();
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * 256 + threadIdx.x);
  if (i >= p.y.d) return;
  const float y = row_of(p.y, t)[i];
  float x[kMaxStreams];
  load_streams(p, t, i, x);
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    if (k < p.n_streams) mixed_out(p, t, k, i, y, x);
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
  const int tokens = p.n_tokens >= kHcTokens ? kHcTokens : 1;
  const dim3 grid(static_cast<unsigned>(div_up(p.n_tokens, tokens)), kHcSplits);
  if (tokens > 1) return make_launch("hc_products", products_kernel<kHcTokens, 8>, grid, kThreads, p);
  return make_launch("hc_products", products_kernel<1, 24>, grid, kThreads, p);
}
Launch hc_weights(const HcParams& p) {
  const auto wide = [&](const View& v) {
    return reinterpret_cast<uintptr_t>(v.p) % 16 == 0 && v.s0 % 4 == 0 && v.s1 % 4 == 0;
  };
  const bool all_wide = p.x.d % 4 == 0 && wide(p.x) && wide(p.collapsed) && wide(p.normed) &&
                        reinterpret_cast<uintptr_t>(p.norm) % 16 == 0;
  return make_launch("hc_weights", all_wide ? weights_kernel<4> : weights_kernel<1>,
                     static_cast<unsigned>(p.n_tokens), kWeightThreads, p);
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
