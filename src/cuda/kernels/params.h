// What the host tells a kernel: plain structs, and one function per kernel that turns them into a Launch.
// Every kernel takes one struct by value, so that a step is a list of launches that can be run, compared or
// captured alike. Strides of f32 views are in values, others in bytes; all offsets are 64-bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace synod::cuda {

struct Launch {
  const void* function = nullptr;
  const char* name = "";
  std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1};
  uint32_t shared_bytes = 0;
  uint32_t cluster = 1;  // blocks of a cluster, along x
  std::vector<std::byte> params;
};

// Rows of f32 values: row r starts at p + (r / n1) * s0 + (r % n1) * s1.
struct View {
  float* p = nullptr;
  int64_t s0 = 0, s1 = 0;
  int32_t n1 = 1;  // rows per outer index
  int32_t d = 0;   // values per row
};

// How a matrix lies on the device. Planar codecs split a GGUF block into planes, each [n_out, plane bytes per
// row] and 16-byte aligned: codes first, scales last. Others keep rows as they are stored.
enum class Codec : int32_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,     // codes 32 | d
  kQ4_0,     // codes 16 | d
  kQ5_0,     // codes 16 | high bits 4 | d
  kIQ4_NL,   // codes 16 | d
  kMXFP4,    // codes 16 | e
  kQ4_K,     // codes 128 | {d, dmin, scales}
  kQ5_K,     // codes 128 | high bits 32 | {d, dmin, scales}
  kQ6_K,     // low 128 | high 64 | scales 16 | d
  kQ2_K,     // codes 64 | scales 16 | {d, dmin}
  kIQ2_XXS,  // codes 64 | d
  kBlocks,   // any other block type, as stored
  kF64,
  kFp8Block,  // codes | scales, both as stored
  kFp4,
  kNvFp4,
  kMlxAffine,  // codes | scales | biases
  kMxFp8,
  kI32,  // constants that are no weights
};

inline constexpr int kMaxPlanes = 4;

struct DeviceMatrix {
  const uint8_t* plane[kMaxPlanes] = {};
  int64_t stride[kMaxPlanes] = {};  // bytes from one row to the next
  int64_t n_out = 0;
  int32_t n_in = 0;
  Codec codec = Codec::kF32;
  int32_t dtype = 0;       // DType, for kBlocks
  int32_t scale_type = 0;  // DType of the scales
  int32_t group = 0, tile_out = 0, row_offset = 0, bits = 0;
  float global = 1.0F;
  int32_t global_divides = 0;
  float range = 1.0F;              // power of two that brings the largest value to [0.5, 1) when multiplied
  const void* codebook = nullptr;  // of the IQ types
};

// Activations of one row as two digits of base 254 and a scale per 32 values:
// [high: n_in x int8][low: n_in x int8][n_in / 32 x float4 {s, s * sum, s * sum of the first 16, s * sum of
// the last 16}].
struct DigitRows {
  uint8_t* p = nullptr;
  int64_t stride = 0;  // bytes
};
constexpr int64_t digit_row_bytes(int64_t n_in) { return n_in * 2 + n_in / 32 * 16; }

// Rows of a cache group: tables[seq * pages_per_seq + page] is a page or null.
struct CacheTable {
  std::byte* const* pages = nullptr;
  int64_t pages_per_seq = 0;
  int64_t row_bytes = 0;
  int32_t rows_per_page = 1;
  int32_t row_dim = 0;
  int32_t dtype = 0;  // DType
};

// The batch on the device.
struct BatchArrays {
  const int32_t* position = nullptr;   // [n_tokens]
  const int32_t* sequence = nullptr;   // [n_tokens]
  const int32_t* past = nullptr;       // [n_sequences]
  const int32_t* row_start = nullptr;  // [n_sequences + 1]
  int32_t n_tokens = 0, n_sequences = 0;
};

struct StatusWord {
  uint32_t* bits = nullptr;  // [0] bits, [1] label index of the first raise + 1
  uint32_t label = 0;
};

