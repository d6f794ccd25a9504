// Products with many activation rows on Hopper (wgmma). A block per processor takes tiles of 256 weight rows
// and up to 128 tokens in turn. One warpgroup copies: activations and codes of 64 inputs per stage, and
// scales as f32. Two multiply: they decode weights from the stage straight into the registers of operand A,
// half of their rows while the other half multiplies. K runs in order and columns are independent, as in
// gemm.cu, which is the plain form of this kernel and takes what it does not.
#include "cuda/kernels/gemm.h"
#include "cuda/kernels/strips.cuh"
#include "cuda/kernels/warpgroup.cuh"

namespace synod::cuda {
namespace {

constexpr int kTileRows = kStripRows, kTileTokens = kGemmTokens, kTileInputs = kStripInputs;
constexpr int kProducers = kStripThreads, kConsumers = 256, kThreads = kProducers + kConsumers;
constexpr int kStages = 4, kLag = 2;  // kLag stages have copies under way
static_assert(kLag <= 2, "notes of 16 bits");
constexpr int kTokenBytes = kTileInputs * 2;

template <Codec kCodec>
struct Stage {
  using S = Strips<kCodec>;
  static constexpr int kGroups = kTileInputs / S::kGroup;
  static constexpr int kScaleValues = S::kMin ? 2 : 1;
  static constexpr int kStripsAt = kTileTokens * kTokenBytes;
  static constexpr int kScalesAt = kStripsAt + S::kStripBytes * kTileRows;
  static constexpr int kStoredAt = kScalesAt + kGroups * kScaleValues * 4 * kTileRows;
  static constexpr int kUsed = kStoredAt + S::kScaleBytes * kTileRows;
  static constexpr int kBytes = (kUsed + 1023) / 1024 * 1024;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A tile: where its tokens and rows lie.
struct Tile {
  int64_t weight_base;  // first row of the expert or group
  int64_t first_row;    // within it
  int64_t first_token;  // or entry of `slots`
  int group, n_tokens;  // 0: none
};
__device__ __forceinline__ Tile tile_at(const GemmParams& p, int64_t index) {
  const int rows_of_tile = p.pair != 0 ? kTileRows / 2 : kTileRows;
  const auto across = static_cast<int>(div_up<int64_t>(p.rows, rows_of_tile));
  const int x = static_cast<int>(index % across);
  int y = static_cast<int>(index / across);
  Tile t{.weight_base = 0, .first_row = static_cast<int64_t>(x) * rows_of_tile, .group = 0};
  if (p.tile_expert != nullptr) {
    const int expert = p.tile_expert[y];
    t.n_tokens = expert < 0 ? 0 : p.tile_count[y];
    t.weight_base = max(expert, 0) * p.rows;
    t.first_token = p.tile_start[y];
    return t;
  }
  const int down = static_cast<int>(div_up<int64_t>(p.n_tokens, kTileTokens));
  if (p.n_groups > 0) {
    t.group = y / down, y %= down;
    t.weight_base = t.group * p.rows;
  }
  t.first_token = static_cast<int64_t>(y) * kTileTokens;
  t.n_tokens = static_cast<int>(min(static_cast<int64_t>(kTileTokens), p.n_tokens - t.first_token));
  return t;
}
struct TokenRows {
  int64_t x, out;
};
__device__ __forceinline__ TokenRows rows_of_token(const GemmParams& p, const Tile& t, int token) {
  if (p.tile_expert != nullptr) {
    const int slot = p.slots[t.first_token + token];
    return {p.x_per_slot != 0 ? slot : slot / p.k, slot};
  }
  int64_t row = t.first_token + token;
  if (p.n_groups > 0) row = row * p.n_groups + t.group;
  return {row, row};
}

struct Shared {
  uint64_t full[kStages], empty[kStages];
  float *out[kTileTokens], *up_out[kTileTokens];
  float scale[kTileTokens];
  uint2 book[256];
};

// The place in the ring of stages.
struct Turn {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1U;
  }
};

template <Codec kCodec>
__device__ __forceinline__ void produce(const GemmParams& p, Shared& s, uint8_t* stages, int64_t n_tiles,
                                        int steps) {
  using St = Stage<kCodec>;
  using S = Strips<kCodec>;
  const int tid = static_cast<int>(threadIdx.x) % kProducers;
  Turn turn;
  int under_way = 0, oldest = 0;
  uint32_t notes = 0;  // of the rows of the stages under way: 16 bits each
  const float range = tid < 64 ? p.weight.range : p.up.range;
  // A thread turns the scales that it copied itself.
  const auto finish = [&](uint32_t note) {
    uint8_t* stage = stages + oldest * St::kBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = i * kProducers + tid;
      const typename S::Scales scales(stage + St::kStoredAt + row * S::kScaleBytes, note >> (8 * i) & 255U,
                                      stage + St::kStripsAt, row);
      auto* values = reinterpret_cast<float*>(stage + St::kScalesAt);
#pragma unroll
      for (int g = 0; g < St::kGroups; ++g) {
        const float2 v = scales.value(g);
        if constexpr (S::kMin) {
          reinterpret_cast<float2*>(values)[g * kTileRows + row] = make_float2(v.x * range, v.y * range);
        } else {
          values[g * kTileRows + row] = v.x * range;
        }
      }
    }
    publish_to_matrix_unit();
    barrier_arrive(&s.full[oldest]);
    oldest = oldest + 1 == kStages ? 0 : oldest + 1;
  };
  for (int64_t index = blockIdx.x; index < n_tiles; index += gridDim.x) {
    const Tile tile = tile_at(p, index);
    if (tile.n_tokens == 0) continue;
    // Piece tid % 8 of every 16th token.
    constexpr int kPasses = kTileTokens / (kProducers / 8);
    uint32_t x_at[kPasses];  // in pieces of 16 bytes
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int token = tid / 8 + i * (kProducers / 8);
      const int64_t row = rows_of_token(p, tile, min(token, tile.n_tokens - 1)).x;
      x_at[i] = static_cast<uint32_t>(row * (p.x.stride / 8) + tid % 8);
    }
    StripRows rows;
    rows.even = tile.weight_base + tile.first_row;
    rows.odd = rows.even + (p.pair != 0 ? 0 : 64);
    rows.even_left = static_cast<int32_t>(min(p.rows - tile.first_row, int64_t{kTileRows}));
    rows.odd_left = rows.even_left - (p.pair != 0 ? 0 : 64);
    rows.step = p.pair != 0 ? 64 : 128;
    for (int step = 0; step < steps; ++step) {
      uint8_t* stage = stages + turn.stage * St::kBytes;
      barrier_wait(&s.empty[turn.stage], turn.phase ^ 1U);
      const uint32_t x_to =
          shared_address(stage) + static_cast<uint32_t>(tid / 8 * kTokenBytes + (tid % 8 ^ tid / 8 % 8) * 16);
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        if (i * (kProducers / 8) >= tile.n_tokens) break;
        fetch_16(x_to + static_cast<uint32_t>(i * (kProducers / 8) * kTokenBytes),
                 reinterpret_cast<const uint4*>(p.x.high) + x_at[i] + step * 8);
      }
      S::copy(p, rows, step, shared_address(stage + St::kStripsAt));
      uint32_t note = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        note |=
            S::copy_scales(p, rows, step, i,
                           shared_address(stage + St::kStoredAt + (i * kProducers + tid) * S::kScaleBytes))
            << (8 * i);
      }
      end_fetch();
      turn.next();
      if (++under_way > kLag) {
        --under_way;
        wait_fetch<kLag>();
        finish(notes >> (16 * (kLag - 1)));
      }
      notes = notes << 16 | note;
    }
  }
  wait_fetch<0>();
  for (; under_way > 0; --under_way) finish(notes >> (16 * (under_way - 1)));
}

