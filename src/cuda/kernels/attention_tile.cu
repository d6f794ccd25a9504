// Attention of many queries on tensor cores. A block takes 64 query rows that share keys: kHeads heads of 64
// / kHeads tokens of one sequence (Gemma), or up to 64 heads of one token (DeepSeek, whose keys are its
// values and partly gathered). All operands are f16 pairs, value and rounding error, and of the four products
// of two pairs only that of the errors is left out; sums are f32. Key tiles start at absolute positions, so
// the cut of a prompt does not change the order of a sum.
#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/fetch.cuh"

namespace synod::cuda {
namespace {

constexpr int kRows = 64, kWarps = 8, kThreads = 32 * kWarps;
constexpr float kLog2E = 1.4426950408889634F;

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
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

// Keys of a tile: what shared memory has room for.
template <int kDim, bool kSharedKv>
__host__ __device__ constexpr int keys_of_tile() {
  return kDim > 256 && !kSharedKv ? 16 : 32;
}
// Shared memory, pairs as two arrays: queries [64][d + 8], keys [kKeys][d + 8], values likewise unless they
// are the keys, scores [64][kKeys + 4] f32, probabilities [64][kKeys + 8].
template <int kDim, bool kSharedKv>
constexpr size_t shared_bytes() {
  constexpr int kKeys = keys_of_tile<kDim, kSharedKv>();
  return sizeof(__half) * 2 * (kRows + (kSharedKv ? 1 : 2) * kKeys) * (kDim + 8) +
         sizeof(float) * kRows * (kKeys + 4) + sizeof(__half) * 2 * kRows * (kKeys + 8);
}

// Values as a pair: rounded, and what rounding lost.
__device__ __forceinline__ void put_pair(float a, float b, __half* high, __half* low) {
  const __half2 h = __floats2half2_rn(a, b);
  *reinterpret_cast<__half2*>(high) = h;
  *reinterpret_cast<__half2*>(low) = __floats2half2_rn(a - __low2float(h), b - __high2float(h));
}
// Four values of a stored row at `column`.
__device__ __forceinline__ void put_four(int32_t dtype, const std::byte* row, int column, __half* high,
                                         __half* low) {
  const float4 v = load4(dtype, row, column);
  put_pair(v.x, v.y, high, low);
  put_pair(v.z, v.w, high + 2, low + 2);
}

template <int kDim, bool kSharedKv>
__global__ void __launch_bounds__(kThreads) tile_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(128) __half shared[];
  constexpr int kKeys = keys_of_tile<kDim, kSharedKv>(), kHalfKeys = kKeys / 2;
  constexpr int kPitch = kDim + 8, kScorePitch = kKeys + 4, kChancePitch = kKeys + 8;
  constexpr int kKeyLow = kKeys * kPitch, kChanceLow = kRows * kChancePitch;  // from the high part to the low
  __half* q_high = shared;
  __half* q_low = q_high + kRows * kPitch;
  __half* keys = q_low + kRows * kPitch;
  __half* values = kSharedKv ? keys : keys + 2 * kKeyLow;
  auto* scores = reinterpret_cast<float*>(keys + (kSharedKv ? 2 : 4) * kKeyLow);
  auto* chances = reinterpret_cast<__half*>(scores + kRows * kScorePitch);
  __shared__ int row_position[kRows];  // of the query, -1 for none
  __shared__ float row_top[kRows], row_mass[kRows], row_keep[kRows];
  __shared__ const std::byte* key_rows[2][kKeys];
  __shared__ int key_index[kKeys];  // position of a window row; -1 = no key, -2 = a compressed row (visible)
  begin();
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;

  // Which queries: blockIdx.y selects the heads, blockIdx.x the tokens.
  const int alike = p.n_heads / p.n_kv_heads;
  const int heads = min(alike, kRows);               // of a block
  const int tokens = kSharedKv ? 1 : kRows / heads;  // of a block
  const int blocks_per_kv = div_up(alike, heads);
  const int kv_head = static_cast<int>(blockIdx.y) / blocks_per_kv;
  const int first_head = kv_head * alike + static_cast<int>(blockIdx.y) % blocks_per_kv * heads;
  // Blocks of tokens do not cross sequences: block x is the n-th block over all sequences.
  int seq = 0, block = static_cast<int>(blockIdx.x), first_token = -1, n_tokens = 0;
  for (; seq < p.batch.n_sequences; ++seq) {
    const int start = p.batch.row_start[seq], end = p.batch.row_start[seq + 1];
    // Blocks start at absolute positions, so that a cut elsewhere gives the same blocks of keys to a query.
    const int n = div_up(end - start, tokens);
    if (block < n) {
      first_token = start + block * tokens;
      n_tokens = min(tokens, end - first_token);
      break;
    }
    block -= n;
  }
  if (first_token < 0) return;
  const int first_position = p.batch.position[first_token], last_position = first_position + n_tokens - 1;

