// Products of stored matrices with few activation rows. A warp owns kRows outputs; its lanes take the chunks
// of a row in turn, so a result is one fixed sequence of operations whatever kRows or the batch.
#include "cuda/kernels/chunks.cuh"

namespace synod::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kStreamBlocks = 5;  // of a processor, by registers

template <Codec kCodec>
__device__ __forceinline__ const void* codebook_to_shared(const DeviceMatrix& m) {
  if constexpr (kCodec == Codec::kIQ2_XXS) {
    __shared__ uint2 grid[256];
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += 32 * kWarps) {
      grid[i] = __ldg(static_cast<const uint2*>(m.codebook) + i);
    }
    __syncthreads();
    return grid;
  } else {
    return nullptr;
  }
}

// Activation row r in the form the codec wants.
template <bool kDigits>
__device__ __forceinline__ auto x_row(const DigitRows& digits, const View& x, int64_t r) {
  if constexpr (kDigits) {
    return static_cast<const uint8_t*>(digits.p + r * digits.stride);
  } else {
    return static_cast<const float*>(row_of(x, r));
  }
}

// Steps of 32 chunks whose loads are in flight together: latency, not instructions, bounds small products.
template <Codec kCodec, int kTokens, int kRows>
__host__ __device__ constexpr int depth_of() {
  if (Chunk<kCodec>::kValues == 64 || kRows == 4 || kTokens > 1) return 2;
  return kCodec == Codec::kF32 ? 8 : 4;
}

template <Codec kCodec, int kTokens, int kRows>
__global__ void __launch_bounds__(32 * kWarps) gemv_kernel(const __grid_constant__ GemvParams p) {
  using W = Chunk<kCodec>;
  constexpr int kDepth = depth_of<kCodec, kTokens, kRows>();
  __shared__ float slices[kWarps][kTokens][kRows];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  // p.split warps share the rows of a group: each takes every p.split-th step of 32 chunks.
  const int slice = warp % p.split;
  const int64_t group = (static_cast<int64_t>(blockIdx.x) * (kWarps / p.split) + warp / p.split) * kRows;
  int which = 0;
#pragma unroll
  for (int i = 1; i < kMaxParts; ++i) {
    if (i < p.n_parts && group >= p.parts[i].first_row) which = i;
  }
  const GemvPart& part = p.parts[which];
  const DeviceMatrix& m = part.weight;
  const int64_t row = group - part.first_row;
  const void* grid = codebook_to_shared<kCodec>(p.parts[0].weight);
  const bool active = row < m.n_out;
  const int n_chunks = active ? div_up(m.n_in, W::kValues) : 0;
  const int stride = 32 * p.split, last = n_chunks - 1;
  W w[kDepth][kRows];
  const auto load_rows = [&](int base) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (base + i * stride >= n_chunks) break;
      const int c = min(base + i * stride + lane, last);
#pragma unroll
      for (int r = 0; r < kRows; ++r) w[i][r].load_from(m, min(row + r, m.n_out - 1), c);
    }
  };
  load_rows(32 * slice);  // weights are constants: fetched before the wait
  begin();
  const int64_t x_group = p.n_groups == 1 || !active ? 0 : row / p.rows_per_group;
  const int start = static_cast<int>(blockIdx.y) * kTokens, pass = static_cast<int>(gridDim.y) * kTokens;
  for (int first = start; first < p.n_tokens; first += pass) {
    float acc[kTokens][kRows] = {};
    for (int base = 32 * slice; base < n_chunks; base += kDepth * stride) {
      if (first > start || base > 32 * slice) load_rows(base);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const int token = min(first + t, p.n_tokens - 1);
        const auto x_of =
            x_row<W::kDigits>(p.digits, p.x, static_cast<int64_t>(token) * p.n_groups + x_group);
        typename W::X x[kDepth];
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          if (base + i * stride >= n_chunks) break;
          x[i].load_from(x_of, m.n_in, min(base + i * stride + lane, last));
        }
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          if (base + i * stride >= n_chunks) break;
          const bool mine = base + i * stride + lane < n_chunks;
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const float v = w[i][r].dot(x[i], grid);
            acc[t][r] += mine ? v : 0.0F;
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = warp_sum(acc[t][r]);
        if (lane == 0) slices[warp][t][r] = sum;
      }
    }
    __syncthreads();
    if (slice == 0 && active && lane < kTokens * kRows) {
      const int t = lane / kRows, r = lane % kRows;
      if (first + t < p.n_tokens && row + r < m.n_out) {
        float sum = slices[warp][t][r];
        for (int i = 1; i < p.split; ++i) sum += slices[warp + i][t][r];
        float* out = row_of(part.out, static_cast<int64_t>(first + t) * p.n_groups + x_group);
        out[row - x_group * p.rows_per_group + r] = sum * part.factor;
      }
    }
    if (first + pass < p.n_tokens) __syncthreads();
  }
}

