// Products with many activation rows: f16 tensor-core tiles (mma.m16n8k16, f32 accumulators). Weights are
// decoded into shared memory, scaled by a power of two; activations are f16 rows scaled by a power of two
// (HalfRows). For weights that f16 holds exactly (or nearly) the activation's rounding error is a second
// product; f32 weights take a third. K runs in order and a column of an mma knows nothing of its neighbours,
// so results do not depend on which tokens share a tile.
#include "cuda/kernels/decode.cuh"
#include "cuda/kernels/fetch.cuh"
#include "cuda/kernels/gemm.h"

namespace synod::cuda {
namespace {

constexpr int kTileRows = 128, kTileTokens = kGemmTokens, kTileK = 32, kThreads = 256;
constexpr int kPitch = kTileK + 8;  // f16 values: rows of 80 bytes touch all banks in an ldmatrix
constexpr int kTileValues = kTileRows * kPitch;
static_assert(kTileRows == kTileTokens, "one pitch and size for both operands");

enum Split : int { kNone = 0, kActivations = 1, kBoth = 2 };

__device__ __forceinline__ void copy_16(void* shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(bytes));
}
__device__ __forceinline__ void copies_done() {
  end_fetch();
  wait_fetch<0>();
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack(float a, float b) {
  const __half2 h = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&h);
}

// Half `part` of 32 values as f16 to `high`, in the order of HalfRows, and what rounding lost to `low`
// (kBoth).
__device__ __forceinline__ void store_words(const uint32_t (&words)[8], int part, __half* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint2*>(to + 8 * i + 4 * part) = make_uint2(words[i], words[i + 4]);
  }
}
template <int kSplit>
__device__ __forceinline__ void store_weights(const float (&v)[16], float range, int part, __half* high,
                                              __half* low) {
  uint32_t words[8], rest[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float a = v[2 * i] * range, b = v[2 * i + 1] * range;
    words[i] = pack(a, b);
    if constexpr (kSplit == kBoth) {
      const __half2 h = *reinterpret_cast<const __half2*>(&words[i]);
      rest[i] = pack(a - __low2float(h), b - __high2float(h));
    }
  }
  store_words(words, part, high);
  if constexpr (kSplit == kBoth) store_words(rest, part, low);
}

// Shared memory per stage: weights, activations, [activations low], [weights low].
__host__ __device__ constexpr int tiles_of(int split) {
  return split == kNone ? 2 : split == kActivations ? 3 : 4;
}

