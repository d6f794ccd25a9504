// Products of block-coded matrices with up to kDecodeTokens activation rows, on int8 tensor cores. A block
// owns a few tiles of 16 outputs. The units of a tile's inputs go to its slices in turn (unit u to slice u %
// n_slices, and n_slices follows from the width alone); a warp has one slice, takes every n-th tile and
// streams their units through a ring of its own. Slices are added in order: a result is one fixed sequence of
// operations whatever the grid, the warps of a block or the batch. What depends on no earlier kernel is
// fetched before the wait.
//
// Few tokens: the warps of a block share its tiles and slices, and a warp copies the activations of its
// slice. Many tokens: a cluster has a block per slice, whose warps take a tile each and share the
// activations.
#include <algorithm>

#include "cuda/kernels/digits.cuh"
#include "cuda/kernels/tiles.cuh"

namespace synod::cuda {
namespace {

constexpr int kMostWarps = 12, kMostStages = 3, kMostSlices = 8;
constexpr int kManyGroups = 8;  // of four tokens

enum class Mode {
  kRows,
  kPair,        // gate and up, and their gated product
  kExperts,     // rows of chosen experts
  kExpertPair,  // a pair of them
  kSum,         // one token: the weighted sum over its experts
};

// Slots of the expert of this block, in order. Every warp votes for itself, so that no barrier is needed;
// the first warp keeps the list. False when another block has them.
__device__ __forceinline__ bool find_slots(const TileParams& p, int32_t* slots, int& expert, int& count) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const int n = p.n_tokens * p.k, y = static_cast<int>(blockIdx.y);
  const auto known = [&](int32_t id) {
    if (id >= 0 && id < p.n_experts) return id;
    raise(p.status, 2);
    return 0;
  };
  const auto id_of = [&](int slot) {
    return __ldcg(p.ids + (p.ids_stride == p.k ? slot : slot / p.k * p.ids_stride + slot % p.k));
  };
  if (p.n_tokens == 1) {
    expert = known(id_of(y));
    count = 1;
    if (tid == 0) slots[0] = y;
    return true;
  }
  expert = p.by_slot != 0 ? known(id_of(y)) : y;
  count = 0;
  int first = -1;
  constexpr int kAtOnce = 4;  // loads in flight
#pragma unroll 1
  for (int base = 0; base < n; base += 32 * kAtOnce) {
    int32_t ids[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = base + 32 * i + lane;
      ids[i] = slot < n ? id_of(slot) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = base + 32 * i + lane;
      const uint32_t votes = __ballot_sync(0xffffffffU, slot < n && known(ids[i]) == expert);
      if (first < 0 && votes != 0) first = base + 32 * i + __ffs(static_cast<int>(votes)) - 1;
      if (tid < 32 && (votes >> lane & 1U) != 0) slots[count + __popc(votes & ((1U << lane) - 1U))] = slot;
      count += __popc(votes);
    }
  }
  return count > 0 && (p.by_slot == 0 || first == y);
}

// A float in the shared memory of a block of the same cluster.
__device__ __forceinline__ float load_from_rank(const float* own, int rank) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  float v;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
#else
  return *own;
#endif
}
// A barrier of the cluster, or of the block when it is alone.
__device__ __forceinline__ void sync_ranks(int n_ranks) {
#if __CUDA_ARCH__ >= 900
  if (n_ranks > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    return;
  }
#endif
  __syncthreads();
}
// The same for blocks that have only read.
__device__ __forceinline__ void leave_ranks(int n_ranks) {
#if __CUDA_ARCH__ >= 900
  if (n_ranks > 1) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

template <bool kMany>
constexpr int most_threads() {
  return kMany ? 256 : 32 * kMostWarps;
}

template <Codec kCodec, Mode kMode, bool kMany>
__global__ void __launch_bounds__(most_threads<kMany>(), 2)
    tile_kernel(const __grid_constant__ TileParams p) {
  using W = Tile<kCodec>;
  constexpr int kGroups = kMany ? kManyGroups : 1;
  constexpr bool kPair = kMode == Mode::kPair || kMode == Mode::kExpertPair;
  constexpr bool kChosen = kMode == Mode::kExperts || kMode == Mode::kExpertPair;
  constexpr bool kIds = kChosen || kMode == Mode::kSum;
  extern __shared__ __align__(16) uint8_t shared[];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int n_warps = static_cast<int>(blockDim.x) / 32;
  const int n_in = p.parts[0].weight.n_in, n_units = div_up(n_in, kUnitInputs), n_slices = p.n_slices;
  uint8_t* own = shared + warp * p.warp_bytes;  // ring, table, and activations unless they are shared
  uint8_t* table = own + p.n_stages * W::kStageBytes;
  uint8_t* x = kMany ? shared + n_warps * p.warp_bytes : table + W::kTableBytes;
  auto* sums = reinterpret_cast<float*>(shared + p.sums_at);
  const int held = p.held_tokens;  // tokens that `sums` has room for
  [[maybe_unused]] int32_t* list = reinterpret_cast<int32_t*>(shared + p.list_at);
  W tile;
  if constexpr (kCodec == Codec::kIQ2_XXS) {
    __shared__ uint2 entries[256];
    for (int i = tid; i < 256; i += 32 * n_warps)
      entries[i] = __ldg(static_cast<const uint2*>(p.parts[0].weight.codebook) + i);
    tile.grid = entries;
    __syncthreads();
  }

  // The blocks of a cluster have a slice each (many tokens), or the halves of 32 rows (pairs).
  const int rank = p.n_ranks > 1 ? static_cast<int>(blockIdx.x) % p.n_ranks : 0;
  int group = p.n_ranks > 1 ? static_cast<int>(blockIdx.x) / p.n_ranks : static_cast<int>(blockIdx.x);
  const bool side = kMode == Mode::kExpertPair && static_cast<int>(blockIdx.y) >= p.side_from;
  if (side) group += (static_cast<int>(blockIdx.y) - p.side_from) * static_cast<int>(gridDim.x) / p.n_ranks;
  const GemvPart* parts = side ? p.side : p.parts;
  const int64_t n_rows = side ? parts[0].weight.n_out : p.n_rows;
  const int last_row = side ? static_cast<int>(n_rows) - kUnitRows : p.last_row;
  const bool slice_per_block = kMany;
  const int halves = kPair && !kMany ? p.n_ranks : 1;
  const int warp_tile = kMany ? warp : warp * p.inverse_slices >> 8;
  const int slice = slice_per_block ? rank : warp - warp_tile * n_slices;
  const int tile_step = p.tile_step, all_tiles = p.all_tiles;
  struct Place {
    int part, row, first;  // first row of the tile, and of the part, in the stacked rows
  };
  // Row tile j of the block: n_tiles of the stacked parts; or, for pairs, n_tiles of gate and as many of up;
  // or one per slot.
  const auto place_of = [&](int j) {
    Place place{};
    if constexpr (kMode == Mode::kSum) {
      place.row = group * kUnitRows;
    } else {
      if (kPair && j >= p.n_tiles) place.part = 1, j -= p.n_tiles;
      place.row = ((group * p.n_tiles + j) * halves + (halves > 1 ? rank : 0)) * kUnitRows;
    }
    if constexpr (kMode == Mode::kRows) {
#pragma unroll
      for (int i = 1; i < kMaxParts; ++i) {
        if (i < p.n_parts && place.row >= static_cast<int>(p.parts[i].first_row)) {
          place.part = i, place.first = static_cast<int>(p.parts[i].first_row);
        }
      }
    }
    return place;
  };
  const auto blocks_of = [&](int unit) {
    return W::kWholeUnits ? kUnitBlocks : min(kUnitBlocks, n_in / 32 - unit * kUnitBlocks);
  };

  int expert = 0, count = p.n_tokens;
  [[maybe_unused]] int my_id = 0;
  int fetch_tile = 0, fetch_unit = 0, fetch_stage = 0;
  typename W::Units units;
  const auto set_source = [&] {
    const Place place = place_of(fetch_tile);
    // Tiles past the end read the last rows again.
    auto row = static_cast<uint32_t>(min(place.row, last_row) - place.first);
    if constexpr (kIds) {
      const int id = kMode == Mode::kSum ? __shfl_sync(0xffffffffU, my_id, fetch_tile) : expert;
      row += static_cast<uint32_t>(id) * static_cast<uint32_t>(p.rows_per_expert);
    }
    units.set(parts[place.part].weight, row, lane);
  };
  const uint32_t ring = shared_address(own);
  const auto fetch_next = [&] {
    if (fetch_tile < all_tiles) {
      units.fetch(ring + static_cast<uint32_t>(fetch_stage * W::kStageBytes), fetch_unit,
                  blocks_of(fetch_unit), lane);
      fetch_unit += n_slices;
      if (fetch_unit >= n_units) {
        fetch_unit = slice;
        fetch_tile += tile_step;
        if (fetch_tile < all_tiles) set_source();
      }
      fetch_stage = fetch_stage + 1 == p.n_stages ? 0 : fetch_stage + 1;
    }
    end_fetch();
  };
  const auto fill_ring = [&] {
    fetch_tile = warp_tile, fetch_unit = slice, fetch_stage = 0;
    set_source();
#pragma unroll 1
    for (int i = 0; i < p.n_stages; ++i) fetch_next();
  };

  // Choices made two launches ago are there: the launch between has waited for them.
  const bool early = !kIds || side || p.settled_ids != 0;
  if (!early) begin();
  bool active = true;
  if (side) {
    active = group * p.n_tiles * halves * kUnitRows < n_rows;
  } else if constexpr (kChosen) {
    active = find_slots(p, list, expert, count);
  } else if constexpr (kMode == Mode::kSum) {
    if (lane < p.k) my_id = min(max(__ldcg(p.ids + lane), 0), p.n_experts - 1);
  }
  if (active) fill_ring();
  if (early) begin();
  if (!active) return;
  if constexpr (kChosen) __syncthreads();  // the list

  int start = 0;
  if constexpr (!kIds) {
    start = static_cast<int>(blockIdx.z) * 4 * kGroups;
    count = min(count, start + 4 * kGroups);
  }
  const int x_rows = p.x_rows;
#pragma unroll 1
  for (int first = start; first < count; first += 4 * kGroups) {
    const int here = min(4 * kGroups, count - first), n_groups = div_up(here, 4);
    if (first > start) fill_ring();
    // One unit of one activation row: the lanes take 16 bytes of its digits and then of the rest.
    const auto copy_unit = [&](uint8_t* record, int64_t row, int unit) {
      const int n_blocks = blocks_of(unit), low = lane / 16, piece = lane % 16;
      const DigitRows& digits = side ? p.side_digits : p.digits;
      const uint8_t* from = digits.p + row * digits.stride;
      const uint32_t to = shared_address(record);
      if (piece < 2 * n_blocks) {
        fetch_16_shared(to + static_cast<uint32_t>(low * kXLow + piece * 16),
                        from + low * n_in + unit * kUnitInputs + piece * 16);
      }
      if (lane < n_blocks) {
        fetch_16_shared(to + static_cast<uint32_t>(kXMeta + lane * 16),
                        from + 2 * n_in + (unit * kUnitBlocks + lane) * 16);
      }
    };
    const auto x_row = [&](int i) -> int64_t {
      if (side) return first + i;
      if constexpr (kChosen) return p.x_per_slot != 0 ? list[first + i] : list[first + i] / p.k;
      if constexpr (kMode == Mode::kRows) {
        if (p.n_groups > 1) {
          return static_cast<int64_t>(first + i) * p.n_groups +
                 place_of(0).row / static_cast<int>(p.rows_per_group);
        }
      }
      return first + i;
    };
    if constexpr (kMany) {
      for (int i = warp; i < here; i += n_warps) {
        const int64_t row = x_row(i);
        uint8_t* record = x + i * kXBytes;
        for (int unit = slice; unit < n_units; unit += n_slices, record += x_rows * kXBytes)
          copy_unit(record, row, unit);
      }
    } else if constexpr (kMode == Mode::kSum) {
      uint8_t* record = x;
      for (int j = warp_tile; j < all_tiles; j += tile_step) {
        for (int unit = slice; unit < n_units; unit += n_slices, record += kXBytes)
          copy_unit(record, j, unit);
      }
    } else {
      for (int i = 0; i < here; ++i) {
        const int64_t row = x_row(i);
        uint8_t* record = x + i * kXBytes;
        for (int unit = slice; unit < n_units; unit += n_slices, record += x_rows * kXBytes)
          copy_unit(record, row, unit);
      }
    }
    end_fetch();
    wait_fetch<0>();
    if constexpr (kMany) {
      __syncthreads();
    } else {
      __syncwarp();
    }
    const int last_x = x_rows - 1;  // lanes without a token read what counts for nothing
    const int digit = min(lane / 8, last_x) * kXBytes + lane / 4 % 2 * kXLow + lane % 4 * W::X::kPiece;
    const int meta = min(lane % 4, last_x) * kXBytes + kXMeta;
    const uint8_t* record = x;
    int stage = 0;
#pragma unroll 1
    for (int j = warp_tile; j < all_tiles; j += tile_step) {
      float acc[kGroups][2] = {};
      if constexpr (kMode != Mode::kSum) record = x;
#pragma unroll 1
      for (int unit = slice; unit < n_units; unit += n_slices) {
        if (p.n_stages == kMostStages) {
          wait_fetch<kMostStages - 1>();
        } else if (p.n_stages == 2) {
          wait_fetch<1>();
        } else {
          wait_fetch<0>();
        }
        __syncwarp();
        uint8_t* data = own + stage * W::kStageBytes;
        if constexpr (W::kTableBytes > 0) {
          W::prepare(data, table, lane);
          __syncwarp();
        }
        tile.load_from(data, table, lane);
        multiply_unit<kCodec, kGroups>(tile, record + digit, record + meta, blocks_of(unit), n_groups, acc);
        record += x_rows * kXBytes;
        stage = stage + 1 == p.n_stages ? 0 : stage + 1;
        __syncwarp();
        fetch_next();  // into the stage just read
      }
      float* to = sums + (slice_per_block ? j : j * n_slices + slice) * held * kUnitRows + lane / 4;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int token = 4 * i + lane % 4;
        if (token < here) to[token * kUnitRows] = acc[i][0], to[token * kUnitRows + 8] = acc[i][1];
      }
    }
    sync_ranks(p.n_ranks);

    // Of row r of tile j, in the block `half` of a pair.
    const auto sum_of = [&](int j, int token, int r, int half) {
      const float* from = sums + ((slice_per_block ? j : j * n_slices) * held + token) * kUnitRows + r;
      float v[kMostSlices];
#pragma unroll
      for (int s = 0; s < kMostSlices; ++s) {
        if (s >= n_slices) break;
        if (slice_per_block) {
          v[s] = load_from_rank(from, s);
        } else {
          const float* f = from + s * held * kUnitRows;
          v[s] = halves > 1 ? load_from_rank(f, half) : *f;
        }
      }
      float sum = v[0];
#pragma unroll
      for (int s = 1; s < kMostSlices; ++s) {
        if (s < n_slices) sum += v[s];
      }
      return sum;
    };
    if constexpr (kPair) {
      // Lane r: row r of 32, which are two tiles of the block or one of each half.
      const int per_side = halves > 1 ? p.n_tiles : p.n_tiles / 2;
      for (int g = 0; g < per_side; ++g) {
        const int block = group * per_side + g;  // of 32 rows
        if (block * 32 >= n_rows) break;
        const int j = halves > 1 ? g : 2 * g + lane / 16;
        for (int token = rank * n_warps + warp; token < here; token += p.n_ranks * n_warps) {
          const int row = kChosen && !side ? list[first + token] : first + token;
          const float gate = sum_of(j, token, lane % 16, lane / 16);
          const float up = sum_of(p.n_tiles + j, token, lane % 16, lane / 16);
          const float weight =
              p.weights == nullptr || side ? 1.0F : p.weights[row / p.k * p.weights_stride + row % p.k];
          const float v = glu(gate, up, p.act, p.limit, weight);
          const int64_t column = static_cast<int64_t>(block) * 32 + lane;
          row_of(parts[0].out, row)[column] = v;
          if (parts[1].out.p != nullptr) row_of(parts[1].out, row)[column] = up;
          const DigitRows& out = side ? p.side_out_digits : p.out_digits;
          if (out.p != nullptr) write_digits(out.p + row * out.stride, parts[0].out.d, block, v);
        }
      }
    } else if constexpr (kMode == Mode::kSum) {
      const int64_t row = static_cast<int64_t>(group) * kUnitRows + tid;
      if (tid < kUnitRows && row < p.rows_per_expert) {
        float sum = 0.0F;
        for (int s = 0; s < p.k; ++s) {
          const float weight = p.weights == nullptr ? 1.0F : p.weights[s];
          sum = fmaf(weight, sum_of(s, 0, tid, 0), sum);
        }
        if (p.shared.p != nullptr) sum += p.shared.p[row];
        p.parts[0].out.p[row] = sum;
      }
    } else {
      const int r = tid % kUnitRows, n_halves = 2 * n_warps;
      // Half warps take tiles in turn; with many tokens, tokens are dealt to the blocks of the cluster.
      for (int j = tid / kUnitRows; j < p.n_tiles * (kMany ? 2 : 1); j += n_halves) {
        const int t = kMany ? j / 2 : j;
        const Place place = place_of(t);
        const int row = place.row - place.first + r;
        const auto rows = static_cast<int>(kChosen ? p.rows_per_expert : p.parts[place.part].weight.n_out);
        if (row >= rows || place.row >= p.n_rows) continue;
        const int step = kMany ? 2 * n_slices : 1;
        for (int token = kMany ? 2 * rank + j % 2 : 0; token < here; token += step) {
          const float v = sum_of(t, token, r, 0);
          if constexpr (kMode == Mode::kRows && !kMany) {  // two tiles of a warp are a block of 32 values
            if (p.out_digits.p != nullptr) {
              write_digits(p.out_digits.p + (first + token) * p.out_digits.stride, static_cast<int>(p.n_rows),
                           row / 32, v);
            }
          }
          if constexpr (kChosen) {
            row_of(p.parts[0].out, list[first + token])[row] = v;
          } else if (p.n_groups > 1) {
            const int x_group = row / static_cast<int>(p.rows_per_group);
            float* out = row_of(p.parts[0].out, static_cast<int64_t>(first + token) * p.n_groups + x_group);
            out[row - x_group * static_cast<int>(p.rows_per_group)] = v;
          } else {
            row_of(p.parts[place.part].out, first + token)[row] = v * p.parts[place.part].factor;
          }
        }
      }
    }
    if (p.n_ranks > 1 || first + 4 * kGroups < count) leave_ranks(p.n_ranks);
  }
}

