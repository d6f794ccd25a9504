#include "cpu/scalar_blocks.h"

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

const Iq2XxsCodes& iq2_xxs_codes() {
  static const Iq2XxsCodes codes = [] {
    Iq2XxsCodes c{};
    for (size_t i = 0; i < 256; ++i) {
      for (unsigned j = 0; j < 8; ++j) {
        const auto code = static_cast<unsigned>((kIq2XxsGrid[i] >> (8 * j) & 0xffU) / 17U);
        uint8_t& byte = j < 4 ? c.low[i] : c.high[i];
        byte = static_cast<uint8_t>(byte | code << (2 * (j % 4)));
      }
    }
    return c;
  }();
  return codes;
}

}  // namespace synod::cpu