template <Codec kCodec, int kSplit>
__global__ void __launch_bounds__(kThreads) gemm_kernel(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(128) __half shared[];
  __shared__ int64_t x_rows[kTileTokens];    // row of HalfRows, -1 for none
  __shared__ int64_t out_rows[kTileTokens];  // row of out
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  begin();

  int64_t weight_base = 0;
  int n_tile = kTileTokens;
  if (p.tile_expert != nullptr) {
    const int expert = p.tile_expert[blockIdx.y];
    if (expert < 0) return;
    weight_base = expert * p.rows;
    n_tile = p.tile_count[blockIdx.y];
  } else {
    n_tile = static_cast<int>(
        min(static_cast<int64_t>(kTileTokens), p.n_tokens - static_cast<int64_t>(blockIdx.y) * kTileTokens));
  }
  const int group = static_cast<int>(blockIdx.z);
  if (p.n_groups > 0) weight_base = group * p.rows;
  if (tid < kTileTokens) {
    int64_t x_row = -1, out_row = -1;
    if (tid < n_tile) {
      if (p.tile_expert != nullptr) {
        const int slot = p.slots[p.tile_start[blockIdx.y] + tid];
        x_row = p.x_per_slot != 0 ? slot : slot / p.k;
        out_row = slot;
      } else {
        x_row = static_cast<int64_t>(blockIdx.y) * kTileTokens + tid;
        if (p.n_groups > 0) x_row = x_row * p.n_groups + group;
        out_row = x_row;
      }
    }
    x_rows[tid] = x_row;
    out_rows[tid] = out_row;
  }
  __syncthreads();

  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTileRows;
  const int64_t my_row = weight_base + min(first_row + tid / 2, p.rows - 1);
  const int my_k = tid % 2 * 16;
  const int n_in = p.weight.n_in, steps = static_cast<int>(p.x.stride / kTileK);
  constexpr int kStage = tiles_of(kSplit) * kTileValues;

  const auto copy_x = [&](int step, int stage) {
    __half* to = shared + stage * kStage + kTileValues;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = tid + i * kThreads, row = piece / 4, column = piece % 4 * 8;
      const int64_t x_row = x_rows[row];
      const int64_t offset = max(x_row, int64_t{0}) * p.x.stride + step * kTileK + column;
      copy_16(to + row * kPitch + column, p.x.high + offset, x_row >= 0);
      if constexpr (kSplit != kNone) {
        copy_16(to + kTileValues + row * kPitch + column, p.x.low + offset, x_row >= 0);
      }
    }
  };
  Decoder<kCodec> decoder;
  const auto load_weights = [&](int step) {
    const int k = step * kTileK + my_k;
    decoder.load_from(p.weight, my_row, k < n_in ? k : 0);
  };
  const auto put_weights = [&](int step, int stage) {
    float v[16];
    decoder.values(v);
    if (step * kTileK + my_k >= n_in) {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = 0.0F;
    }
    __half* to = shared + stage * kStage + tid / 2 * kPitch;
    store_weights<kSplit>(v, p.weight.range, my_k / 16, to, to + 3 * kTileValues);
  };

  float acc[4][4][4] = {};  // [16 rows][8 tokens] tiles of this warp's 64 rows and 32 tokens
  const int warp_row = warp % 2 * 64, warp_token = warp / 2 * 32;
  copy_x(0, 0);
  load_weights(0);
  put_weights(0, 0);
  copies_done();
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    const bool more = step + 1 < steps;
    if (more) {
      copy_x(step + 1, stage ^ 1);
      load_weights(step + 1);
    }
    const __half* a_tile = shared + stage * kStage;
    const __half* b_tile = a_tile + kTileValues;
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      uint32_t a[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_matrices(a[i], a_tile + (warp_row + 16 * i + lane % 16) * kPitch + k + lane / 16 * 8);
      }
      const auto add_products = [&](const __half* tile) {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          uint32_t b[4];
          load_matrices(
              b, tile + (warp_token + 8 * j + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * 8);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            multiply_add(acc[i][j], a[i], b[0], b[1]);
            multiply_add(acc[i][j + 1], a[i], b[2], b[3]);
          }
        }
      };
      add_products(b_tile);
      if constexpr (kSplit != kNone) add_products(b_tile + kTileValues);
      if constexpr (kSplit == kBoth) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          load_matrices(
              a[i], a_tile + 3 * kTileValues + (warp_row + 16 * i + lane % 16) * kPitch + k + lane / 16 * 8);
        }
        add_products(b_tile);
      }
    }
    if (more) put_weights(step + 1, stage ^ 1);
    copies_done();
    __syncthreads();
  }

  const float unscale = 1.0F / p.weight.range;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = warp_token + 8 * j + lane % 4 * 2 + e;
      const int64_t out_row = out_rows[token];
      if (out_row < 0) continue;
      const float scale = p.x.scale[x_rows[token]] * unscale;
      float* out = row_of(p.out, out_row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = first_row + warp_row + 16 * i + lane / 4;
        if (row < p.rows) out[row] = acc[i][j][e] * scale;
        if (row + 8 < p.rows) out[row + 8] = acc[i][j][e + 2] * scale;
      }
    }
  }
}

// The value at a position of HalfRows.
__device__ __forceinline__ int half_value_at(int position) {
  const int i = position / 16 % 2, j = position / 8 % 2, part = position / 2 % 4;
  return position / 32 * 32 + 8 * part + 4 * i + 2 * j + position % 2;
}

// One block per row.
__global__ void __launch_bounds__(256) half_kernel(const __grid_constant__ HalfParams p) {
  __shared__ float scratch[8];
  begin();
  const float* x = row_of(p.x, blockIdx.x);
  float largest = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < p.x.d; i += 256) largest = fmaxf(largest, fabsf(x[i]));
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, scratch[i]);
  // Largest value in [2^10, 2^11): room above, and 2^-24 below for what is small.
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  const int shift = largest == 0.0F || exponent == 128 ? 0 : min(10 - exponent, 100);
  const float factor = ldexpf(1.0F, shift);
  if (threadIdx.x == 0) p.out.scale[blockIdx.x] = ldexpf(1.0F, -shift);
  auto* high = reinterpret_cast<__half*>(p.out.high) + static_cast<int64_t>(blockIdx.x) * p.out.stride;
  auto* low = p.out.low == nullptr
                  ? nullptr
                  : reinterpret_cast<__half*>(p.out.low) + static_cast<int64_t>(blockIdx.x) * p.out.stride;
  for (int i = 2 * static_cast<int>(threadIdx.x); i < p.out.stride; i += 512) {
    const int from = half_value_at(i);
    const float a = from < p.x.d ? x[from] * factor : 0.0F;
    const float b = from + 1 < p.x.d ? x[from + 1] * factor : 0.0F;
    const uint32_t h = pack(a, b);
    *reinterpret_cast<uint32_t*>(high + i) = h;
    if (low != nullptr) {
      const __half2 rounded = *reinterpret_cast<const __half2*>(&h);
      *reinterpret_cast<uint32_t*>(low + i) = pack(a - __low2float(rounded), b - __high2float(rounded));
    }
  }
}