// ---- rows.cu: programs over rows. Each thread owns the same columns in every step, so steps need no
// barrier. Rows that a program reads or makes have a slot in shared memory.
struct RowStep {
  enum Kind : int32_t { kNorm, kAdd, kScale, kGlu, kSoftCap, kDigits, kCopy };
  Kind kind = kNorm;
  int32_t act = 0;  // Glu: 0 SiLU, 1 GELU (tanh)
  View dst, a, b;
  DigitRows digits;          // kDigits
  const float* w = nullptr;  // norm weight [d], scale factor [1] or row weight [rows]
  float eps = 0.0F, factor = 1.0F, limit = 0.0F;
  int32_t slot_a = 0, slot_b = 0, slot_dst = 0;  // set by row_program()
};
struct RowInput {
  View rows;
  const float* constant = nullptr;  // instead of rows: no kernel writes it, so it is read before the wait
  int32_t slot = 0;
};
inline constexpr int kMaxRowSteps = 10;
struct RowProgram {
  int64_t n_rows = 0;
  int32_t d = 0;
  int32_t n_steps = 0;
  RowStep steps[kMaxRowSteps];
  RowInput inputs[2 * kMaxRowSteps];  // set by row_program()
  int32_t n_inputs = 0;
};
inline constexpr int kMostRowBytes = 200 << 10;  // of slots
int row_slots(const RowProgram& p);
Launch row_program(RowProgram p);

// Elementwise over any shape (no norm): one thread per value.
Launch elementwise(const RowProgram& p);

struct RopeParams {
  View x;  // n1 = heads; x.d unused
  int64_t n_rows = 0;
  const int32_t* positions = nullptr;  // [n_rows / n1]
  const float* freqs = nullptr;
  int32_t n_pairs = 0, first = 0, interleaved = 0, inverse = 0;
};
Launch rope(const RopeParams& p);

// Per token and head: norm, rotation, cache write, in this order (each optional).
struct HeadItem {
  View out;                  // n1 = heads, d = head_dim
  const float* x = nullptr;  // same shape and strides as out
  const float* weight = nullptr;
  int32_t n_heads = 0, norm = 0, rotate = 0, store = 0;
  int32_t first = 0;  // rotated value
  int32_t chain = 0;  // items of one chain share memory and run in order
  float eps = 0.0F, factor = 1.0F;
  CacheTable rows;
};
struct HeadProgram {
  int32_t n_items = 0, n_tokens = 0, n_chains = 0;
  int32_t max_heads = 0, widest = 0;  // of the items: heads, values of a head
  HeadItem items[3];  // a chain is one warp's, per head: a later item may overwrite an earlier item's input
  const int32_t* positions = nullptr;
  const float* freqs = nullptr;
  int32_t n_pairs = 0, interleaved = 0;
  BatchArrays batch;
  StatusWord status;
};
Launch head_program(const HeadProgram& p);

struct RoundTripParams {
  View out, x;
  int64_t n_rows = 0;
  int32_t fp4 = 0, block = 0, count = 0;
};
Launch round_trip(const RoundTripParams& p);

struct HadamardParams {
  View x;
  int64_t n_rows = 0;
};
Launch hadamard(const HadamardParams& p);

struct ArgMaxParams {
  int32_t* out = nullptr;
  View x;
  int32_t n_rows = 0;
  uint64_t* partial = nullptr;  // [n_rows, n_parts] keys
  int32_t n_parts = 0;
  StatusWord status;
};
Launch arg_max_parts(const ArgMaxParams& p);
Launch arg_max_final(const ArgMaxParams& p);

struct GatherParams {
  View out, x;
  const int32_t* rows = nullptr;
  int32_t n = 0, per_row = 1, n_tokens = 0;
  StatusWord status;
};
Launch gather_rows(const GatherParams& p);

struct EmbedParams {
  View out;
  const int32_t* ids = nullptr;
  DeviceMatrix table;
  float scale = 1.0F;
  int32_t n_tokens = 0;
  StatusWord status;
};
Launch embed(const EmbedParams& p);

