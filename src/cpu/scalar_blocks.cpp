#include "cpu/scalar_blocks.h"

#include <array>
#include <cstring>

#include "base/half.h"
#include "quant/iq_tables.h"
#include "quant/small_floats.h"

namespace synod::cpu {
namespace {

uint32_t load_u32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

int nibble(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

int five_bits(const uint8_t* q, const uint8_t* h, int i) {
  return nibble(q, i) | (h[i / 8] >> (i % 8) & 1) << 4;
}

// Nibble of value i in the layout of Q4_K and Q5_K: 64 values share 32 bytes.
int k_nibble(const uint8_t (&q)[128], int i) {
  const uint8_t byte = q[32 * (i / 64) + i % 32];
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

// 2-bit field of value i: 128 values share 32 bytes.
int two_bits(const uint8_t* q, int i) { return q[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3; }

void set_affine(uint16_t d, uint16_t dmin, const uint8_t (&scales)[12], Unpacked256& u) {
  u.has_min = true;
  u.d = f16_to_f32(d);
  u.dmin = f16_to_f32(dmin);
  for (int g = 0; g < 16; ++g) {
    const KScaleMin codes = k_scale_min(scales, g / 2);
    u.scale[g] = codes.scale;
    u.min[g] = codes.min;
  }
}

// Sign bits of 8 values from the 7 stored ones: the number of minus signs is even.
uint32_t signs_of(uint32_t seven_bits) {
  uint32_t parity = seven_bits ^ seven_bits >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven_bits | (parity & 1U) << 7;
}

template <typename Entry>
void set_signed(Entry entry, uint32_t signs, int32_t* code) {
  for (int j = 0; j < static_cast<int>(sizeof(Entry)); ++j) {
    const auto value = static_cast<int32_t>(entry >> (8 * j) & 0xffU);
    code[j] = (signs >> j & 1U) != 0 ? -value : value;
  }
}

// code[j] = 8 * coordinate j + delta
void set_shifted(uint64_t entry, int32_t delta, int32_t* code) {
  for (int j = 0; j < 8; ++j) code[j] = 8 * static_cast<int8_t>(entry >> (8 * j)) + delta;
}

int32_t odd_scale(uint32_t code) { return static_cast<int32_t>(2 * code + 1); }

}  // namespace

Unpacked32 unpack(const BlockQ4_0& b) {
  Unpacked32 u;
  u.d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) u.code[i] = nibble(b.q, i) - 8;
  return u;
}

Unpacked32 unpack(const BlockQ4_1& b) {
  Unpacked32 u;
  u.d = f16_to_f32(b.d);
  u.m = f16_to_f32(b.m);
  u.has_min = true;
  for (int i = 0; i < 32; ++i) u.code[i] = nibble(b.q, i);
  return u;
}

Unpacked32 unpack(const BlockQ5_0& b) {
  Unpacked32 u;
  u.d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) u.code[i] = five_bits(b.q, b.h, i) - 16;
  return u;
}

Unpacked32 unpack(const BlockQ5_1& b) {
  Unpacked32 u;
  u.d = f16_to_f32(b.d);
  u.m = f16_to_f32(b.m);
  u.has_min = true;
  for (int i = 0; i < 32; ++i) u.code[i] = five_bits(b.q, b.h, i);
  return u;
}

Unpacked32 unpack(const BlockQ8_0& b) {
  Unpacked32 u;
  u.d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) u.code[i] = b.q[i];
  return u;
}

Unpacked32 unpack(const BlockIQ4_NL& b) {
  Unpacked32 u;
  u.d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) u.code[i] = kIq4Values[nibble(b.q, i)];
  return u;
}

Unpacked32 unpack(const BlockMXFP4& b) {
  Unpacked32 u;
  u.d = e8m0_half(b.e);
  for (int i = 0; i < 32; ++i) u.code[i] = kE2m1Doubled[nibble(b.q, i)];
  return u;
}

Unpacked256 unpack(const BlockQ2_K& b) {
  Unpacked256 u;
  u.has_min = true;
  u.d = f16_to_f32(b.d);
  u.dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 16; ++g) {
    u.scale[g] = b.scales[g] & 15;
    u.min[g] = b.scales[g] >> 4;
  }
  for (int i = 0; i < 256; ++i) u.code[i] = two_bits(b.q, i);
  return u;
}