// 16 weights of a row as operand registers: [16 inputs][low, high columns].
template <Codec kCodec>
__device__ __forceinline__ void decode_row(const uint8_t* stage, int row, int part, int step,
                                           const uint2* book, uint32_t (&out)[4][2]) {
  using St = Stage<kCodec>;
  using S = Strips<kCodec>;
  __half2 codes[8];
  S::codes(stage + St::kStripsAt, row, part, step, book, codes);
  const uint8_t* scales = stage + St::kScalesAt;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = (S::kGroup == 32 ? i : 2 * i + part / 2) * kTileRows + row;
    float2 scale;
    if constexpr (S::kMin) {
      scale = reinterpret_cast<const float2*>(scales)[at];
    } else {
      scale = {reinterpret_cast<const float*>(scales)[at], 0.0F};
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 v = __half22float2(codes[4 * i + j]);
      if constexpr (S::kMin) {
        v.x = fmaf(v.x, scale.x, -scale.y), v.y = fmaf(v.y, scale.x, -scale.y);
      } else {
        v.x *= scale.x, v.y *= scale.x;
      }
      out[2 * i + j / 2][j % 2] = bits_of(__floats2half2_rn(v.x, v.y));
    }
  }
}

using Sums = float[2][kTileTokens / 2];  // of the two halves of a warpgroup's rows

