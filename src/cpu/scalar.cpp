// The contract of kernels.h in plain loops: what every other instruction set must equal bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "cpu/isa/job.h"
#include "cpu/scalar_blocks.h"

namespace synod::cpu {
namespace {

// Quantizes `n` values to q = nearest(x * 127 / amax) and returns amax / 127. Blocks so small that 127 / amax
// overflows (amax < 3.8e-37) become zero; a value that is not finite makes the scale NaN.
// `q` is zero on entry.
float quantize(const float* x, int64_t n, int8_t* q) {
  uint32_t largest = 0;  // of the magnitude bits: ordered as the values, NaN and infinity on top
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffU);
  if (largest >= 0x7f800000U) return std::bit_cast<float>(0x7fc00000U);
  const auto amax = std::bit_cast<float>(largest);
  const float inverse = 127.0F / amax;
  if (!std::isfinite(inverse)) return 0.0F;
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(std::lrint(x[i] * inverse));
  return amax / 127.0F;
}

int32_t sum_of(const int8_t* q, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += q[i];
  return sum;
}

void prepare_chunk(const float* x, int64_t n, Chunk32& c) {
  std::memset(&c, 0, sizeof(c));
  for (int b = 0; 32 * b < n; ++b) {
    c.d[b] = quantize(x + 32 * b, std::min<int64_t>(32, n - 32 * b), c.q + 32 * b);
    set_sums(b, sum_of(c.q + 32 * b, 32), c);
  }
}

void prepare_chunk(ActivationKind kind, const float* x, int64_t n, Chunk256& c) {
  std::memset(&c, 0, sizeof(c));
  int8_t q[kChunkValues] = {};
  c.d = quantize(x, n, q);
  int32_t sum16[16];
  for (int g = 0; g < 16; ++g) sum16[g] = sum_of(q + 16 * g, 16);
  set_sums(sum16, c);
  for (int i = 0; i < kChunkValues; ++i) c.q[position_of(kind, i)] = q[i];
}

// Calls prepare(first value, number of values, chunk) for the chunks of a record.
template <typename Chunk, typename Prepare>
void for_chunks(const float* x, int64_t k, std::byte* record, Prepare prepare) {
  auto* chunks = reinterpret_cast<Chunk*>(record);
  for (int64_t c = 0; c < n_chunks(k); ++c) {
    prepare(x + c * kChunkValues, std::min<int64_t>(kChunkValues, k - c * kChunkValues), chunks[c]);
  }
}

// Blocks may start at any byte.
template <typename Block>
Block read_block(const std::byte* bytes) {
  Block block;
  std::memcpy(&block, bytes, sizeof(block));
  return block;
}

using Accumulators = std::vector<float>;

template <typename Block>
void add_block32(const Block& block, int64_t b, std::span<const std::byte* const> records,
                 Accumulators& acc) {
  const Unpacked32 w = unpack(block);
  for (size_t m = 0; m < records.size(); ++m) {
    const Chunk32& x = reinterpret_cast<const Chunk32*>(records[m])[b / 8];
    const int8_t* q = x.q + 32 * (b % 8);
    int32_t sum = 0;
    for (int i = 0; i < 32; ++i) sum += w.code[i] * q[i];
    acc[m] = std::fma(w.d * x.d[b % 8], static_cast<float>(sum), acc[m]);
    if (w.has_min) acc[m] = std::fma(w.m * x.d[b % 8], static_cast<float>(sum_of(q, 32)), acc[m]);
  }
}

template <typename Block>
void add_block256(const Block& block, ActivationKind kind, int64_t b,
                  std::span<const std::byte* const> records, Accumulators& acc) {
  const Unpacked256 w = unpack(block);
  for (size_t m = 0; m < records.size(); ++m) {
    const Chunk256& x = reinterpret_cast<const Chunk256*>(records[m])[b];
    int32_t scaled = 0;
    int32_t mins = 0;
    for (int g = 0; g < 16; ++g) {
      int32_t sum = 0;
      for (int i = 16 * g; i < 16 * g + 16; ++i) sum += w.code[i] * x.q[position_of(kind, i)];
      scaled += w.scale[g] * sum;
      if (w.has_min) mins += w.min[g] * sum_of(x.q + 16 * g, 16);
    }
    acc[m] = std::fma(w.d * x.d, static_cast<float>(scaled), acc[m]);
    if (w.has_min) acc[m] = std::fma(-(w.dmin * x.d), static_cast<float>(mins), acc[m]);
  }
}

template <typename Block>
void block_row(const Matrix& matrix, int64_t row, std::span<const std::byte* const> records,
               Accumulators& acc) {
  const std::byte* bytes = matrix.data + row * matrix.row_stride;
  SYNOD_ASSERT(matrix.n_in % Block::kSize == 0);
  for (int64_t b = 0; b < matrix.n_in / Block::kSize; ++b) {
    const auto block = read_block<Block>(bytes + b * int64_t{sizeof(Block)});
    if constexpr (Block::kSize == 32) {
      add_block32(block, b, records, acc);
    } else {
      add_block256(block, activation_kind(matrix), b, records, acc);
    }
  }
}

float dot_float(const float* w, const float* x, int64_t k) {
  float lanes[32] = {};
  for (int64_t i = 0; i < k; ++i) lanes[i % 32] = std::fma(w[i], x[i], lanes[i % 32]);
  for (int width = 16; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

void float_row(const Matrix& matrix, int64_t row, std::span<const std::byte* const> records,
               Accumulators& acc) {
  thread_local std::vector<float> decoded;
  decoded.resize(static_cast<size_t>(matrix.n_in));
  decode_row(matrix, row, decoded.data());
  for (size_t m = 0; m < records.size(); ++m) {
    acc[m] = dot_float(decoded.data(), reinterpret_cast<const float*>(records[m]), matrix.n_in);
  }
}

using RowKernel = void (*)(const Matrix&, int64_t row, std::span<const std::byte* const>, Accumulators&);

RowKernel row_kernel(const Matrix& matrix) {
  if (activation_kind(matrix) == ActivationKind::kFloat) return float_row;
  switch (matrix.type) {
    case DType::kQ4_0:
      return block_row<BlockQ4_0>;
    case DType::kQ4_1:
      return block_row<BlockQ4_1>;
    case DType::kQ5_0:
      return block_row<BlockQ5_0>;
    case DType::kQ5_1:
      return block_row<BlockQ5_1>;
    case DType::kQ8_0:
      return block_row<BlockQ8_0>;
    case DType::kIQ4_NL:
      return block_row<BlockIQ4_NL>;
    case DType::kMXFP4:
      return block_row<BlockMXFP4>;
    case DType::kQ2_K:
      return block_row<BlockQ2_K>;
    case DType::kQ3_K:
      return block_row<BlockQ3_K>;
    case DType::kQ4_K:
      return block_row<BlockQ4_K>;
    case DType::kQ5_K:
      return block_row<BlockQ5_K>;
    case DType::kQ6_K:
      return block_row<BlockQ6_K>;
    case DType::kIQ4_XS:
      return block_row<BlockIQ4_XS>;
    case DType::kIQ2_XXS:
      return block_row<BlockIQ2_XXS>;
    case DType::kIQ2_XS:
      return block_row<BlockIQ2_XS>;
    case DType::kIQ2_S:
      return block_row<BlockIQ2_S>;
    case DType::kIQ3_XXS:
      return block_row<BlockIQ3_XXS>;
    case DType::kIQ3_S:
      return block_row<BlockIQ3_S>;
    case DType::kIQ1_S:
      return block_row<BlockIQ1_S>;
    case DType::kIQ1_M:
      return block_row<BlockIQ1_M>;
    case DType::kTQ1_0:
      return block_row<BlockTQ1_0>;
    case DType::kTQ2_0:
      return block_row<BlockTQ2_0>;
    default:
      return float_row;
  }
}

}  // namespace

void prepare_scalar(ActivationKind kind, const float* x, int64_t k, std::byte* record) {
  switch (kind) {
    case ActivationKind::kFloat:
      std::memcpy(record, x, static_cast<size_t>(k) * sizeof(float));
      break;
    case ActivationKind::kBlocks32:
      for_chunks<Chunk32>(x, k, record,
                          [](const float* from, int64_t n, Chunk32& c) { prepare_chunk(from, n, c); });
      break;
    case ActivationKind::kBlocks256:
    case ActivationKind::kBlocks256By4:
    case ActivationKind::kBlocks256By8:
      for_chunks<Chunk256>(x, k, record, [kind](const float* from, int64_t n, Chunk256& c) {
        prepare_chunk(kind, from, n, c);
      });
      break;
  }
}

void rows_scalar(const Matrix& matrix, int64_t row_begin, int64_t row_end,
                 std::span<const std::byte* const> records, std::span<float* const> out,
                 std::byte* /*scratch*/, const std::byte* /*next*/) {
  SYNOD_ASSERT(row_begin >= 0 && row_begin <= row_end && row_end <= matrix.n_out);
  SYNOD_ASSERT(records.size() == out.size());
  const RowKernel kernel = row_kernel(matrix);
  Accumulators acc(records.size());
  for (int64_t row = row_begin; row < row_end; ++row) {
    std::fill(acc.begin(), acc.end(), 0.0F);
    kernel(matrix, row, records, acc);
    for (size_t m = 0; m < out.size(); ++m) out[m][row - row_begin] = acc[m];
  }
}

}  // namespace synod::cpu