Unpacked256 unpack(const BlockQ3_K& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) u.scale[g] = q3_k_scale(b.scales, g) - 32;
  for (int i = 0; i < 256; ++i) {
    u.code[i] = two_bits(b.q, i) - ((b.hmask[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
  }
  return u;
}

Unpacked256 unpack(const BlockQ4_K& b) {
  Unpacked256 u;
  set_affine(b.d, b.dmin, b.scales, u);
  for (int i = 0; i < 256; ++i) u.code[i] = k_nibble(b.q, i);
  return u;
}

Unpacked256 unpack(const BlockQ5_K& b) {
  Unpacked256 u;
  set_affine(b.d, b.dmin, b.scales, u);
  for (int i = 0; i < 256; ++i) u.code[i] = k_nibble(b.q, i) | (b.qh[i % 32] >> (i / 32) & 1) << 4;
  return u;
}

Unpacked256 unpack(const BlockQ6_K& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) u.scale[g] = b.scales[g];
  for (int i = 0; i < 256; ++i) {
    const int t = i % 128 / 32;
    const int low = b.ql[64 * (i / 128) + 32 * (t % 2) + i % 32] >> (4 * (t / 2)) & 15;
    u.code[i] = (low | two_bits(b.qh, i) << 4) - 32;
  }
  return u;
}

Unpacked256 unpack(const BlockIQ4_XS& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) u.scale[g] = iq4_xs_scale(b, g / 2) - 32;
  for (int i = 0; i < 256; ++i) u.code[i] = kIq4Values[nibble(b.q[i / 32], i % 32)];
  return u;
}

// (0.5 + s) / 4 = (2 s + 1) / 8, and a power of two is exact: below, d carries it.

Unpacked256 unpack(const BlockIQ2_XXS& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d) * 0.125F;
  for (int k = 0; k < 8; ++k) {
    const uint32_t word = load_u32(b.q[k] + 4);
    u.scale[2 * k] = u.scale[2 * k + 1] = odd_scale(word >> 28);
    for (int l = 0; l < 4; ++l) {
      set_signed(kIq2XxsGrid[b.q[k][l]], signs_of(word >> (7 * l) & 127U), u.code + 32 * k + 8 * l);
    }
  }
  return u;
}

Unpacked256 unpack(const BlockIQ2_XS& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d) * 0.125F;
  for (int g = 0; g < 16; ++g) u.scale[g] = odd_scale(b.scales[g / 2] >> (4 * (g % 2)) & 15U);
  for (int e = 0; e < 32; ++e) set_signed(kIq2XsGrid[b.q[e] & 511U], signs_of(b.q[e] >> 9), u.code + 8 * e);
  return u;
}

Unpacked256 unpack(const BlockIQ2_S& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d) * 0.125F;
  for (int g = 0; g < 16; ++g) u.scale[g] = odd_scale(b.scales[g / 2] >> (4 * (g % 2)) & 15U);
  for (int e = 0; e < 32; ++e) {
    const uint32_t index = b.q[e] | (b.qh[e / 4] >> (2 * (e % 4)) & 3U) << 8;
    set_signed(kIq2SGrid[index], b.signs[e], u.code + 8 * e);
  }
  return u;
}

Unpacked256 unpack(const BlockIQ3_XXS& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d) * 0.25F;
  for (int k = 0; k < 8; ++k) {
    const uint32_t word = load_u32(b.w[k]);
    u.scale[2 * k] = u.scale[2 * k + 1] = odd_scale(word >> 28);
    for (int e = 0; e < 8; ++e) {
      const uint32_t signs = signs_of(word >> (7 * (e / 2)) & 127U) >> (4 * (e % 2));
      set_signed(kIq3XxsGrid[b.q[8 * k + e]], signs, u.code + 32 * k + 4 * e);
    }
  }
  return u;
}

Unpacked256 unpack(const BlockIQ3_S& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) u.scale[g] = odd_scale(b.scales[g / 4] >> (4 * (g / 2 % 2)) & 15U);
  for (int e = 0; e < 64; ++e) {
    const uint32_t index = b.q[e] | (b.qh[e / 8] >> (e % 8) & 1U) << 8;
    set_signed(kIq3SGrid[index], b.signs[e / 2] >> (4U * (e % 2)), u.code + 4 * e);
  }
  return u;
}

// w = 8 * coordinate +- 1 under d / 8: (coordinate +- 1/8) as an integer.
Unpacked256 unpack(const BlockIQ1_S& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d) * 0.125F;
  for (int k = 0; k < 8; ++k) {
    const uint32_t h = b.qh[k];
    u.scale[2 * k] = u.scale[2 * k + 1] = odd_scale(h >> 12 & 7U);
    for (int l = 0; l < 4; ++l) {
      const uint32_t index = b.q[4 * k + l] | (h >> (3 * l) & 7U) << 8;
      set_shifted(kIq1Grid[index], (h >> 15) != 0 ? -1 : 1, u.code + 32 * k + 8 * l);
    }
  }
  return u;
}