// ---- gemv.cu: few rows of activations (decode).
inline constexpr int kMaxParts = 8;
struct GemvPart {
  DeviceMatrix weight;
  View out;
  int64_t first_row = 0;  // in the stacked rows of all parts
  float factor = 1.0F;    // of the results; plain products only
};
struct GemvParams {
  GemvPart parts[kMaxParts];
  int32_t n_parts = 0;
  int32_t n_tokens = 0;
  int64_t n_rows = 0;  // over all parts
  DigitRows digits;    // of x, for codecs with integer codes
  View x;              // f32, for the others
  // GroupedLinear (one part): weight row r reads row t * n_groups + r / rows_per_group of x, and writes value
  // r % rows_per_group of the same row of out. Otherwise one group.
  int32_t n_groups = 1;
  int64_t rows_per_group = 0;
  int32_t split = 1;  // warps that share a row; set by gemv()
};
bool uses_digits(const DeviceMatrix& m);
Launch gemv(const GemvParams& p);

// Routed experts of few tokens. Matrices of all experts are stacked by rows.
struct ExpertGemvParams {
  DeviceMatrix gate, up;  // up.n_out == 0: only `gate`, no activation
  int64_t rows_per_expert = 0;
  int32_t n_experts = 0, n_tokens = 0, k = 0;
  const int32_t* ids = nullptr;  // [n_tokens, k]
  int64_t ids_stride = 0;        // values
  View out;                      // [n_tokens, k, rows_per_expert], n1 = k
  DigitRows digits;              // row of slot (t, s): x_per_slot ? t * k + s : t
  View x;
  int32_t x_per_slot = 0;
  const float* row_weight = nullptr;  // [n_tokens, k] or null
  int64_t row_weight_stride = 0;
  int32_t act = 0;
  float limit = 0.0F;
  StatusWord status;
};
Launch expert_gemv(const ExpertGemvParams& p);

// out[t] = sum_s weight[t, s] * (down[ids[t, s]] * hidden[t, s]) + shared[t]
struct ExpertDownParams {
  DeviceMatrix down;
  int64_t rows_per_expert = 0;
  int32_t n_experts = 0, n_tokens = 0, k = 0;
  const int32_t* ids = nullptr;
  int64_t ids_stride = 0;
  const float* weights = nullptr;  // or null
  int64_t weights_stride = 0;
  DigitRows digits;  // row t * k + s
  View x;            // n1 = k
  View out, shared;  // shared.p may be null
};
Launch expert_down(const ExpertDownParams& p);

// ---- tiles.cu: products of block-coded matrices with few rows of activations, on int8 tensor cores.
struct TileParams {
  GemvPart parts[kMaxParts];  // one codec; experts: stacked by rows
  int32_t n_parts = 1;
  int32_t n_tokens = 0;
  DigitRows digits;
  // parts[0] is gate, parts[1] up: parts[0].out receives the gated values, parts[1].out (or null) those of
  // up. Rows must be a multiple of 32 then.
  int32_t pair = 0;
  int32_t act = 0;
  float limit = 0.0F;
  DigitRows out_digits;  // of gated values, or a row of all groups (up to four tokens); p may be null
  // GroupedLinear, as in GemvParams; rows_per_group is a multiple of 16.
  int32_t n_groups = 1;
  int64_t rows_per_group = 0;
  // Experts, as in ExpertGemvParams; null ids: none.
  const int32_t* ids = nullptr;
  int64_t ids_stride = 0;
  int64_t rows_per_expert = 0;
  int32_t n_experts = 0, k = 1;
  int32_t x_per_slot = 0;
  const float* weights = nullptr;  // of slots, or null: factors of gated values, or of the sum over slots
  int64_t weights_stride = 0;
  // One token: out[0] = sum over slots of weight * product, + shared, in slot order; digits has a row per
  // slot.
  int32_t sum_slots = 0;
  View shared;
  StatusWord status;
  // A pair of plain matrices of the same codec and width that shares the launch of a pair of experts (up to
  // four tokens): side[0] is gate, side[1] up.
  GemvPart side[2];
  DigitRows side_digits, side_out_digits;
  int32_t has_side = 0;
  // `ids` were written before the launch that precedes this one.
  int32_t settled_ids = 0;
  // Set by tile_product(): tiles of a block (per side, all), slices and how to divide by them, blocks of a
  // cluster; from one tile of a warp to its next; the last tile's first row; the layout of shared memory.
  int32_t n_tiles = 1, all_tiles = 1, n_slices = 1, inverse_slices = 256, n_ranks = 1, by_slot = 0;
  int32_t tile_step = 1, last_row = 0, side_from = 0;  // the first blockIdx.y of the side
  int32_t n_stages = 1, held_tokens = 1, x_rows = 1, warp_bytes = 0, sums_at = 0, list_at = 0;
  int64_t n_rows = 0;
};
inline constexpr int kUnitRows = 16;
bool takes_tiles(const DeviceMatrix& m);
Launch tile_product(TileParams p);

