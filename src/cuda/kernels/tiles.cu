// Products of block-coded matrices with up to kDecodeTokens activation rows, on int8 tensor cores. A block of
// eight warps owns a few tiles of 16 outputs; the units of a tile's inputs go to its slices in turn (unit u
// to slice u % 2^slice_bits), a warp takes every eighth (tile, slice) and streams its units through a ring of
// its own. Slices are added in order: a result is one fixed sequence of operations whatever the batch. What
// depends on no earlier kernel is fetched before the wait.
#include "cuda/kernels/digits.cuh"
#include "cuda/kernels/tiles.cuh"

namespace synod::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kMostStages = 3, kMostSlices = 8, kMostSlots = 512;

// Slots of the expert of this block and their rows of activations, in order. False when another block has
// them.
__device__ __forceinline__ bool find_slots(const TileParams& p, int32_t* slots, int32_t* rows, int& expert,
                                           int& count) {
  __shared__ int counts[2 * kWarps];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int n = p.n_tokens * p.k;
  const auto known = [&](int32_t id) {
    if (id >= 0 && id < p.n_experts) return id;
    raise(p.status, 2);
    return 0;
  };
  if (p.n_tokens == 1) {
    const auto slot = static_cast<int>(blockIdx.y);
    expert = known(p.ids[slot]);
    count = 1;
    if (tid == 0) slots[0] = slot, rows[0] = p.x_per_slot != 0 ? slot : 0;
    __syncthreads();
    return true;
  }
  const auto id_of = [&](int slot) { return known(p.ids[slot / p.k * p.ids_stride + slot % p.k]); };
  expert = p.by_slot != 0 ? id_of(static_cast<int>(blockIdx.y)) : static_cast<int>(blockIdx.y);
  uint32_t votes[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int slot = tid + i * kThreads;
    votes[i] = __ballot_sync(0xffffffffU, slot < n && id_of(slot) == expert);
    if (lane == 0) counts[i * kWarps + warp] = __popc(votes[i]);
  }
  __syncthreads();
  count = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int before = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) before = count;
      count += counts[i * kWarps + w];
    }
    if ((votes[i] >> lane & 1U) != 0) {
      const int slot = tid + i * kThreads, at = before + __popc(votes[i] & ((1U << lane) - 1U));
      slots[at] = slot;
      rows[at] = p.x_per_slot != 0 ? slot : slot / p.k;
    }
  }
  __syncthreads();
  return count > 0 && (p.by_slot == 0 || slots[0] == static_cast<int32_t>(blockIdx.y));
}