// Slices of a width: units for two steps of a warp each.
int slices_of(int n_units) { return n_units <= 3 ? n_units : std::min(kMostSlices, div_up(n_units, 2)); }

struct Card {
  int64_t processors = 1;
  bool clusters = false;
};
const Card& card() {
  static const Card instance = [] {
    int device = 0, processors = 1, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return Card{.processors = processors, .clusters = major >= 9};
  }();
  return instance;
}
constexpr int kResidentWarps = 24, kManyResidentWarps = 16;            // of a processor, by registers
constexpr int64_t kSharedBytes = 227 << 10, kReservedBytes = 1 << 10;  // of a processor; of each block

// Shared memory and warps of a block, for a grid of `blocks`.
template <Codec kCodec, Mode kMode, bool kMany>
Launch launch_tiles(TileParams p, dim3 grid) {
  using W = Tile<kCodec>;
  const int n_units = div_up(p.parts[0].weight.n_in, kUnitInputs);
  const int slice_units = div_up(n_units, p.n_slices);
  constexpr bool kChosen = kMode == Mode::kExperts || kMode == Mode::kExpertPair;
  const int most_tokens = kMany ? 4 * kManyGroups : 4;
  // An expert may be listed several times by one token.
  p.held_tokens = (kChosen && p.n_tokens > 1) || p.n_tokens > most_tokens ? most_tokens : p.n_tokens;
  p.x_rows = kMany ? 4 * div_up(p.held_tokens, 4) : p.held_tokens;
  p.inverse_slices = div_up(256, p.n_slices);
  const int64_t blocks = static_cast<int64_t>(grid.x) * grid.y * grid.z;
  const int unit_warps = kMany ? 1 : p.n_slices;  // warps come in such numbers
  const int sums = sizeof(float) * kUnitRows * p.all_tiles * p.held_tokens * (kMany ? 1 : p.n_slices);
  const int list = kChosen ? static_cast<int>(sizeof(int32_t)) * p.n_tokens * p.k : 0;
  // Warps and stages: the most warps at work on a processor, then those that fetch ahead.
  const int64_t wave = div_up<int64_t>(blocks, card().processors);
  int64_t best = -1;
  TileParams chosen;
  int warps = 0;
  size_t bytes = 0;
  for (int w = (kMany ? 8 : kMostWarps) / unit_warps * unit_warps; w > 0; w -= unit_warps) {
    if (p.all_tiles % (w / unit_warps) != 0) continue;
    p.tile_step = w / unit_warps;
    const int runs = p.all_tiles / p.tile_step;
    const int records = slice_units * (kMode == Mode::kSum ? runs : p.x_rows);
    for (p.n_stages = std::min(runs * slice_units, kMostStages); p.n_stages > 0; --p.n_stages) {
      p.warp_bytes = p.n_stages * W::kStageBytes + W::kTableBytes + (kMany ? 0 : records * kXBytes);
      p.sums_at = w * p.warp_bytes + (kMany ? records * kXBytes : 0);
      p.list_at = p.sums_at + sums;
      const int64_t needed = p.list_at + list;
      const int64_t fit = std::min<int64_t>(kSharedBytes / (needed + kReservedBytes),
                                            (kMany ? kManyResidentWarps : kResidentWarps) / w);
      const bool ahead = p.n_stages > 1 || runs * slice_units == 1;
      const int64_t score = std::min(fit, wave) * w * (ahead ? 4 : 3) * 4 + p.n_stages;
      if (score < best) continue;  // of equals, the smaller blocks
      best = score, chosen = p, warps = w, bytes = static_cast<size_t>(needed);
    }
  }
  p = chosen;
  const char* name = kMode == Mode::kSum    ? "tiles_down"
                     : kChosen              ? "tiles_experts"
                     : kMode == Mode::kPair ? "tiles_glu"
                                            : "tiles";
  Launch launch =
      make_launch(name, tile_kernel<kCodec, kMode, kMany>, grid, static_cast<unsigned>(32 * warps), p, bytes);
  launch.cluster = static_cast<uint32_t>(p.n_ranks);
  return launch;
}