struct CombineParams {
  View out, x, shared;  // x: n1 = k
  const float* weights = nullptr;
  int64_t weights_stride = 0;
  int32_t k = 0, n_tokens = 0;
};
Launch combine_experts(const CombineParams& p);

// ---- gemm.cu: many rows of activations (prefill).
// x rounded to f16 after scaling by a power of two per row; `low` holds what rounding lost (or is null).
// Values lie as the tensor cores' operand for weights wants its registers: of every 32, position 16 i + 8 j +
// 2 part + e has value 8 part + 4 i + 2 j + e, so that a thread's weights are eight neighbours.
struct HalfRows {
  uint16_t* high = nullptr;
  uint16_t* low = nullptr;
  float* scale = nullptr;  // [rows]: multiplies results
  int64_t stride = 0;      // values, a multiple of 32; padded with zeros
};
struct HalfParams {
  View x;
  int64_t n_rows = 0;
  HalfRows out;
};
Launch to_half(const HalfParams& p);

struct GemmParams {
  DeviceMatrix weight;
  HalfRows x;
  View out;
  int64_t n_tokens = 0;
  int64_t rows = 0;  // outputs: weight rows per expert or group
  // Experts: tiles listed on the device. Null for a plain product.
  const int32_t* tile_expert = nullptr;  // [max_tiles], -1 after the last
  const int32_t* tile_start = nullptr;   // first entry of the tile in `slots`
  const int32_t* tile_count = nullptr;   // rows of the tile
  const int32_t* slots = nullptr;        // slot t * k + s, sorted by expert
  int32_t max_tiles = 0;
  int32_t k = 1;           // slots per token
  int32_t x_per_slot = 0;  // x row of a slot: the slot, or slot / k
  int32_t n_groups = 0;    // GroupedLinear: x and out row t * n_groups + g
  // Where gemm_pairs(weight, up): out = glu(weight x, up x), up_out (p may be null) = up x.
  DeviceMatrix up;
  View up_out;
  int32_t pair = 0, act = 0;
  float limit = 0.0F;
  int64_t n_tiles = 0;  // set by gemm()
};
bool gemm_pairs(const DeviceMatrix& gate, const DeviceMatrix& up);
inline constexpr int kGemmTokens = 128;  // tokens of one tile
bool needs_low_half(const DeviceMatrix& m);
Launch gemm(const GemmParams& p);

struct SortParams {
  const int32_t* ids = nullptr;  // [n_tokens, k]
  int64_t ids_stride = 0;
  int32_t n_tokens = 0, k = 0, n_experts = 0;
  int32_t* counts = nullptr;  // [n_experts + 1]: exclusive sums
  int32_t* slots = nullptr;   // [n_tokens * k]
  int32_t* tile_expert = nullptr;
  int32_t* tile_start = nullptr;
  int32_t* tile_count = nullptr;
  int32_t max_tiles = 0;
  StatusWord status;
};
Launch sort_count(const SortParams& p);
Launch sort_place(const SortParams& p);