// The first kTokens columns of a tile.
template <Codec kCodec, int kTokens>
__device__ __forceinline__ void multiply(Shared& s, const uint8_t* stages, Turn& turn, int steps,
                                         Sums& sums) {
  using St = Stage<kCodec>;
  const int tid = static_cast<int>(threadIdx.x) - kProducers, lane = tid % 32;
  const int own_row = tid / 128 * 128 + tid % 128 / 32 * 16 + lane / 4, part = lane % 4;
  uint32_t a[2][4][4];
  int before = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const uint8_t* stage = stages + turn.stage * St::kBytes;
    const uint64_t tokens = operand_of(shared_address(stage));
    barrier_wait(&s.full[turn.stage], turn.phase);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto& sum = reinterpret_cast<float(&)[kTokens / 2]>(sums[half]);
      products_wait<1>();  // those that read a[half]
      if (half == 1 && step > 0 && lane == 0) barrier_arrive(&s.empty[before]);
      uint32_t near[4][2], far[4][2];
      decode_row<kCodec>(stage, own_row + 64 * half, part, step, s.book, near);
      decode_row<kCodec>(stage, own_row + 64 * half + 8, part, step, s.book, far);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[half][i][0] = near[i][0], a[half][i][1] = far[i][0];
        a[half][i][2] = near[i][1], a[half][i][3] = far[i][1];
      }
      keep_registers(sum);
      products_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) multiply_add(sum, a[half][i], tokens + i * kNextSixteen, 1);
      products_commit();
    }
    before = turn.stage;
    turn.next();
  }
  products_wait<0>();
  keep_registers(sums[0]);
  keep_registers(sums[1]);
  if (lane == 0) barrier_arrive(&s.empty[before]);
}

__device__ __forceinline__ void write(const GemmParams& p, const Shared& s, const Tile& tile,
                                      const Sums& sums) {
  const int tid = static_cast<int>(threadIdx.x) - kProducers, lane = tid % 32;
  const float unscale[2] = {1.0F / p.weight.range, 1.0F / p.up.range};
  const bool pair = p.pair != 0;
  const int row = tid / 128 * (pair ? 64 : 128) + tid % 128 / 32 * 16 + lane / 4;
  const auto rows = static_cast<int>(min(p.rows - tile.first_row, int64_t{kTileRows}));
#pragma unroll
  for (int i = 0; i < kTileTokens / 8; ++i) {
    if (8 * i >= tile.n_tokens) break;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = 8 * i + lane % 4 * 2 + e;
      if (token >= tile.n_tokens) continue;
      const float scale = s.scale[token];
      float* out = s.out[token] + tile.first_row + row;
#pragma unroll
      for (int far = 0; far < 2; ++far) {
        const float first = sums[0][4 * i + 2 * far + e] * (scale * unscale[0]);
        const float second = sums[1][4 * i + 2 * far + e] * (scale * unscale[1]);
        if (pair) {
          if (row + 8 * far >= rows) continue;
          out[8 * far] = glu(first, second, p.act, p.limit, 1.0F);
          if (p.up_out.p != nullptr) s.up_out[token][tile.first_row + row + 8 * far] = second;
        } else {
          if (row + 8 * far < rows) out[8 * far] = first;
          if (row + 8 * far + 64 < rows) out[8 * far + 64] = second;
        }
      }
    }
  }
}