template <typename Run>
Launch with_tile(Codec codec, Run&& run) {
  switch (codec) {
    case Codec::kQ8_0:
      return run(Tag<Codec::kQ8_0>{});
    case Codec::kQ4_0:
      return run(Tag<Codec::kQ4_0>{});
    case Codec::kQ5_0:
      return run(Tag<Codec::kQ5_0>{});
    case Codec::kIQ4_NL:
      return run(Tag<Codec::kIQ4_NL>{});
    case Codec::kMXFP4:
      return run(Tag<Codec::kMXFP4>{});
    case Codec::kQ4_K:
      return run(Tag<Codec::kQ4_K>{});
    case Codec::kQ5_K:
      return run(Tag<Codec::kQ5_K>{});
    case Codec::kQ6_K:
      return run(Tag<Codec::kQ6_K>{});
    case Codec::kQ2_K:
      return run(Tag<Codec::kQ2_K>{});
    default:
      return run(Tag<Codec::kIQ2_XXS>{});
  }
}

}  // namespace

bool takes_tiles(const DeviceMatrix& m) {
  switch (m.codec) {
    case Codec::kQ8_0:
    case Codec::kQ4_0:
    case Codec::kQ5_0:
    case Codec::kIQ4_NL:
      return m.n_in % 64 == 0;  // pairs of scales are fetched as words
    case Codec::kMXFP4:
      return m.n_in % 128 == 0;
    case Codec::kQ4_K:
    case Codec::kQ5_K:
    case Codec::kQ6_K:
    case Codec::kQ2_K:
    case Codec::kIQ2_XXS:
      return true;
    default:
      return false;
  }
}