// ---- route.cu
struct RouteParams {
  int32_t* ids = nullptr;
  float* weights = nullptr;
  View logits;
  int64_t ids_stride = 0, weights_stride = 0;  // values
  int32_t n_tokens = 0, n_experts = 0, k = 0;
  int32_t mode = 0;  // 0 softmax, 1 scores, 2 hash
  const float* expert_scale = nullptr;
  const float* bias = nullptr;
  const int32_t* token_ids = nullptr;
  const int32_t* table = nullptr;
  int64_t table_rows = 0;
  float scale = 1.0F;
  StatusWord status;
};
Launch route(const RouteParams& p);

// ---- cache.cu
struct CacheWriteParams {
  CacheTable rows;
  View x;
  BatchArrays batch;
  int32_t tokens_per_row = 1;
  int32_t n_rows = 0;
  StatusWord status;
};
Launch cache_write(const CacheWriteParams& p);

// ---- compress.cu
struct PoolParams {
  View out;
  CacheTable state;  // f32
  BatchArrays batch;
  int32_t ratio = 0, overlap = 0, n_rows = 0;
};
Launch compress_pool(const PoolParams& p);

// State rows of a compressor: terms[t] = table[ids[t]] is added to the columns [from, from + terms.d) of
// x[t], which is then stored as an f32 row of the cache. Ids and tables are no kernel's results.
struct StateItem {
  View x, terms;
  const float* table = nullptr;
  int64_t table_stride = 0, table_rows = 0;  // stride in values
  const int32_t* ids = nullptr;
  int32_t from = 0;
  int32_t first_block = 0;  // of a token's blocks; set by state_program()
  CacheTable rows;
};
inline constexpr int kMaxStates = 2;
struct StateProgram {
  StateItem items[kMaxStates];
  int32_t n_items = 0, n_tokens = 0;
  BatchArrays batch;
  StatusWord status;
};
Launch state_program(StateProgram p);

// Everything that a block of tokens goes through when it closes: pool, norm, rotation of neighbouring values,
// Hadamard transform and rounding (both optional), cache row. Positions are no kernel's results.
struct CompressItem {
  // out receives what the cache does, or p is null; out.d is a multiple of 32, at most kWidestCompressed.
  PoolParams pool;
  const float* weight = nullptr;  // of the norm, or null for 1
  float eps = 0.0F, factor = 1.0F;
  const int32_t* positions = nullptr;  // [n_rows]
  const float* freqs = nullptr;
  int32_t n_pairs = 0, first = 0;
  int32_t hadamard = 0;
  int32_t round_fp4 = 0, round_block = 0, round_count = 0;  // block 0: no rounding; else a multiple of 32
  CacheTable rows;
};
inline constexpr int kMaxCompressed = 2, kWidestCompressed = 1024;
struct CompressProgram {
  CompressItem items[kMaxCompressed];
  int32_t n_items = 0;
  StatusWord status;
};
Launch compress_program(const CompressProgram& p);

// ---- hyper.cu
struct HcPostParams {
  View out, x, y;  // out, x: n1 = n_streams
  const float *post = nullptr, *comb = nullptr;
  int32_t n_tokens = 0, n_streams = 0;
};
Launch hc_post(const HcPostParams& p);

struct HcParams {
  View x;                     // n1 = n_streams
  HcPostParams before;        // makes x, in the launch of the products; n_tokens 0: x is there
  const float* fn = nullptr;  // f32 [n_mixes, n_streams * d]
  int64_t fn_stride = 0;      // values
  float* partial = nullptr;   // [n_tokens, n_mixes + 1, kHcSplits]
  const float* base = nullptr;
  const float* scale = nullptr;
  float *pre = nullptr, *post = nullptr, *comb = nullptr;  // contiguous
  View collapsed;                                          // p may be null: no collapse
  const float* norm = nullptr;                             // weight of the norm after the collapse
  View normed;                                             // p may be null: no norm
  DigitRows digits;                                        // of normed; p may be null
  float norm_eps = 0.0F, eps = 0.0F, out_eps = 0.0F;
  int32_t n_tokens = 0, n_streams = 0, n_mixes = 0, iterations = 0, head = 0;
};
inline constexpr int kHcSplits = 64;
inline constexpr int kHcTokens = 4;  // from so many on, tokens share weights, and x must be there
Launch hc_products(const HcParams& p);
Launch hc_weights(const HcParams& p);