  for (int i = tid; i < kRows * (kDim / 2); i += kThreads) {
    const int r = i / (kDim / 2), c = i % (kDim / 2) * 2;
    const int t = r / heads, h = r % heads;
    float2 v = make_float2(0.0F, 0.0F);
    if (t < n_tokens && r < heads * tokens && c < p.head_dim) {
      v = *reinterpret_cast<const float2*>(
          row_of(p.q, static_cast<int64_t>(first_token + t) * p.n_heads + first_head + h) + c);
      v.x *= p.scale * kLog2E, v.y *= p.scale * kLog2E;
    }
    put_pair(v.x, v.y, q_high + r * kPitch + c, q_low + r * kPitch + c);
  }
  if (tid < kRows) {
    const int t = tid / heads;
    row_position[tid] = t < n_tokens && tid < heads * tokens ? first_position + t : -1;
    row_top[tid] = -INFINITY, row_mass[tid] = 0.0F;
  }

  // Keys: window rows [first, last_position] by tiles of absolute position, then compressed rows.
  const int first_key = p.window > 0 ? max(0, first_position - p.window + 1) : 0;
  const int first_tile = first_key / kKeys, window_tiles = last_position / kKeys - first_tile + 1;
  int n_more = 0;
  if (kSharedKv && p.compressed.pages != nullptr) {
    n_more = (first_position + 1) / p.ratio;
    if (p.selected != nullptr) n_more = min(n_more, p.n_selected);
  }
  const int tiles = window_tiles + div_up(n_more, kKeys);

  constexpr int kSlices = kDim / 2 / 8;  // n-tiles of 8 columns of this warp: half of the columns
  float acc[kSlices][4] = {};
  const int warp_row = warp % 4 * 16, warp_half = warp / 4;

  for (int tile = 0; tile < tiles; ++tile) {
    const bool window = tile < window_tiles;
    __syncthreads();
    if (tid < kKeys) {
      int index = -1;
      const std::byte *k_row = nullptr, *v_row = nullptr;
      if (window) {
        const int position = (first_tile + tile) * kKeys + tid;
        if (position >= first_key && position <= last_position) {
          index = position;
          k_row = cache_row(p.k, seq, position);
          v_row = kSharedKv ? k_row : cache_row(p.v, seq, position);
        }
      } else {
        int row = (tile - window_tiles) * kKeys + tid;
        if (row < n_more) {
          if (p.selected != nullptr)
            row = max(p.selected[static_cast<int64_t>(first_token) * p.n_selected + row], 0);
          index = -2;
          k_row = v_row = cache_row(p.compressed, seq, row);
        }
      }
      key_index[tid] = index;
      key_rows[0][tid] = k_row, key_rows[1][tid] = v_row;
    }
    __syncthreads();
    const int32_t dtype = window ? p.k.dtype : p.compressed.dtype;
    const int column = kv_head * p.head_dim;
    for (int i = tid; i < kKeys * (kDim / 4); i += kThreads) {
      const int r = i / (kDim / 4), c = i % (kDim / 4) * 4;
      const bool there = key_index[r] != -1 && c < p.head_dim;
      __half *key = keys + r * kPitch + c, *value = values + r * kPitch + c;
      if (there) {
        put_four(dtype, key_rows[0][r], column + c, key, key + kKeyLow);
        if constexpr (!kSharedKv) put_four(p.v.dtype, key_rows[1][r], column + c, value, value + kKeyLow);
      } else {
        for (__half* to : {key, value}) {
          *reinterpret_cast<uint2*>(to) = make_uint2(0, 0);
          *reinterpret_cast<uint2*>(to + kKeyLow) = make_uint2(0, 0);
        }
      }
    }
    __syncthreads();

    // Scores of 16 rows and half of the keys per warp; 32 values per turn.
    {
      constexpr int kTiles = kHalfKeys / 8;
      float s[kTiles][4] = {};
      for (int k = 0; k < kDim; k += 32) {
        uint32_t high[2][4], low[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = (warp_row + lane % 16) * kPitch + k + 16 * i + lane / 16 * 8;
          load_matrices(high[i], q_high + at);
          load_matrices(low[i], q_low + at);
        }
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const __half* key = keys + (warp_half * kHalfKeys + j * 8 + lane % 8) * kPitch + k + lane / 8 * 8;
          uint32_t b[4], rest[4];
          load_matrices(b, key);
          load_matrices(rest, key + kKeyLow);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            multiply_add(s[j], high[i], rest[2 * i], rest[2 * i + 1]);
            multiply_add(s[j], low[i], b[2 * i], b[2 * i + 1]);
            multiply_add(s[j], high[i], b[2 * i], b[2 * i + 1]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = warp_row + lane / 4 + e / 2 * 8;
          const int key = warp_half * kHalfKeys + j * 8 + lane % 4 * 2 + e % 2;
          const int position = row_position[r], index = key_index[key];
          const bool visible =
              position >= 0 && (index == -2 || (index >= 0 && index <= position &&
                                                (p.window <= 0 || position - index < p.window)));
          scores[r * kScorePitch + key] = visible ? s[j][e] : -INFINITY;
        }
      }
    }
    __syncthreads();
    // Softmax: four threads per row.
    {
      constexpr int kPer = kKeys / 4;
      const int r = tid / 4, part = tid % 4 * kPer;
      float v[kPer], top = row_top[r];
      const float before = top;
#pragma unroll
      for (int i = 0; i < kPer; ++i) v[i] = scores[r * kScorePitch + part + i], top = fmaxf(top, v[i]);
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < kPer; i += 2) {
        const float a = v[i] == -INFINITY ? 0.0F : exp2f(v[i] - top);
        const float b = v[i + 1] == -INFINITY ? 0.0F : exp2f(v[i + 1] - top);
        __half* to = chances + r * kChancePitch + part + i;
        put_pair(a, b, to, to + kChanceLow);
        sum += a;
        sum += b;
      }
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      __syncwarp();  // row_top has been read
      if (tid % 4 == 0) {
        const float keep = before == -INFINITY ? 0.0F : exp2f(before - top);
        row_keep[r] = keep;
        row_top[r] = top;
        row_mass[r] = row_mass[r] * keep + sum;
      }
    }
    __syncthreads();
    const float keep_a = row_keep[warp_row + lane / 4], keep_b = row_keep[warp_row + lane / 4 + 8];
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      acc[j][0] *= keep_a, acc[j][1] *= keep_a, acc[j][2] *= keep_b, acc[j][3] *= keep_b;
    }
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      uint32_t high[4], low[4];
      const __half* chance = chances + (warp_row + lane % 16) * kChancePitch + k + lane / 16 * 8;
      load_matrices(high, chance);
      load_matrices(low, chance + kChanceLow);
#pragma unroll
      for (int j = 0; j < kSlices; j += 2) {
        const __half* value =
            values + (k + lane % 16) * kPitch + warp_half * (kDim / 2) + j * 8 + lane / 16 * 8;
        uint32_t b[4], rest[4];
        load_transposed(b, value);
        load_transposed(rest, value + kKeyLow);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add(acc[j + i], high, rest[2 * i], rest[2 * i + 1]);
          multiply_add(acc[j + i], low, b[2 * i], b[2 * i + 1]);
          multiply_add(acc[j + i], high, b[2 * i], b[2 * i + 1]);
        }
      }
    }
  }

