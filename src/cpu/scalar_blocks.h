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

// The codebook of IQ2_XXS as 2-bit codes (0, 1, 2 stand for 8, 25, 43): coordinates 0-3 and 4-7 of entry i.
struct Iq2XxsCodes {
  alignas(64) uint8_t low[256];
  alignas(64) uint8_t high[256];
};
const Iq2XxsCodes& iq2_xxs_codes();

}  // namespace synod::cpu
