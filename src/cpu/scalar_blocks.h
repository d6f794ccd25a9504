// Integer form of every block type: codes with their offset removed, integer sub-scales, f32 factors. The
// value of code i is d * scale * code[i] - dmin * min (32-value types: d * code[i] + m).
#pragma once

#include <cstdint>

#include "quant/blocks.h"

namespace synod::cpu {

struct Unpacked32 {
  int32_t code[32];
  float d = 0.0F;
  float m = 0.0F;
  bool has_min = false;
};

struct Unpacked256 {
  int32_t code[256];
  int32_t scale[16];  // per 16 values
  int32_t min[16] = {};
  float d = 0.0F;
  float dmin = 0.0F;
  bool has_min = false;
};

Unpacked32 unpack(const BlockQ4_0& b);
Unpacked32 unpack(const BlockQ4_1& b);
Unpacked32 unpack(const BlockQ5_0& b);
Unpacked32 unpack(const BlockQ5_1& b);
Unpacked32 unpack(const BlockQ8_0& b);
Unpacked32 unpack(const BlockIQ4_NL& b);
Unpacked32 unpack(const BlockMXFP4& b);

Unpacked256 unpack(const BlockQ2_K& b);
Unpacked256 unpack(const BlockQ3_K& b);
Unpacked256 unpack(const BlockQ4_K& b);
Unpacked256 unpack(const BlockQ5_K& b);
Unpacked256 unpack(const BlockQ6_K& b);
Unpacked256 unpack(const BlockIQ4_XS& b);
Unpacked256 unpack(const BlockIQ2_XXS& b);
Unpacked256 unpack(const BlockIQ2_XS& b);
Unpacked256 unpack(const BlockIQ2_S& b);
Unpacked256 unpack(const BlockIQ3_XXS& b);
Unpacked256 unpack(const BlockIQ3_S& b);
Unpacked256 unpack(const BlockIQ1_S& b);
Unpacked256 unpack(const BlockIQ1_M& b);
Unpacked256 unpack(const BlockTQ1_0& b);
Unpacked256 unpack(const BlockTQ2_0& b);

// The codebooks as small codes, for kernels that look entries up inside registers. A table of N bytes holds
// one byte per entry; the order of fields inside a byte is one that lets a kernel use most of them unshifted
// (isa/avx512/codebooks.inl).
struct CodebookCodes {
  // 2-bit levels (8, 25, 43) of coordinates 0-3 ([0]) and 4-7 ([1]).
  alignas(64) uint8_t iq2_xxs[2][256];
  alignas(64) uint8_t iq2_xs[2][512];
  alignas(64) uint8_t iq2_s[2][1024];
  // Low two bits of the 3-bit levels of 4 coordinates ([0]), their high bits in bits 0, 1, 6, 7 ([1]).
  alignas(64) uint8_t iq3_xxs[2][256];
  alignas(64) uint8_t iq3_s[2][512];
  // Levels (-1, 0, 1) of coordinates 0-3 and 4-7 in the two bytes of a word. One word of padding on either
  // side lets a dword be read that has entry i as its low (words[i + 1]) or high half (words[i]).
  uint16_t iq1[2048 + 2];
};
extern const CodebookCodes kCodebookCodes;

// The codebooks of quant/iq_tables.h as plain pointers.
struct Codebooks {
  const uint64_t* iq2_xxs;
  const uint64_t* iq2_xs;
  const uint64_t* iq2_s;
  const uint32_t* iq3_xxs;
  const uint32_t* iq3_s;
  const uint64_t* iq1;
};
extern const Codebooks kCodebooks;

}  // namespace synod::cpu
