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
__device__ __forceinline__ void put_four(const float4& v, __half* high, __half* low) {
  put_pair(v.x, v.y, high, low);
  put_pair(v.z, v.w, high + 2, low + 2);
}

template <typename Quad, int kDim, bool kSharedKv>
__global__ void __launch_bounds__(kThreads, 1) tile_kernel(const __grid_constant__ AttentionParams p) {
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
  // Of even and odd tiles: rows, and position of a window row, -1 = no key, -2 = a compressed row (visible).
  __shared__ const std::byte *key_rows[2][kKeys], *value_rows[2][kKeys];
  __shared__ int key_index[2][kKeys];
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

  // While a tile is multiplied the values of the next are on their way, and the rows of the one after it are
  // looked up.
  struct KeyRow {
    int index = -1;
    const std::byte *key = nullptr, *value = nullptr;
  };
  const auto find_row = [&](int tile) {
    KeyRow found;
    if (tid >= kKeys || tile >= tiles) return found;
    if (tile < window_tiles) {
      const int position = (first_tile + tile) * kKeys + tid;
      if (position >= first_key && position <= last_position) {
        found.index = position;
        found.key = cache_row(p.k, seq, position);
        found.value = kSharedKv ? found.key : cache_row(p.v, seq, position);
      }
      return found;
    }
    int row = (tile - window_tiles) * kKeys + tid;
    if (row < n_more) {
      if (p.selected != nullptr)
        row = max(p.selected[static_cast<int64_t>(first_token) * p.n_selected + row], 0);
      found.index = -2;
      found.key = found.value = cache_row(p.compressed, seq, row);
    }
    return found;
  };
  const auto put_row = [&](int tile, const KeyRow& found) {
    if (tid >= kKeys) return;
    key_index[tile % 2][tid] = found.index;
    key_rows[tile % 2][tid] = found.key, value_rows[tile % 2][tid] = found.value;
  };
  constexpr int kQuadsPerRow = kDim / 4, kRowsAtOnce = kThreads / kQuadsPerRow, kLoads = kKeys / kRowsAtOnce;
  static_assert(kThreads % kQuadsPerRow == 0 && kKeys % kRowsAtOnce == 0, "threads own columns");
  const int own_key = tid / kQuadsPerRow, own_column = tid % kQuadsPerRow * 4;
  Quad held_keys[kLoads], held_values[kSharedKv ? 1 : kLoads];
  const auto load_tile = [&](int tile) {
    const int32_t dtype = tile < window_tiles ? p.k.dtype : p.compressed.dtype;
    const int column = kv_head * p.head_dim + own_column;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = own_key + i * kRowsAtOnce;
      held_keys[i] = Quad();
      if constexpr (!kSharedKv) held_values[i] = Quad();
      if (key_index[tile % 2][r] == -1 || own_column >= p.head_dim) continue;
      held_keys[i].load(dtype, key_rows[tile % 2][r], column);
      if constexpr (!kSharedKv) held_values[i].load(p.v.dtype, value_rows[tile % 2][r], column);
    }
  };

  put_row(0, find_row(0));
  put_row(1, find_row(1));
  __syncthreads();
  load_tile(0);
  for (int tile = 0; tile < tiles; ++tile) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = (own_key + i * kRowsAtOnce) * kPitch + own_column;
      put_four(held_keys[i].values(), keys + at, keys + at + kKeyLow);
      if constexpr (!kSharedKv) put_four(held_values[i].values(), values + at, values + at + kKeyLow);
    }
    __syncthreads();
    if (tile + 1 < tiles) load_tile(tile + 1);
    const KeyRow later = find_row(tile + 2);

    // Scores of 16 rows and half of the keys per warp; 32 values per turn.
    {
      constexpr int kTiles = kHalfKeys / 8;
      // A sum per kind of product: three chains instead of one.
      float s[kTiles][4] = {}, from_rest[kTiles][4] = {}, from_low[kTiles][4] = {};
#pragma unroll 2
      for (int k = 0; k < kDim; k += 32) {
        uint32_t high[2][4], low[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = (warp_row + lane % 16) * kPitch + k + 16 * i + lane / 16 * 8;
          load_matrices(high[i], q_high + at);
          load_matrices(low[i], q_low + at);
        }
        uint32_t b[kTiles][4], rest[kTiles][4];
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const __half* key = keys + (warp_half * kHalfKeys + j * 8 + lane % 8) * kPitch + k + lane / 8 * 8;
          load_matrices(b[j], key);
          load_matrices(rest[j], key + kKeyLow);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < kTiles; ++j)
            multiply_add(from_rest[j], high[i], rest[j][2 * i], rest[j][2 * i + 1]);
#pragma unroll
          for (int j = 0; j < kTiles; ++j) multiply_add(from_low[j], low[i], b[j][2 * i], b[j][2 * i + 1]);
#pragma unroll
          for (int j = 0; j < kTiles; ++j) multiply_add(s[j], high[i], b[j][2 * i], b[j][2 * i + 1]);
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = warp_row + lane / 4 + e / 2 * 8;
          const int key = warp_half * kHalfKeys + j * 8 + lane % 4 * 2 + e % 2;
          const int position = row_position[r], index = key_index[tile % 2][key];
          const bool visible =
              position >= 0 && (index == -2 || (index >= 0 && index <= position &&
                                                (p.window <= 0 || position - index < p.window)));
          scores[r * kScorePitch + key] = visible ? s[j][e] + (from_rest[j][e] + from_low[j][e]) : -INFINITY;
        }
      }
    }
    __syncthreads();
    put_row(tile, later);  // in the place of this tile's
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
      for (int j = 0; j < kSlices; j += 4) {
        uint32_t b[2][4], rest[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const __half* value =
              values + (k + lane % 16) * kPitch + warp_half * (kDim / 2) + (j + 2 * i) * 8 + lane / 16 * 8;
          load_transposed(b[i], value);
          load_transposed(rest[i], value + kKeyLow);
        }
        // Of four sums in turn, so that none waits for the one before.
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply_add(acc[j + i], high, rest[i / 2][i % 2 * 2], rest[i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply_add(acc[j + i], low, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply_add(acc[j + i], high, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
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

template <typename Quad, int kDim, bool kSharedKv>
Launch tile_launch(const AttentionParams& p) {
  const int alike = p.n_heads / p.n_kv_heads, heads = alike < kRows ? alike : kRows;
  const int tokens = kSharedKv ? 1 : kRows / heads;
  // At most one open block per sequence.
  const int blocks = div_up(p.n_tokens, tokens) + (tokens > 1 ? p.batch.n_sequences : 0);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.n_kv_heads * div_up(alike, heads)));
  return make_launch("attention_tile", tile_kernel<Quad, kDim, kSharedKv>, grid, kThreads, p,
                     shared_bytes<kDim, kSharedKv>());
}

template <typename Quad>
Launch launch_for(const AttentionParams& p) {
  if (p.shared_kv != 0) {
    if (p.head_dim <= 128) return tile_launch<Quad, 128, true>(p);
    return tile_launch<Quad, 512, true>(p);
  }
  if (p.head_dim <= 128) return tile_launch<Quad, 128, false>(p);
  if (p.head_dim <= 256) return tile_launch<Quad, 256, false>(p);
  return tile_launch<Quad, 512, false>(p);
}

}  // namespace

bool attention_tile_fits(const AttentionParams& p) {
  const int alike = p.n_heads / p.n_kv_heads;
  const bool heads_fit = alike <= kRows ? kRows % alike == 0 : alike % kRows == 0;
  return heads_fit && p.head_dim % 8 == 0 && p.head_dim <= 512;
}

Launch attention_tile(const AttentionParams& p) {
  constexpr auto kF32 = static_cast<int32_t>(DType::kF32);
  const bool f32 =
      p.k.dtype == kF32 && p.v.dtype == kF32 && (p.compressed.pages == nullptr || p.compressed.dtype == kF32);
  return f32 ? launch_for<F32Quad>(p) : launch_for<AnyQuad>(p);
}

}  // namespace synod::cuda
