// The bytes of every GGUF block type as plain structs, and the few bit tricks that all kernels share.
// No member needs more than 2-byte alignment (BlockQ8_K: 4), so an array of blocks has the stride of the
// file. Rows in a file may start at any byte: copy a block out before use, or read through memcpy.
#pragma once

#include <cstdint>

namespace synod {

// `kSize` is values per block, i the index of a value inside the block. f16 fields hold the raw bits.
// "nibble i" of 16 bytes q: the low half of q[i] for i < 16, else the high half of q[i - 16].

struct BlockQ4_0 {  // d * (nibble - 8)
  static constexpr int kSize = 32;
  uint16_t d;
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

struct BlockQ4_1 {  // nibble * d + m
  static constexpr int kSize = 32;
  uint16_t d;
  uint16_t m;
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

struct BlockQ5_0 {  // d * ((nibble | bit i of h << 4) - 16)
  static constexpr int kSize = 32;
  uint16_t d;
  uint8_t h[4];
  uint8_t q[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

struct BlockQ5_1 {  // (nibble | bit i of h << 4) * d + m
  static constexpr int kSize = 32;
  uint16_t d;
  uint16_t m;
  uint8_t h[4];
  uint8_t q[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

struct BlockQ8_0 {  // q * d
  static constexpr int kSize = 32;
  uint16_t d;
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

struct BlockQ8_1 {  // q * d; s = d * sum of q. Activations only.
  static constexpr int kSize = 32;
  uint16_t d;
  uint16_t s;
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_1) == 36);

struct BlockIQ4_NL {  // d * kIq4Values[nibble]
  static constexpr int kSize = 32;
  uint16_t d;
  uint8_t q[16];
};
static_assert(sizeof(BlockIQ4_NL) == 18);

struct BlockMXFP4 {  // 2^(e - 128) * kE2m1Doubled[nibble]
  static constexpr int kSize = 32;
  uint8_t e;
  uint8_t q[16];
};
static_assert(sizeof(BlockMXFP4) == 17);

struct BlockNVFP4 {  // per 16 values: unsigned E4M3 scale / 2 * kE2m1Doubled[code]
  static constexpr int kSize = 64;
  uint8_t scale[4];
  uint8_t q[4][8];  // of sub-block s: codes 0-7 in the low halves, 8-15 in the high halves
};
static_assert(sizeof(BlockNVFP4) == 36);

// K-quants: 256 values. In 2-bit fields of 32 bytes per 128 values, value i sits in byte 32 (i / 128) + i %
// 32 at bit 2 (i % 128 / 32).

struct BlockQ2_K {  // d * (scale & 15) * q - dmin * (scale >> 4), one scale byte per 16 values
  static constexpr int kSize = 256;
  uint8_t scales[16];
  uint8_t q[64];
  uint16_t d;
  uint16_t dmin;
};
static_assert(sizeof(BlockQ2_K) == 84);

struct BlockQ3_K {  // d * (scale - 32) * (q - (high bit ? 0 : 4)); scale: see q3_k_scale
  static constexpr int kSize = 256;
  uint8_t hmask[32];  // bit i / 32 of byte i % 32
  uint8_t q[64];
  uint8_t scales[12];
  uint16_t d;
};
static_assert(sizeof(BlockQ3_K) == 110);

struct BlockQ4_K {  // d * scale * q - dmin * min per 32 values; see k_scale_min
  static constexpr int kSize = 256;
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t q[128];  // 64 values share 32 bytes: the first 32 in the low halves
};
static_assert(sizeof(BlockQ4_K) == 144);

struct BlockQ5_K {  // as Q4_K with a fifth bit: bit i / 32 of qh[i % 32]
  static constexpr int kSize = 256;
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t q[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

struct BlockQ6_K {  // d * scale * ((low | high << 4) - 32), one scale per 16 values
  static constexpr int kSize = 256;
  uint8_t ql[128];  // 128 values share 64 bytes: the first 64 in the low halves
  uint8_t qh[64];   // 2-bit fields
  int8_t scales[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ6_K) == 210);

struct BlockQ8_K {  // d * q. Activations only.
  static constexpr int kSize = 256;
  float d;
  int8_t q[256];
  int16_t bsums[16];  // sums of 16 q
};
static_assert(sizeof(BlockQ8_K) == 292);

struct BlockTQ1_0 {  // (trit - 1) * d; see tq1_trit
  static constexpr int kSize = 256;
  uint8_t q[48];  // values 0-159: 5 per byte of the first 32; 160-239: 5 per byte of the other 16
  uint8_t qh[4];  // values 240-255: 4 per byte
  uint16_t d;
};
static_assert(sizeof(BlockTQ1_0) == 54);

struct BlockTQ2_0 {  // (q - 1) * d
  static constexpr int kSize = 256;
  uint8_t q[64];  // 2-bit fields as in the K-quants
  uint16_t d;
};
static_assert(sizeof(BlockTQ2_0) == 66);

struct BlockQ1_0 {  // bit i ? d : -d
  static constexpr int kSize = 128;
  uint16_t d;
  uint8_t q[16];
};
static_assert(sizeof(BlockQ1_0) == 18);

struct BlockQ2_0 {  // (2 bits at 2 (i % 4) of q[i / 4] - 1) * d
  static constexpr int kSize = 64;
  uint16_t d;
  uint8_t q[16];
};
static_assert(sizeof(BlockQ2_0) == 18);

// Codebook types: 8 values (IQ3: 4) are one entry of a table in quant/iq_tables.h. k = i / 32, l = i % 32
// / 8.

struct BlockIQ4_XS {  // d * (scale - 32) * kIq4Values[nibble], 6-bit scale per 32 values
  static constexpr int kSize = 256;
  uint16_t d;
  uint16_t scales_h;    // 2 high bits per 32 values
  uint8_t scales_l[4];  // 4 low bits per 32 values
  uint8_t q[8][16];
};
static_assert(sizeof(BlockIQ4_XS) == 136);

struct BlockIQ2_XXS {  // d * (0.5 + scale) / 4 * grid * sign
  static constexpr int kSize = 256;
  uint16_t d;
  uint8_t q[8][8];  // per 32 values: 4 grid indices, then u32: 4 x 7 sign bits, 4 bits of scale
};
static_assert(sizeof(BlockIQ2_XXS) == 66);

struct BlockIQ2_XS {  // as IQ2_XXS, one scale nibble per 16 values
  static constexpr int kSize = 256;
  uint16_t d;
  uint16_t q[32];  // 9 bits of grid index, 7 of signs
  uint8_t scales[8];
};
static_assert(sizeof(BlockIQ2_XS) == 74);

struct BlockIQ2_S {  // as IQ2_XS, 8 explicit sign bits per 8 values
  static constexpr int kSize = 256;
  uint16_t d;
  uint8_t q[32];
  uint8_t signs[32];
  uint8_t qh[8];  // index bits 8-9 of group l at bit 2l
  uint8_t scales[8];
};
static_assert(sizeof(BlockIQ2_S) == 82);

struct BlockIQ3_XXS {  // d * (0.5 + scale) / 2 * grid * sign
  static constexpr int kSize = 256;
  uint16_t d;
  uint8_t q[64];
  uint8_t w[8][4];  // u32 per 32 values: 4 x 7 sign bits, 4 bits of scale
};
static_assert(sizeof(BlockIQ3_XXS) == 98);

struct BlockIQ3_S {  // d * (1 + 2 scale) * grid * sign
  static constexpr int kSize = 256;
  uint16_t d;
  uint8_t q[64];
  uint8_t qh[8];  // index bit 8
  uint8_t signs[32];
  uint8_t scales[4];  // a nibble per 32 values
};
static_assert(sizeof(BlockIQ3_S) == 110);

struct BlockIQ1_S {  // d * (2 scale + 1) * (grid +- 1/8)
  static constexpr int kSize = 256;
  uint16_t d;
  uint8_t q[32];
  uint16_t qh[8];  // per 32 values: 4 x 3 index bits, 3 bits of scale, the sign of the shift
};
static_assert(sizeof(BlockIQ1_S) == 50);

struct BlockIQ1_M {  // as IQ1_S, shift per 8 and scale per 16 values; d is spread, see iq1_m_d
  static constexpr int kSize = 256;
  uint8_t q[32];
  uint8_t qh[16];      // a nibble per 8 values: 3 index bits, the sign of the shift
  uint16_t scales[4];  // 4 x 3 bits of scale, 4 bits of d
};
static_assert(sizeof(BlockIQ1_M) == 56);

// Levels of IQ4_NL and IQ4_XS.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
// Twice the E2M1 value. An integer table: code 8 is +0.
inline constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Six-bit scale and min of the 32 values `g` (0-7) of Q4_K and Q5_K.
struct KScaleMin {
  int scale;
  int min;
};
constexpr KScaleMin k_scale_min(const uint8_t (&s)[12], int g) {
  if (g < 4) return {s[g] & 63, s[g + 4] & 63};
  return {(s[g + 4] & 15) | (s[g - 4] >> 6 << 4), (s[g + 4] >> 4) | (s[g] >> 6 << 4)};
}

// Scale of the 16 values `g` (0-15) of Q3_K, before 32 is subtracted.
constexpr int q3_k_scale(const uint8_t (&s)[12], int g) {
  const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
  return low | ((s[8 + g % 4] >> (2 * (g / 4))) & 3) << 4;
}

// Scale of the 32 values `k` (0-7) of IQ4_XS, before 32 is subtracted.
constexpr int iq4_xs_scale(const BlockIQ4_XS& b, int k) {
  return ((b.scales_l[k / 2] >> (4 * (k % 2))) & 15) | ((b.scales_h >> (2 * k)) & 3) << 4;
}

// Trit `p` (0-4) of a byte that holds 5 of them as a base-3 fraction of 256.
constexpr int tq1_trit(uint8_t byte, int p) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const auto fraction = static_cast<uint8_t>(byte * kPowers[p]);
  return fraction * 3 >> 8;
}

// f16 bits of IQ1_M's d: the top nibbles of its four scale words.
constexpr uint16_t iq1_m_d(const uint16_t (&s)[4]) {
  return static_cast<uint16_t>((s[0] >> 12) | (s[1] >> 8 & 0xf0) | (s[2] >> 4 & 0xf00) | (s[3] & 0xf000));
}

}  // namespace synod