// Warps per row group: so many that a lane's loads are issued at once. By shape alone, as it orders the sum.
template <Codec kCodec>
int split_of(const DeviceMatrix& m) {
  const int steps = div_up(m.n_in, 32 * Chunk<kCodec>::kValues);
  return steps <= 4 ? 1 : steps <= 8 ? 2 : 4;
}

template <Codec kCodec, int kTokens, int kRows>
Launch gemv_launch(GemvParams p) {
  int64_t rows = 0;
  p.split = split_of<kCodec>(p.parts[0].weight);
  for (int i = 0; i < p.n_parts; ++i) {
    p.parts[i].first_row = rows;
    rows += div_up<int64_t>(p.parts[i].weight.n_out, kRows) * kRows;
  }
  // Groups of tokens run side by side: the weights of the second come from the cache.
  const dim3 grid(static_cast<unsigned>(div_up<int64_t>(rows / kRows, kWarps / p.split)),
                  static_cast<unsigned>(div_up(p.n_tokens, kTokens)));
  return make_launch("gemv", gemv_kernel<kCodec, kTokens, kRows>, grid, 32 * kWarps, p);
}

// One token, rows that a warp loads at once: a block takes rows in turn, the next one's weights on their way
// while it adds, and keeps its activations.
template <Codec kCodec>
__global__ void __launch_bounds__(32 * kWarps, kStreamBlocks)
    gemv_stream_kernel(const __grid_constant__ GemvParams p) {
  using W = Chunk<kCodec>;
  constexpr int kDepth = depth_of<kCodec, 1, 1>();
  __shared__ float slices[2][kWarps];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int slice = warp % p.split, stride = 32 * p.split, rows = kWarps / p.split;
  const int n_in = p.parts[0].weight.n_in, n_chunks = div_up(n_in, W::kValues), last = n_chunks - 1;
  const auto part_of = [&](int64_t row) {
    int which = 0;
#pragma unroll
    for (int i = 1; i < kMaxParts; ++i) {
      if (i < p.n_parts && row >= p.parts[i].first_row) which = i;
    }
    return which;
  };
  const auto load_row = [&](W(&w)[kDepth], int64_t row) {
    if (row >= p.n_rows) return;
    const GemvPart& part = p.parts[part_of(row)];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (32 * slice + i * stride >= n_chunks) break;
      w[i].load_from(part.weight, row - part.first_row, min(32 * slice + i * stride + lane, last));
    }
  };
  int64_t row = static_cast<int64_t>(blockIdx.x) * rows + warp / p.split;
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows;
  W ahead[kDepth];
  load_row(ahead, row);
  begin();
  typename W::X x[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    if (32 * slice + i * stride >= n_chunks) break;
    x[i].load_from(p.x.p, n_in, min(32 * slice + i * stride + lane, last));
  }
  int turn = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows; first < p.n_rows; first += step, ++turn) {
    W w[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) w[i] = ahead[i];
    load_row(ahead, row + step);
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (32 * slice + i * stride >= n_chunks) break;
      const float v = w[i].dot(x[i], nullptr);
      sum += 32 * slice + i * stride + lane < n_chunks ? v : 0.0F;
    }
    sum = warp_sum(sum);
    if (p.split > 1) {
      float* meet = slices[turn % 2];
      if (lane == 0) meet[warp] = sum;
      __syncthreads();
      if (slice == 0) {
        for (int i = 1; i < p.split; ++i) sum += meet[warp + i];
      }
    }
    if (slice == 0 && lane == 0 && row < p.n_rows) {
      const GemvPart& part = p.parts[part_of(row)];
      part.out.p[row - part.first_row] = sum * part.factor;
    }
    row += step;
  }
}

// Whether a warp holds its share of a row, and rows are few enough that a launch is mostly latency.
template <Codec kCodec>
bool streams_rows(const GemvParams& p) {
  constexpr int64_t kMostRows = 65536;
  constexpr int kDepth = depth_of<kCodec, 1, 1>();
  const DeviceMatrix& m = p.parts[0].weight;
  return p.n_tokens == 1 && p.n_groups == 1 && p.n_rows <= kMostRows &&
         m.n_in <= 32 * split_of<kCodec>(m) * kDepth * Chunk<kCodec>::kValues;
}