struct HcRowsParams {
  View out, x;
  const float* weights = nullptr;  // collapse
  int32_t n_tokens = 0, n_streams = 0, expand = 0;
};
Launch hc_rows(const HcRowsParams& p);

// ---- attention.cu
struct AttentionParams {
  View out, q;  // n1 = n_heads
  CacheTable k, v;
  CacheTable compressed;              // DeepSeek: rows after the window's; pages null when absent
  const int32_t* selected = nullptr;  // [n_tokens, n_selected]
  const float* sinks = nullptr;
  BatchArrays batch;
  int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int32_t window = 0, ratio = 0, n_selected = 0;
  int32_t shared_kv = 0;  // values are the keys
  float scale = 1.0F;
  float* partial = nullptr;  // [n_tokens, n_heads, n_splits, head_dim + 4]: largest logit, mass, -, -, sums
  // Zeros, and zeros again afterwards; at most kMostTickets: of a token and up to n_heads blocks, one each
  // and one per kGroupSplits splits.
  uint32_t* tickets = nullptr;
  int32_t n_splits = 0;                   // of the grid: at least those of the longest query
  int32_t first_token = 0, n_tokens = 0;  // of this launch
  DigitRows digits;                       // of out, digit_heads heads in a row; p may be null
  int32_t digit_heads = 0;
  // Inverse rotation of the results, of neighbouring values from an even one on (attention_split() alone).
  const int32_t* turn_positions = nullptr;  // [n_tokens], no kernel's results; null: none
  const float* turn_freqs = nullptr;
  int32_t turn_pairs = 0, turn_first = 0;  // at most kMostTurns
};
inline constexpr int kMostTurns = 128;
inline constexpr int kSplitKeys = 64;    // smallest split
inline constexpr int kGroupSplits = 16;  // splits that are added first when there are many
inline constexpr int kMostTickets = 1 << 16;
Launch attention_split(const AttentionParams& p);
bool attention_tile_fits(const AttentionParams& p);
Launch attention_tile(const AttentionParams& p);  // many tokens, tensor cores

struct IndexParams {
  int32_t* selected = nullptr;
  View q;  // n1 = n_heads
  View beta;
  CacheTable keys;
  BatchArrays batch;
  float* scores = nullptr;  // [n_tokens, max_rows]
  int64_t max_rows = 0;
  int32_t n_heads = 0, head_dim = 0, ratio = 0, k = 0;
  StatusWord status;
};
Launch index_scores(const IndexParams& p);
Launch index_top_k(const IndexParams& p);

// ---- place.cu
struct RepackParams {
  const uint8_t* blocks = nullptr;  // [n_rows, row_bytes] as stored
  int64_t row_bytes = 0, n_rows = 0;
  int32_t blocks_per_row = 0, block_bytes = 0, n_planes = 0;
  int32_t plane_offset[kMaxPlanes] = {},
          plane_bytes[kMaxPlanes] = {};  // of one block; offset -1: see repack()
  uint8_t* plane[kMaxPlanes] = {};
  int64_t stride[kMaxPlanes] = {};
};
Launch repack(const RepackParams& p);
struct DecodeParams {  // rows to f32, for checks and for matrices that are kept as f32
  DeviceMatrix matrix;
  View out;
  int64_t first_row = 0, n_rows = 0;
};
Launch decode_rows(const DecodeParams& p);
struct RangeParams {
  DeviceMatrix matrix;
  uint32_t* largest = nullptr;  // bits of the largest finite |value|, by integer max
};
Launch matrix_range(const RangeParams& p);

}  // namespace synod::cuda