template <Codec kCodec, int kGroups>
__global__ void __launch_bounds__(kThreads, kGroups == 1 && kCodec != Codec::kQ6_K ? 3 : 2)
    tile_kernel(const __grid_constant__ TileParams p) {
  using W = Tile<kCodec>;
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ int32_t list[kMostSlots], x_rows[kMostSlots];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int n_in = p.parts[0].weight.n_in, n_units = div_up(n_in, kUnitInputs);
  const int slice_mask = (1 << p.slice_bits) - 1, summed = min(slice_mask + 1, n_units);
  uint8_t* ring = shared + warp * p.n_stages * W::kStageBytes;
  uint8_t* table = shared + kWarps * p.n_stages * W::kStageBytes + warp * W::kTableBytes;
  auto* sums = reinterpret_cast<float*>(shared + kWarps * (p.n_stages * W::kStageBytes + W::kTableBytes));
  const int held = p.held_tokens;  // tokens that `sums` has room for
  const bool chosen = p.ids != nullptr && p.sum_slots == 0;
  [[maybe_unused]] const uint2* grid = nullptr;
  if constexpr (kCodec == Codec::kIQ2_XXS) {
    __shared__ uint2 entries[256];
    for (int i = tid; i < 256; i += kThreads)
      entries[i] = __ldg(static_cast<const uint2*>(p.parts[0].weight.codebook) + i);
    __syncthreads();
    grid = entries;
  }

  int expert = 0, count = p.n_tokens;
  // Row tiles of the block: 2^tile_bits of parts[0] and, for pairs, as many of parts[1]; or one per slot.
  const int per_side = 1 << p.tile_bits;
  const int n_tiles = p.sum_slots != 0 ? p.k : p.pair != 0 ? 2 * per_side : per_side;
  struct Place {
    int part, row, last;  // row of the part
  };
  const auto place_of = [&](int j) {
    Place place{};
    int row = ((static_cast<int>(blockIdx.x) << p.tile_bits) + (j & (per_side - 1))) * kUnitRows;
    if (p.pair != 0) {
      place.part = j >> p.tile_bits;
    } else if (p.n_parts > 1) {
#pragma unroll
      for (int i = 1; i < kMaxParts; ++i) {
        if (i < p.n_parts && row >= static_cast<int>(p.parts[i].first_row)) place.part = i;
      }
      row -= static_cast<int>(p.parts[place.part].first_row);
    }
    const auto rows =
        static_cast<int>(p.ids != nullptr ? p.rows_per_expert : p.parts[place.part].weight.n_out);
    place.row = min(row, (rows - 1) & ~(kUnitRows - 1));  // tiles past the end repeat the last
    place.last = min(kUnitRows, rows - place.row) - 1;
    return place;
  };

  const int n_tasks = n_tiles << p.slice_bits;
  const auto blocks_of = [&](int unit) { return min(kUnitBlocks, n_in / 32 - unit * kUnitBlocks); };
  // The units of this warp. Slices past the last unit are empty.
  struct Cursor {
    int task, unit;
  };
  const auto skip_empty = [&](Cursor& c) {
    while (c.task < n_tasks && c.unit >= n_units) {
      c.task += kWarps;
      c.unit = c.task & slice_mask;
    }
  };
  const auto advance = [&](Cursor& c) {
    c.unit += slice_mask + 1;
    skip_empty(c);
  };
  Cursor to_fetch{};
  int fetch_stage = 0, source_task = -1;
  UnitSource<W::kPlanes> source;
  const auto fetch_next = [&] {
    if (to_fetch.task < n_tasks) {
      if (source_task != to_fetch.task) {
        source_task = to_fetch.task;
        const int j = source_task >> p.slice_bits;
        const Place place = place_of(j);
        auto row = static_cast<uint32_t>(place.row);
        if (p.ids != nullptr) {
          const int id = p.sum_slots != 0 ? min(max(p.ids[j], 0), p.n_experts - 1) : expert;
          row += static_cast<uint32_t>(id) * static_cast<uint32_t>(p.rows_per_expert);
        }
        source.set(p.parts[place.part].weight, row, place.last);
      }
      W::fetch(ring + fetch_stage * W::kStageBytes, source, to_fetch.unit, blocks_of(to_fetch.unit), lane);
      advance(to_fetch);
      fetch_stage = fetch_stage + 1 == p.n_stages ? 0 : fetch_stage + 1;
    }
    end_fetch();
  };
  const auto first_cursor = [&] {
    Cursor c{warp, warp & slice_mask};
    skip_empty(c);
    return c;
  };
  const auto fill_ring = [&] {
    to_fetch = first_cursor();
    fetch_stage = 0;
    for (int i = 0; i < kMostStages; ++i) {
      if (i < p.n_stages) {
        fetch_next();
      } else {
        end_fetch();
      }
    }
  };

  const bool early = p.ids == nullptr;
  if (early) fill_ring();
  begin();
  if (chosen && !find_slots(p, list, x_rows, expert, count)) return;

  const uint8_t* x = p.digits.p;
  const auto stride = static_cast<uint32_t>(p.digits.stride);
  for (int first = 0; first < count; first += 4 * kGroups) {
    const int here = min(4 * kGroups, count - first), n_groups = div_up(here, 4);
    if (!early || first > 0) fill_ring();
    // Row of activations of the i-th token of this pass.
    const auto x_row = [&](int i) {
      const int token = first + min(i, here - 1);
      return chosen ? x_rows[token] : token * p.n_groups;
    };
    uint32_t digit[kGroups], meta[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      constexpr int kPiece = W::X::kPiece;
      digit[i] = static_cast<uint32_t>(x_row(4 * i + lane / 8)) * stride +
                 static_cast<uint32_t>(lane / 4 % 2 * n_in + lane % 4 * kPiece);
      meta[i] = static_cast<uint32_t>(x_row(4 * i + lane % 4)) * stride + static_cast<uint32_t>(2 * n_in);
    }
    Cursor at_work = first_cursor();
    int stage = 0, work_task = -1;
    float acc[kGroups][2] = {};
    W tile;
    if constexpr (kCodec == Codec::kIQ2_XXS) tile.grid = grid;
    const uint8_t* x_task = x;
    while (at_work.task < n_tasks) {
      if (work_task != at_work.task) {
        work_task = at_work.task;
        const int j = work_task >> p.slice_bits;
        if (p.sum_slots != 0) x_task = x + static_cast<int64_t>(j) * stride;
        if (p.n_groups > 1)
          x_task = x + place_of(j).row / static_cast<int>(p.rows_per_group) * static_cast<int64_t>(stride);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) acc[i][0] = acc[i][1] = 0.0F;
      }
      const int n_blocks = W::kWholeUnits ? kUnitBlocks : blocks_of(at_work.unit);
      const uint8_t* digits = x_task + at_work.unit * kUnitInputs;
      const uint8_t* metas = x_task + at_work.unit * (kUnitBlocks * 16);
      typename W::X unit_x[kGroups == 1 ? kUnitBlocks : 1];
      if constexpr (kGroups == 1) {  // on their way while the weights arrive
#pragma unroll
        for (int b = 0; b < kUnitBlocks; ++b) {
          if (b < n_blocks) unit_x[b].load_from(digits + digit[0], metas + meta[0], b);
        }
      }
      wait_fetch<kMostStages - 1>();
      __syncwarp();
      uint8_t* data = ring + stage * W::kStageBytes;
      if constexpr (W::kTableBytes > 0) {
        W::prepare(data, table, lane);
        __syncwarp();
      }
      tile.load_from(data, table, lane);
      if constexpr (kGroups == 1) {
        multiply_unit<kCodec>(tile, unit_x, n_blocks, acc[0]);
      } else {
        multiply_unit<kCodec, kGroups>(tile, digits, metas, digit, meta, n_blocks, n_groups, acc);
      }
      stage = stage + 1 == p.n_stages ? 0 : stage + 1;
      advance(at_work);
      __syncwarp();
      fetch_next();  // into the stage just read
      if (at_work.task == work_task) continue;
      float* to = sums + work_task * held * kUnitRows + lane / 4;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int token = 4 * i + lane % 4;
        if (token >= here) break;
        to[token * kUnitRows] = acc[i][0];
        to[token * kUnitRows + 8] = acc[i][1];
      }
    }
    __syncthreads();

    const auto sum_of = [&](int j, int token, int r) {
      const float* from = sums + ((j << p.slice_bits) * held + token) * kUnitRows + r;
      float sum = from[0];
#pragma unroll
      for (int s = 1; s < kMostSlices; ++s) {
        if (s < summed) sum += from[s * held * kUnitRows];
      }
      return sum;
    };
    if (p.pair != 0) {
      // Lane r: output 32 * blockIdx.x + r; rows of an expert or matrix are a multiple of 32.
      for (int i = warp; i < here; i += kWarps) {
        const int row = chosen ? list[first + i] : first + i;
        const float gate = sum_of(lane / 16, i, lane % 16), up = sum_of(per_side + lane / 16, i, lane % 16);
        const float weight =
            p.weights == nullptr ? 1.0F : p.weights[row / p.k * p.weights_stride + row % p.k];
        const float v = glu(gate, up, p.act, p.limit, weight);
        const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
        row_of(p.parts[0].out, row)[column] = v;
        if (p.parts[1].out.p != nullptr) row_of(p.parts[1].out, row)[column] = up;
        if (p.out_digits.p != nullptr) {
          write_digits(p.out_digits.p + row * p.out_digits.stride, p.parts[0].out.d,
                       static_cast<int>(blockIdx.x), v);
        }
      }
    } else if (p.sum_slots != 0) {
      const int64_t row = static_cast<int64_t>(blockIdx.x) * kUnitRows + tid;
      if (tid < kUnitRows && row < p.rows_per_expert) {
        float sum = 0.0F;
        for (int s = 0; s < p.k; ++s) {
          const float weight = p.weights == nullptr ? 1.0F : p.weights[s];
          sum = fmaf(weight, sum_of(s, 0, tid), sum);
        }
        if (p.shared.p != nullptr) sum += p.shared.p[row];
        p.parts[0].out.p[row] = sum;
      }
    } else {
      const int r = tid % kUnitRows;
      for (int j = 0; j < n_tiles; ++j) {
        const Place place = place_of(j);
        const int tile_row = ((static_cast<int>(blockIdx.x) << p.tile_bits) + j) * kUnitRows;
        if (r > place.last || tile_row >= p.n_rows) continue;
        const int row = place.row + r;
        for (int token = tid / kUnitRows; token < here; token += kThreads / kUnitRows) {
          const float v = sum_of(j, token, r);
          if (chosen) {
            row_of(p.parts[0].out, list[first + token])[row] = v;
            continue;
          }
          const int group = p.n_groups > 1 ? row / static_cast<int>(p.rows_per_group) : 0;
          float* out =
              row_of(p.parts[place.part].out, static_cast<int64_t>(first + token) * p.n_groups + group);
          out[row - group * static_cast<int>(p.rows_per_group)] = v;
        }
      }
    }
    if (first + 4 * kGroups < count) __syncthreads();
  }
}