template <Codec kCodec>
Launch stream_launch(GemvParams p) {
  constexpr int64_t kMostBlocks = 128 * kStreamBlocks;
  p.split = split_of<kCodec>(p.parts[0].weight);
  p.n_rows = 0;
  for (int i = 0; i < p.n_parts; ++i) {
    p.parts[i].first_row = p.n_rows;
    p.n_rows += p.parts[i].weight.n_out;
  }
  const int64_t blocks = div_up<int64_t>(p.n_rows, kWarps / p.split), turns = div_up(blocks, kMostBlocks);
  return make_launch("gemv", gemv_stream_kernel<kCodec>, static_cast<unsigned>(div_up(blocks, turns)),
                     32 * kWarps, p);
}

// Chosen experts of one token. Gate and up rows of the same outputs share a warp, which applies the
// activation.
template <Codec kCodec, bool kPair>
__global__ void __launch_bounds__(32 * kWarps) expert_kernel(const __grid_constant__ ExpertGemvParams p) {
  using W = Chunk<kCodec>;
  constexpr int kDepth = W::kValues == 64 ? 2 : 4, kSides = kPair ? 2 : 1;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const void* grid = codebook_to_shared<kCodec>(p.gate);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int slot = static_cast<int>(blockIdx.y), token = static_cast<int>(blockIdx.z);
  if (row >= p.rows_per_expert) return;
  begin();
  const int32_t id = p.ids[token * p.ids_stride + slot];
  const int64_t slot_row = static_cast<int64_t>(token) * p.k + slot;
  float* out = row_of(p.out, slot_row) + row;
  if (id < 0 || id >= p.n_experts) {
    if (lane == 0) *out = 0.0F, raise(p.status, 2);
    return;
  }
  const int64_t at = static_cast<int64_t>(id) * p.rows_per_expert + row;
  const auto x_of = x_row<W::kDigits>(p.digits, p.x, p.x_per_slot != 0 ? slot_row : token);
  const int n_chunks = div_up(p.gate.n_in, W::kValues), last = n_chunks - 1;
  float acc[kSides] = {};
  for (int base = 0; base < n_chunks; base += 32 * kDepth) {
    W w[kDepth][kSides];
    typename W::X x[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (base + 32 * i >= n_chunks) break;
      const int c = min(base + 32 * i + lane, last);
      w[i][0].load_from(p.gate, at, c);
      if constexpr (kPair) w[i][1].load_from(p.up, at, c);
      x[i].load_from(x_of, p.gate.n_in, c);
    }
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (base + 32 * i >= n_chunks) break;
      const bool mine = base + 32 * i + lane < n_chunks;
#pragma unroll
      for (int s = 0; s < kSides; ++s) {
        const float v = w[i][s].dot(x[i], grid);
        acc[s] += mine ? v : 0.0F;
      }
    }
  }
  const float weight = p.row_weight == nullptr ? 1.0F : p.row_weight[token * p.row_weight_stride + slot];
  float v = warp_sum(acc[0]);
  if constexpr (kPair) v = glu(v, warp_sum(acc[1]), p.act, p.limit, weight);
  if (lane == 0) *out = v;
}

// The chunks of all chosen experts of a token in one run, experts ascending: lane i takes chunks i, i + 32,
// ...
template <Codec kCodec>
__global__ void __launch_bounds__(32 * kWarps)
    expert_down_kernel(const __grid_constant__ ExpertDownParams p) {
  using W = Chunk<kCodec>;
  constexpr int kDepth = W::kValues == 64 ? 2 : 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const void* grid = codebook_to_shared<kCodec>(p.down);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const auto token = static_cast<int64_t>(blockIdx.y);
  if (row >= p.rows_per_expert) return;
  begin();
  const int n_chunks = div_up(p.down.n_in, W::kValues), all = n_chunks * p.k, last = all - 1;
  const int32_t* ids = p.ids + token * p.ids_stride;
  float acc = 0.0F;
  for (int base = 0; base < all; base += 32 * kDepth) {
    W w[kDepth];
    typename W::X x[kDepth];
    float weight[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (base + 32 * i >= all) break;
      const int c = min(base + 32 * i + lane, last), slot = c / n_chunks;
      const int32_t id = ids[slot];
      weight[i] = p.weights == nullptr ? 1.0F : p.weights[token * p.weights_stride + slot];
      // A slot whose id is out of range adds nothing; the router raised the status.
      if (id < 0 || id >= p.n_experts || base + 32 * i + lane > last) weight[i] = 0.0F;
      w[i].load_from(p.down, static_cast<int64_t>(min(max(id, 0), p.n_experts - 1)) * p.rows_per_expert + row,
                     c % n_chunks);
      x[i].load_from(x_row<W::kDigits>(p.digits, p.x, token * p.k + slot), p.down.n_in, c % n_chunks);
    }
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (base + 32 * i >= all) break;
      const float v = w[i].dot(x[i], grid);
      acc = weight[i] == 0.0F ? acc : fmaf(weight[i], v, acc);
    }
  }
  const float sum = warp_sum(acc);
  if (lane == 0)
    row_of(p.out, token)[row] = sum + (p.shared.p == nullptr ? 0.0F : row_of(p.shared, token)[row]);
}