Unpacked256 unpack(const BlockIQ1_M& b) {
  Unpacked256 u;
  u.d = f16_to_f32(iq1_m_d(b.scales)) * 0.125F;
  for (int g = 0; g < 16; ++g) u.scale[g] = odd_scale(b.scales[g / 4] >> (3 * (g % 4)) & 7U);
  for (int e = 0; e < 32; ++e) {
    const uint32_t h = b.qh[e / 2] >> (4 * (e % 2)) & 15U;
    set_shifted(kIq1Grid[b.q[e] | (h & 7U) << 8], (h & 8U) != 0 ? -1 : 1, u.code + 8 * e);
  }
  return u;
}

Unpacked256 unpack(const BlockTQ1_0& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d);
  for (int32_t& s : u.scale) s = 1;
  for (int i = 0; i < 160; ++i) u.code[i] = tq1_trit(b.q[i % 32], i / 32) - 1;
  for (int i = 0; i < 80; ++i) u.code[160 + i] = tq1_trit(b.q[32 + i % 16], i / 16) - 1;
  for (int i = 0; i < 16; ++i) u.code[240 + i] = tq1_trit(b.qh[i % 4], i / 4) - 1;
  return u;
}

Unpacked256 unpack(const BlockTQ2_0& b) {
  Unpacked256 u;
  u.d = f16_to_f32(b.d);
  for (int32_t& s : u.scale) s = 1;
  for (int i = 0; i < 256; ++i) u.code[i] = two_bits(b.q, i) - 1;
  return u;
}

namespace {

// Level of a coordinate of the IQ2 grids.
unsigned iq2_level(uint64_t entry, unsigned j) {
  return static_cast<unsigned>(entry >> (8 * j) & 0xffU) / 17U;
}

// Field of coordinate j in the byte of its half: see the table of index forms in codebooks.inl.
template <size_t kEntries>
void set_iq2(const std::array<uint64_t, kEntries>& grid, const int (&field)[8],
             uint8_t (&codes)[2][kEntries]) {
  for (size_t i = 0; i < kEntries; ++i) {
    for (unsigned j = 0; j < 8; ++j) {
      uint8_t& byte = codes[j / 4][i];
      byte = static_cast<uint8_t>(byte | iq2_level(grid[i], j) << (2 * field[j]));
    }
  }
}

template <size_t kEntries, typename Level>
void set_iq3(const std::array<uint32_t, kEntries>& grid, Level level, uint8_t (&codes)[2][kEntries]) {
  constexpr int kLowField[4] = {2, 3, 0, 1};
  constexpr int kHighBit[4] = {0, 1, 6, 7};
  for (size_t i = 0; i < kEntries; ++i) {
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned code = level(grid[i] >> (8 * j) & 0xffU);
      codes[0][i] = static_cast<uint8_t>(codes[0][i] | (code & 3U) << (2 * kLowField[j]));
      codes[1][i] = static_cast<uint8_t>(codes[1][i] | (code >> 2) << kHighBit[j]);
    }
  }
}

CodebookCodes make_codebook_codes() {
  CodebookCodes c{};
  constexpr int kBy8[8] = {1, 2, 0, 3, 3, 2, 0, 1};
  constexpr int kBy4[8] = {1, 2, 0, 3, 1, 2, 0, 3};
  set_iq2(kIq2XxsGrid, kBy8, c.iq2_xxs);
  set_iq2(kIq2XsGrid, kBy4, c.iq2_xs);
  set_iq2(kIq2SGrid, kBy4, c.iq2_s);
  set_iq3(
      kIq3XxsGrid, [](uint32_t v) { return (v + 4U) / 8U - 1U; }, c.iq3_xxs);  // 62 as if it were 60
  set_iq3(
      kIq3SGrid, [](uint32_t v) { return v / 2U; }, c.iq3_s);
  for (size_t i = 0; i < kIq1Grid.size(); ++i) {
    uint32_t word = 0;
    for (unsigned j = 0; j < 8; ++j) {
      const auto coordinate = static_cast<int8_t>(kIq1Grid[i] >> (8 * j));
      word |= static_cast<uint32_t>(coordinate + 1) << (8 * (j / 4) + 2 * static_cast<unsigned>(kBy4[j]));
    }
    c.iq1[i + 1] = static_cast<uint16_t>(word);
  }
  return c;
}

}  // namespace

const CodebookCodes kCodebookCodes = make_codebook_codes();

constexpr Codebooks kCodebooks = {.iq2_xxs = kIq2XxsGrid.data(),
                                  .iq2_xs = kIq2XsGrid.data(),
                                  .iq2_s = kIq2SGrid.data(),
                                  .iq3_xxs = kIq3XxsGrid.data(),
                                  .iq3_s = kIq3SGrid.data(),
                                  .iq1 = kIq1Grid.data()};

}  // namespace synod::cpu