template <Codec kCodec>
__device__ __forceinline__ void consume_all(const GemmParams& p, Shared& s, const uint8_t* stages,
                                            int64_t n_tiles, int steps) {
  const int tid = static_cast<int>(threadIdx.x) - kProducers;
  if (kCodec == Codec::kIQ2_XXS) s.book[tid] = static_cast<const uint2*>(p.weight.codebook)[tid];
  Turn turn;
  for (int64_t index = blockIdx.x; index < n_tiles; index += gridDim.x) {
    const Tile tile = tile_at(p, index);
    if (tile.n_tokens == 0) continue;
    sync_threads(1, kConsumers);  // the last tile's epilogue has read this
    if (tid < tile.n_tokens) {
      const TokenRows rows = rows_of_token(p, tile, tid);
      s.out[tid] = row_of(p.out, rows.out);
      s.up_out[tid] = row_of(p.up_out, rows.out);
      s.scale[tid] = p.x.scale[rows.x];
    }
    sync_threads(1, kConsumers);
    Sums sums;
#pragma unroll
    for (int i = 0; i < kTileTokens / 2; ++i) sums[0][i] = sums[1][i] = 0.0F;
    if (tile.n_tokens <= 64) {
      multiply<kCodec, 64>(s, stages, turn, steps, sums);
      write(p, s, tile, sums);
      continue;
    }
    multiply<kCodec, 128>(s, stages, turn, steps, sums);
    write(p, s, tile, sums);
  }
}

template <Codec kCodec>
__global__ void __launch_bounds__(kThreads, 1) warpgroup_kernel(const __grid_constant__ GemmParams p) {
  extern __shared__ uint8_t dynamic[];
  __shared__ Shared s;
  // The matrix unit's rows repeat every 1024 bytes.
  uint8_t* stages = dynamic + (1024U - shared_address(dynamic) % 1024U) % 1024U;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], kProducers);
      barrier_init(&s.empty[i], kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  begin();
  const int64_t n_tiles = p.n_tiles;
  const int steps = p.weight.n_in / kTileInputs;
  if (threadIdx.x < kProducers) {
    give_registers<56>();
    produce<kCodec>(p, s, stages, n_tiles, steps);
  } else {
    take_registers<224>();
    consume_all<kCodec>(p, s, stages, n_tiles, steps);
  }
}

#else

// Too small for the block: fits() finds out that this card has another kernel.
template <Codec kCodec>
__global__ void __launch_bounds__(32) warpgroup_kernel(const __grid_constant__ GemmParams) {}

#endif

template <Codec kCodec>
bool runs() {
  static const bool result = [] {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, warpgroup_kernel<kCodec>) == cudaSuccess &&
           attributes.maxThreadsPerBlock >= kThreads;
  }();
  return result;
}

int processors() {
  static const int result = [] {
    int device = 0, n = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
  }();
  return result;
}

}  // namespace

bool warpgroup_fits(const DeviceMatrix& m) {
  if (m.n_in == 0 || m.n_in % kTileInputs != 0 || !rows_aligned(m)) return false;
  return with_codec(m.codec, true, [](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    if constexpr (Strips<kCodec>::kFits) {
      return runs<kCodec>();
    } else {
      return false;
    }
  });
}

Launch warpgroup_gemm(GemmParams p) {
  if (p.pair == 0) p.up = p.weight;
  return with_codec(p.weight.codec, true, [&](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    if constexpr (Strips<kCodec>::kFits) {
      const int64_t tokens =
          p.tile_expert != nullptr ? p.max_tiles : div_up<int64_t>(p.n_tokens, kTileTokens);
      p.n_tiles = div_up<int64_t>(p.rows, p.pair != 0 ? kTileRows / 2 : kTileRows) * tokens *
                  (p.n_groups > 0 ? p.n_groups : 1);
      const auto blocks = static_cast<unsigned>(std::min<int64_t>(p.n_tiles, processors()));
      return make_launch("gemm", warpgroup_kernel<kCodec>, blocks, kThreads, p,
                         kStages * Stage<kCodec>::kBytes + 1024);
    } else {
      return Launch{};
    }
  });
}

}  // namespace synod::cuda