template <Codec kCodec, int kGroups>
Launch launch_tiles(TileParams p, dim3 grid) {
  using W = Tile<kCodec>;
  const int n_units = div_up(p.parts[0].weight.n_in, kUnitInputs);
  const int n_tiles = p.sum_slots != 0 ? p.k : (p.pair != 0 ? 2 : 1) << p.tile_bits;
  const int tasks = n_tiles << p.slice_bits;
  const int per_warp = div_up(tasks, kWarps) * div_up(n_units, 1 << p.slice_bits);
  p.n_stages = per_warp < kMostStages ? per_warp : kMostStages;
  // An expert may be listed several times by one token.
  const bool lists = p.ids != nullptr && p.sum_slots == 0 && p.n_tokens > 1;
  p.held_tokens = lists || p.n_tokens > 4 * kGroups ? 4 * kGroups : p.n_tokens;
  const size_t bytes =
      static_cast<size_t>(kWarps) * (p.n_stages * W::kStageBytes + W::kTableBytes) +
      sizeof(float) * kUnitRows * static_cast<size_t>(tasks) * static_cast<size_t>(p.held_tokens);
  const char* name = p.sum_slots != 0   ? "tiles_down"
                     : p.ids != nullptr ? "tiles_experts"
                     : p.pair != 0      ? "tiles_glu"
                                        : "tiles";
  return make_launch(name, tile_kernel<kCodec, kGroups>, grid, kThreads, p, bytes);
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
  const int n_units = div_up(p.parts[0].weight.n_in, kUnitInputs);
  p.slice_bits = n_units > 4 ? 3 : n_units > 2 ? 2 : n_units - 1;
  dim3 grid(1);
  if (p.sum_slots != 0) {
    grid.x = static_cast<unsigned>(div_up<int64_t>(p.rows_per_expert, kUnitRows));
  } else {
    const bool experts = p.ids != nullptr;
    p.tile_bits = p.pair != 0 ? 1 : 3 - p.slice_bits;  // eight tasks, or 32 rows of each
    if (experts || p.pair != 0) {
      p.n_rows = experts ? p.rows_per_expert : p.parts[0].weight.n_out;
    } else {
      p.n_rows = 0;
      for (int i = 0; i < p.n_parts; ++i) {
        p.parts[i].first_row = p.n_rows;
        p.n_rows += div_up<int64_t>(p.parts[i].weight.n_out, kUnitRows) * kUnitRows;
      }
    }
    grid.x = static_cast<unsigned>(div_up<int64_t>(p.n_rows, kUnitRows << p.tile_bits));
    if (experts) {
      const int slots = p.n_tokens * p.k;
      p.by_slot = slots <= p.n_experts ? 1 : 0;
      grid.y = static_cast<unsigned>(p.by_slot != 0 ? slots : p.n_experts);
    }
  }
  return with_tile(p.parts[0].weight.codec, [&](auto tag) {
    constexpr Codec kCodec = decltype(tag)::kValue;
    // Tokens that share weights in a block: all, or the few that chose one expert.
    const bool few = p.ids != nullptr ? p.n_tokens * p.k <= 3 * p.n_experts : p.n_tokens <= 4;
    if (few) return launch_tiles<kCodec, 1>(p, grid);
    return launch_tiles<kCodec, 8>(p, grid);
  });
}

}  // namespace synod::cuda
