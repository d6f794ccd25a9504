// Prepared activations: one record per token, one chunk per 256 values, and the terms that undo the offsets
// which kernels add to make weights unsigned. A chunk has 448 bytes: seven cache lines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"

namespace synod::cpu {

inline constexpr int kChunkValues = 256;

// Values of a last, partial chunk are zero with d = 0.
struct alignas(64) Chunk32 {
  int8_t q[kChunkValues];
  float d[8];       // per 32 values; NaN where an input is not finite
  int32_t sum[8];   // of the 32 q
  int32_t n128[8];  // -128 sum, and so on
  int32_t n16[8];
  int32_t n12[8];
  int32_t n8[8];
};
static_assert(sizeof(Chunk32) == 448);

// Pairs are 16-bit halves of a dword: entry 2i holds (4i, 4i + 2), entry 2i + 1 holds (4i + 1, 4i + 3),
// because a dword of four byte scales splits into its even and odd bytes.
struct alignas(64) Chunk256 {
  int8_t q[kChunkValues];  // value i at position_of(kind, i)
  float d;
  int32_t pair16[8];    // sums of 16 q, |sum| <= 2032
  int32_t pair32[4];    // sums of 32 q, |sum| <= 4064
  int32_t pair32x8[4];  // 8 times the sums of 32: still 16 bits
  int32_t n8[8];        // -8 times the sums of 32
  int32_t n32[16];      // -32 times the sums of 16
  int32_t n1;           // minus the sum of all q
  int32_t unused[6];
};
static_assert(sizeof(Chunk256) == 448);

constexpr int64_t n_chunks(int64_t k) { return (k + kChunkValues - 1) / kChunkValues; }

constexpr bool is_blocks256(ActivationKind kind) {
  return kind == ActivationKind::kBlocks256 || kind == ActivationKind::kBlocks256By4 ||
         kind == ActivationKind::kBlocks256By8;
}

// Where value i of a chunk of a 256-value kind is stored.
constexpr int position_of(ActivationKind kind, int i) {
  switch (kind) {
    case ActivationKind::kBlocks256By4:
      return i / 16 * 16 + 4 * (i % 4) + i % 16 / 4;
    case ActivationKind::kBlocks256By8:
      return i / 32 * 32 + 4 * (i % 8) + i % 32 / 8;
    default:
      return i;
  }
}

// Sum index of the low and the high half of pair entry `i`.
constexpr int pair_low(int i) { return i / 2 * 4 + i % 2; }
constexpr int pair_high(int i) { return pair_low(i) + 2; }

constexpr int32_t pack_pair(int32_t low, int32_t high) {
  return static_cast<int32_t>((static_cast<uint32_t>(low) & 0xffffU) | (static_cast<uint32_t>(high) << 16));
}

// Fills the terms that follow from the sums of the quantized values.
inline void set_sums(int b, int32_t sum, Chunk32& c) {
  c.sum[b] = sum;
  c.n128[b] = -128 * sum;
  c.n16[b] = -16 * sum;
  c.n12[b] = -12 * sum;
  c.n8[b] = -8 * sum;
}

inline void set_sums(const int32_t (&sum16)[16], Chunk256& c) {
  int32_t sum32[8];
  for (int g = 0; g < 8; ++g) {
    sum32[g] = sum16[2 * g] + sum16[2 * g + 1];
    c.n8[g] = -8 * sum32[g];
  }
  for (int g = 0; g < 16; ++g) c.n32[g] = -32 * sum16[g];
  for (int i = 0; i < 8; ++i) c.pair16[i] = pack_pair(sum16[pair_low(i)], sum16[pair_high(i)]);
  for (int i = 0; i < 4; ++i) {
    c.pair32[i] = pack_pair(sum32[pair_low(i)], sum32[pair_high(i)]);
    c.pair32x8[i] = pack_pair(8 * sum32[pair_low(i)], 8 * sum32[pair_high(i)]);
  }
  c.n1 = 0;
  for (int g = 0; g < 8; ++g) c.n1 -= sum32[g];
}

}  // namespace synod::cpu