__global__ void __launch_bounds__(256) combine_kernel(const __grid_constant__ CombineParams p) {
  begin();
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * 256 + threadIdx.x);
  if (i >= p.out.d) return;
  const float* x = row_of(p.x, t * p.k) + i;
  const float shared = p.shared.p != nullptr ? row_of(p.shared, t)[i] : 0.0F;
  float sum = 0.0F;
  constexpr int kAtOnce = 8;  // loads before the first use
  for (int first = 0; first < p.k; first += kAtOnce) {
    float v[kAtOnce], weight[kAtOnce];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      const int at = min(first + s, p.k - 1);
      v[s] = x[at * p.x.s1];
      weight[s] = p.weights == nullptr ? 1.0F : p.weights[t * p.weights_stride + at];
    }
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      if (first + s < p.k) sum = fmaf(weight[s], v[s], sum);
    }
  }
  if (p.shared.p != nullptr) sum += shared;
  row_of(p.out, t)[i] = sum;
}

}  // namespace

bool uses_digits(const DeviceMatrix& m) {
  return with_chunk(chunk_codec(m), [](auto tag) { return Chunk<decltype(tag)::kValue>::kDigits; });
}

Launch gemv(const GemvParams& p) {
  return with_chunk(chunk_codec(p.parts[0].weight, &p.x), [&](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    const bool rows_pair = p.n_groups == 1 || p.rows_per_group % 4 == 0;
    // Codes take this path only in widths that tiles.cu does not.
    if constexpr (Chunk<kCodec>::kDigits) return gemv_launch<kCodec, 1, 1>(p);
    if constexpr (kCodec == Codec::kF16 || kCodec == Codec::kBF16) {
      if (streams_rows<kCodec>(p)) return stream_launch<kCodec>(p);
    }
    if constexpr (kCodec == Codec::kF16) {
      if (p.n_tokens == 1) {
        if (p.n_rows > 65536 && rows_pair) return gemv_launch<kCodec, 1, 4>(p);
        if (p.n_rows > 16384 && rows_pair) return gemv_launch<kCodec, 1, 2>(p);
        return gemv_launch<kCodec, 1, 1>(p);
      }
      if (!rows_pair) return gemv_launch<kCodec, 1, 1>(p);
      if (p.n_tokens == 2) return gemv_launch<kCodec, 2, 2>(p);
      if (p.n_tokens <= 4) return gemv_launch<kCodec, 4, 2>(p);
      return gemv_launch<kCodec, 8, 2>(p);
    } else {
      if (p.n_tokens == 1) return gemv_launch<kCodec, 1, 1>(p);
      return gemv_launch<kCodec, 4, 1>(p);
    }
  });
}

Launch expert_gemv(const ExpertGemvParams& p) {
  return with_chunk(chunk_codec(p.gate, &p.x), [&](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    const dim3 grid(static_cast<unsigned>(div_up<int64_t>(p.rows_per_expert, kWarps)),
                    static_cast<unsigned>(p.k), static_cast<unsigned>(p.n_tokens));
    if (p.up.n_out > 0)
      return make_launch("expert_gate_up", expert_kernel<kCodec, true>, grid, 32 * kWarps, p);
    return make_launch("expert_linear", expert_kernel<kCodec, false>, grid, 32 * kWarps, p);
  });
}

Launch expert_down(const ExpertDownParams& p) {
  return with_chunk(chunk_codec(p.down, &p.x), [&](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    const dim3 grid(static_cast<unsigned>(div_up<int64_t>(p.rows_per_expert, kWarps)),
                    static_cast<unsigned>(p.n_tokens));
    return make_launch("expert_down", expert_down_kernel<kCodec>, grid, 32 * kWarps, p);
  });
}

Launch combine_experts(const CombineParams& p) {
  const dim3 grid(static_cast<unsigned>(p.n_tokens), static_cast<unsigned>(div_up(p.out.d, 256)));
  return make_launch("combine_experts", combine_kernel, grid, 256, p);
}

}  // namespace synod::cuda
