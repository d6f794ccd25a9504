// Codebook types: 256 values; groups of 8 (or 4) are table entries with signs or a shift.
// k is the 32 values, l the 8 values inside them, j the value inside those.
#include <cstring>

#include "base/half.h"
#include "quant/block_decoders.h"
#include "quant/iq_tables.h"

namespace synod {
namespace {

uint32_t load_u32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Sign bits of 8 values from the 7 stored ones: the number of minus signs is even.
uint32_t signs_of(uint32_t seven_bits) {
  uint32_t parity = seven_bits ^ seven_bits >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven_bits | (parity & 1U) << 7;
}

// out[j] = scale * coordinate j * (bit j of signs ? -1 : 1)
void write_signed(float scale, uint64_t entry, uint32_t signs, float* out) {
  for (int j = 0; j < 8; ++j) {
    const float value = scale * static_cast<float>(entry >> (8 * j) & 0xffU);
    out[j] = (signs >> j & 1U) != 0 ? -value : value;
  }
}

// Two entries of 4 coordinates side by side.
uint64_t join(uint32_t first, uint32_t second) { return static_cast<uint64_t>(second) << 32 | first; }

// out[j] = scale * (coordinate j + delta), coordinates -1, 0, 1
void write_shifted(float scale, uint64_t entry, float delta, float* out) {
  for (int j = 0; j < 8; ++j) {
    const auto coordinate = static_cast<int8_t>(entry >> (8 * j));
    out[j] = scale * (static_cast<float>(coordinate) + delta);
  }
}

constexpr float kIq1Delta = 0.125F;

// d * (0.5 + code) * 0.25, in this order
float iq2_scale(float d, uint32_t code) { return d * (0.5F + static_cast<float>(code)) * 0.25F; }

}  // namespace

void decode_block(const BlockIQ4_XS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 8; ++k) {
    const float scale = d * static_cast<float>(iq4_xs_scale(b, k) - 32);
    for (int j = 0; j < 16; ++j) {
      out[32 * k + j] = scale * static_cast<float>(kIq4Values[b.q[k][j] & 15]);
      out[32 * k + j + 16] = scale * static_cast<float>(kIq4Values[b.q[k][j] >> 4]);
    }
  }
}

void decode_block(const BlockIQ2_XXS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 8; ++k) {
    const uint32_t w = load_u32(b.q[k] + 4);
    const float scale = iq2_scale(d, w >> 28);
    for (int l = 0; l < 4; ++l) {
      write_signed(scale, kIq2XxsGrid[b.q[k][l]], signs_of(w >> (7 * l) & 127U), out + 32 * k + 8 * l);
    }
  }
}

void decode_block(const BlockIQ2_XS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 32; ++g) {  // 8 values each
    const float scale = iq2_scale(d, b.scales[g / 4] >> (g % 4 < 2 ? 0 : 4) & 15U);
    write_signed(scale, kIq2XsGrid[b.q[g] & 511U], signs_of(b.q[g] >> 9), out + 8 * g);
  }
}

void decode_block(const BlockIQ2_S& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 32; ++g) {
    const int k = g / 4;
    const int l = g % 4;
    const float scale = iq2_scale(d, b.scales[k] >> (l < 2 ? 0 : 4) & 15U);
    const uint32_t index = b.q[g] | (b.qh[k] >> (2 * l) & 3U) << 8;
    write_signed(scale, kIq2SGrid[index], b.signs[g], out + 8 * g);
  }
}

void decode_block(const BlockIQ3_XXS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 8; ++k) {
    const uint32_t w = load_u32(b.w[k]);
    const float scale = d * (0.5F + static_cast<float>(w >> 28)) * 0.5F;
    for (int l = 0; l < 4; ++l) {
      const uint8_t* q = b.q + 8 * k + 2 * l;
      write_signed(scale, join(kIq3XxsGrid[q[0]], kIq3XxsGrid[q[1]]), signs_of(w >> (7 * l) & 127U),
                   out + 32 * k + 8 * l);
    }
  }
}

void decode_block(const BlockIQ3_S& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 32; ++g) {
    const int k = g / 4;
    const int l = g % 4;
    const int code = b.scales[k / 2] >> (4 * (k % 2)) & 15;
    const float scale = d * static_cast<float>(1 + 2 * code);
    const uint8_t* q = b.q + 2 * g;
    const uint32_t first = q[0] | (b.qh[k] >> (2 * l) & 1U) << 8;
    const uint32_t second = q[1] | (b.qh[k] >> (2 * l + 1) & 1U) << 8;
    write_signed(scale, join(kIq3SGrid[first], kIq3SGrid[second]), b.signs[g], out + 8 * g);
  }
}

void decode_block(const BlockIQ1_S& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 8; ++k) {
    const uint32_t h = b.qh[k];
    const float scale = d * static_cast<float>(2 * (h >> 12 & 7U) + 1);
    const float delta = (h >> 15) != 0 ? -kIq1Delta : kIq1Delta;
    for (int l = 0; l < 4; ++l) {
      const uint32_t index = b.q[4 * k + l] | (h >> (3 * l) & 7U) << 8;
      write_shifted(scale, kIq1Grid[index], delta, out + 32 * k + 8 * l);
    }
  }
}

void decode_block(const BlockIQ1_M& b, float* out) {
  const float d = f16_to_f32(iq1_m_d(b.scales));
  for (int g = 0; g < 32; ++g) {
    const int k = g / 4;
    const int l = g % 4;
    const uint32_t y = b.qh[g / 2] >> (4 * (g % 2)) & 15U;
    const int code = b.scales[k / 2] >> (6 * (k % 2) + 3 * (l / 2)) & 7;
    const float scale = d * static_cast<float>(2 * code + 1);
    const uint32_t index = b.q[g] | (y & 7U) << 8;
    write_shifted(scale, kIq1Grid[index], (y & 8U) != 0 ? -kIq1Delta : kIq1Delta, out + 8 * g);
  }
}

}  // namespace synod