// One block per expert.
__global__ void __launch_bounds__(256) count_kernel(const __grid_constant__ SortParams p) {
  __shared__ int scratch[8];
  begin();
  const int expert = static_cast<int>(blockIdx.x), n = p.n_tokens * p.k;
  int count = 0;
  bool bad = false;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 256) {
    const int id = p.ids[i / p.k * p.ids_stride + i % p.k];
    count += id == expert ? 1 : 0;
    bad = bad || id < 0 || id >= p.n_experts;
  }
  if (expert == 0 && bad) raise(p.status, 2);
  count = warp_sum(count);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (int i = 0; i < 8; ++i) sum += scratch[i];
  p.counts[expert] = sum;
}

// Places the slots of an expert in token order and lists its tiles; the block after the last ends the list. A
// thread takes a run of neighbouring slots.
constexpr int kPlacers = 1024;
__global__ void __launch_bounds__(kPlacers) place_kernel(const __grid_constant__ SortParams p) {
  __shared__ int counts[kPlacers / 32];
  __shared__ int bases[2];
  begin();
  const int expert = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  if (tid < 32) {
    int slots = 0, tiles = 0;
    for (int e = tid; e < expert; e += 32) slots += p.counts[e], tiles += div_up(p.counts[e], kGemmTokens);
    slots = warp_sum(slots), tiles = warp_sum(tiles);
    if (tid == 0) bases[0] = slots, bases[1] = tiles;
  }
  __syncthreads();
  const int base = bases[0], first_tile = bases[1];
  if (expert == p.n_experts) {
    for (int i = first_tile + tid; i < p.max_tiles; i += kPlacers) p.tile_expert[i] = -1;
    return;
  }
  const int count = p.counts[expert];
  for (int i = tid; i < div_up(count, kGemmTokens); i += kPlacers) {
    p.tile_expert[first_tile + i] = expert;
    p.tile_start[first_tile + i] = base + i * kGemmTokens;
    p.tile_count[first_tile + i] = min(kGemmTokens, count - i * kGemmTokens);
  }
  if (count == 0) return;
  const int tokens = div_up(p.n_tokens, kPlacers);  // of a thread
  const int from = min(tid * tokens, p.n_tokens), to = min(from + tokens, p.n_tokens);
  int mine = 0;
  for (int t = from; t < to; ++t) {
    const int32_t* ids = p.ids + t * p.ids_stride;
#pragma unroll 8
    for (int s = 0; s < p.k; ++s) mine += ids[s] == expert ? 1 : 0;
  }
  int before = mine;  // then of this thread and those before it in the warp
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) counts[tid / 32] = before;
  __syncthreads();
  int earlier = lane < tid / 32 ? counts[lane] : 0;
  earlier = warp_sum(earlier);
  if (mine == 0) return;
  int at = base + earlier + before - mine;
  for (int t = from; t < to; ++t) {
    const int32_t* ids = p.ids + t * p.ids_stride;
    for (int s = 0; s < p.k; ++s) {
      if (ids[s] == expert) p.slots[at++] = t * p.k + s;
    }
  }
}

template <Codec kCodec>
constexpr int split_of() {
  if (kCodec == Codec::kF16 || kCodec == Codec::kBF16) return kActivations;
  return kCodec == Codec::kBlocks || kCodec == Codec::kF32 ? kBoth : kNone;
}

}  // namespace

bool needs_low_half(const DeviceMatrix& m) {
  return with_codec(m.codec, rows_aligned(m),
                    [](auto tag) { return split_of<decltype(tag)::kValue>() != kNone; });
}

Launch to_half(const HalfParams& p) {
  return make_launch("to_half", half_kernel, static_cast<unsigned>(p.n_rows), 256, p);
}

bool gemm_pairs(const DeviceMatrix& gate, const DeviceMatrix& up) {
  return gate.codec == up.codec && gate.n_in == up.n_in && gate.n_out == up.n_out && warpgroup_fits(gate) &&
         warpgroup_fits(up);
}

Launch gemm(const GemmParams& p) {
  if (warpgroup_fits(p.weight)) return warpgroup_gemm(p);
  return with_codec(p.weight.codec, rows_aligned(p.weight), [&](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    constexpr int kSplit = split_of<kCodec>();
    const auto tiles =
        p.tile_expert != nullptr ? p.max_tiles : static_cast<int>(div_up<int64_t>(p.n_tokens, kTileTokens));
    const dim3 grid(static_cast<unsigned>(div_up<int64_t>(p.rows, kTileRows)), static_cast<unsigned>(tiles),
                    static_cast<unsigned>(p.n_groups > 0 ? p.n_groups : 1));
    return make_launch("gemm", gemm_kernel<kCodec, kSplit>, grid, kThreads, p,
                       sizeof(__half) * 2 * tiles_of(kSplit) * kTileValues);
  });
}

Launch sort_count(const SortParams& p) {
  return make_launch("sort_count", count_kernel, static_cast<unsigned>(p.n_experts), 256, p);
}
Launch sort_place(const SortParams& p) {
  return make_launch("sort_place", place_kernel, static_cast<unsigned>(p.n_experts + 1), kPlacers, p);
}

}  // namespace synod::cuda