Launch tile_product(TileParams p) {
  p.n_slices = slices_of(div_up(p.parts[0].weight.n_in, kUnitInputs));
  const bool chosen = p.ids != nullptr && p.sum_slots == 0;
  const bool many = p.ids == nullptr && p.n_tokens > 4 && card().clusters;
  dim3 grid(1);
  if (p.ids != nullptr) {
    p.n_rows = p.rows_per_expert;
  } else if (p.pair != 0) {
    p.n_rows = p.parts[0].weight.n_out;
  } else {
    p.n_rows = 0;
    for (int i = 0; i < p.n_parts; ++i) {
      p.parts[i].first_row = p.n_rows;
      p.n_rows += div_up<int64_t>(p.parts[i].weight.n_out, kUnitRows) * kUnitRows;
    }
  }
  const auto tiles = div_up<int64_t>(p.n_rows, kUnitRows);
  p.last_row = static_cast<int32_t>((tiles - 1) * kUnitRows);
  if (chosen) {
    const int slots = p.n_tokens * p.k;
    p.by_slot = slots <= p.n_experts ? 1 : 0;
    grid.y = static_cast<unsigned>(p.by_slot != 0 ? slots : p.n_experts);
  } else if (p.ids == nullptr) {
    grid.z = static_cast<unsigned>(div_up(p.n_tokens, many ? 4 * kManyGroups : 4));
  }
  const int sides = p.pair != 0 ? 2 : 1;
  p.n_tiles = 1;
  if (p.sum_slots != 0) {
    p.all_tiles = p.k;
    grid.x = static_cast<unsigned>(tiles);
  } else {
    int64_t tiles_per_block = 1;
    if (many) {
      p.n_ranks = p.n_slices;
      p.n_tiles = 8 / sides;
      while (p.n_groups > 1 && p.rows_per_group % (p.n_tiles * kUnitRows) != 0) p.n_tiles /= 2;
      tiles_per_block = p.n_tiles;
    } else {
      const int halves = p.pair != 0 && card().clusters ? 2 : 1;
      p.n_ranks = halves;
      p.n_tiles = p.pair != 0 ? 2 / halves : p.n_groups > 1 ? 1 : std::max(1, 8 / p.n_slices);
      if (p.pair == 0 && p.out_digits.p != nullptr) p.n_tiles = std::max(p.n_tiles, 2);
      // Longer runs of tiles per block once there are more than fit at once.
      const auto warps = [&](int n) {
        return div_up<int64_t>(tiles, n) * grid.y * grid.z * std::min(sides * n * p.n_slices, 8);
      };
      while (p.n_groups == 1 && warps(p.n_tiles) > kResidentWarps * card().processors &&
             2 * sides * p.n_tiles * p.n_slices <= 48) {
        const int64_t step = int64_t{2} * p.n_tiles * halves;
        if (div_up(tiles, step) * step * 16 > tiles * 17) break;  // repeats of the last tile
        p.n_tiles *= 2;
      }
      tiles_per_block = p.n_tiles * halves;
    }
    p.all_tiles = sides * p.n_tiles;
    p.side_from = static_cast<int32_t>(grid.y);
    grid.x = static_cast<unsigned>(div_up(tiles, tiles_per_block)) * static_cast<unsigned>(p.n_ranks);
    if (p.has_side != 0) {
      const int64_t side_blocks = div_up(p.side[0].weight.n_out, tiles_per_block * kUnitRows) * p.n_ranks;
      grid.y += static_cast<unsigned>(div_up<int64_t>(side_blocks, grid.x));
    }
  }
  return with_tile(p.parts[0].weight.codec, [&](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    if (p.sum_slots != 0) return launch_tiles<kCodec, Mode::kSum, false>(p, grid);
    if (chosen && p.pair != 0) return launch_tiles<kCodec, Mode::kExpertPair, false>(p, grid);
    if (chosen) return launch_tiles<kCodec, Mode::kExperts, false>(p, grid);
    if (p.pair != 0) {
      return many ? launch_tiles<kCodec, Mode::kPair, true>(p, grid)
                  : launch_tiles<kCodec, Mode::kPair, false>(p, grid);
    }
    return many ? launch_tiles<kCodec, Mode::kRows, true>(p, grid)
                : launch_tiles<kCodec, Mode::kRows, false>(p, grid);
  });
}

}  // namespace synod::cuda