#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int r = warp_row + lane / 4 + 8 * e;
    if (row_position[r] < 0) continue;
    const int head = first_head + r % heads;
    float mass = row_mass[r], factor = 1.0F;
    if (p.sinks != nullptr) {
      const float sink = p.sinks[head] * kLog2E, top = fmaxf(sink, row_top[r]);
      factor = exp2f(row_top[r] - top);
      mass = mass * factor + (sink == -INFINITY ? 0.0F : sink == top ? 1.0F : exp2f(sink - top));
    }
    factor /= mass;
    float* out = row_of(p.out, static_cast<int64_t>(first_token + r / heads) * p.n_heads + head);
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      const int c = warp_half * (kDim / 2) + j * 8 + lane % 4 * 2;
      if (c >= p.head_dim) continue;
      *reinterpret_cast<float2*>(out + c) = make_float2(acc[j][2 * e] * factor, acc[j][2 * e + 1] * factor);
    }
  }
}

template <int kDim, bool kSharedKv>
Launch tile_launch(const AttentionParams& p) {
  const int alike = p.n_heads / p.n_kv_heads, heads = alike < kRows ? alike : kRows;
  const int tokens = kSharedKv ? 1 : kRows / heads;
  // At most one open block per sequence.
  const int blocks = div_up(p.n_tokens, tokens) + (tokens > 1 ? p.batch.n_sequences : 0);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.n_kv_heads * div_up(alike, heads)));
  return make_launch("attention_tile", tile_kernel<kDim, kSharedKv>, grid, kThreads, p,
                     shared_bytes<kDim, kSharedKv>());
}

}  // namespace

bool attention_tile_fits(const AttentionParams& p) {
  const int alike = p.n_heads / p.n_kv_heads;
  const bool heads_fit = alike <= kRows ? kRows % alike == 0 : alike % kRows == 0;
  return heads_fit && p.head_dim % 8 == 0 && p.head_dim <= 512;
}

Launch attention_tile(const AttentionParams& p) {
  if (p.shared_kv != 0) {
    if (p.head_dim <= 128) return tile_launch<128, true>(p);
    return tile_launch<512, true>(p);
  }
  if (p.head_dim <= 128) return tile_launch<128, false>(p);
  if (p.head_dim <= 256) return tile_launch<256, false>(p);
  return tile_launch<512, false>(p);
}

}  // namespace synod::cuda
