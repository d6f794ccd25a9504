// K-quants: 256 values, scales of 16 or 32 values under one f16 scale.
#include "base/half.h"
#include "quant/block_decoders.h"

namespace synod {
namespace {

// The 4-bit codes of Q4_K and Q5_K: calls write(g, l, nibble) for value l of the 32 values g.
template <typename Write>
void for_k_nibbles(const uint8_t (&q)[128], Write write) {
  for (int c = 0; c < 4; ++c) {
    for (int l = 0; l < 32; ++l) write(2 * c, l, q[32 * c + l] & 15);
    for (int l = 0; l < 32; ++l) write(2 * c + 1, l, q[32 * c + l] >> 4);
  }
}

struct AffineScales {
  float scale[8];  // d * scale
  float min[8];    // dmin * min
};

AffineScales affine_scales(uint16_t d_bits, uint16_t dmin_bits, const uint8_t (&packed)[12]) {
  const float d = f16_to_f32(d_bits);
  const float dmin = f16_to_f32(dmin_bits);
  AffineScales s;
  for (int g = 0; g < 8; ++g) {
    const KScaleMin codes = k_scale_min(packed, g);
    s.scale[g] = d * static_cast<float>(codes.scale);
    s.min[g] = dmin * static_cast<float>(codes.min);
  }
  return s;
}

}  // namespace

void decode_block(const BlockQ2_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 16; ++g) {  // 16 values: half of the 32 bytes of 128 values, at one shift
    const float scale = d * static_cast<float>(b.scales[g] & 15);
    const float min = dmin * static_cast<float>(b.scales[g] >> 4);
    const uint8_t* q = b.q + 32 * (g / 8) + 16 * (g % 2);
    const int shift = 2 * (g % 8 / 2);
    for (int j = 0; j < 16; ++j) out[16 * g + j] = scale * static_cast<float>(q[j] >> shift & 3) - min;
  }
}

void decode_block(const BlockQ3_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) {
    const float scale = d * static_cast<float>(q3_k_scale(b.scales, g) - 32);
    const uint8_t* q = b.q + 32 * (g / 8) + 16 * (g % 2);
    const uint8_t* high = b.hmask + 16 * (g % 2);
    const int shift = 2 * (g % 8 / 2);
    for (int j = 0; j < 16; ++j) {
      const int code = (q[j] >> shift & 3) - ((high[j] >> (g / 2) & 1) != 0 ? 0 : 4);
      out[16 * g + j] = scale * static_cast<float>(code);
    }
  }
}

void decode_block(const BlockQ4_K& b, float* out) {
  const AffineScales s = affine_scales(b.d, b.dmin, b.scales);
  for_k_nibbles(
      b.q, [&](int g, int l, int n) { out[32 * g + l] = s.scale[g] * static_cast<float>(n) - s.min[g]; });
}

void decode_block(const BlockQ5_K& b, float* out) {
  const AffineScales s = affine_scales(b.d, b.dmin, b.scales);
  for_k_nibbles(b.q, [&](int g, int l, int n) {
    const int code = n | (b.qh[l] >> g & 1) << 4;
    out[32 * g + l] = s.scale[g] * static_cast<float>(code) - s.min[g];
  });
}

void decode_block(const BlockQ6_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) {
    const float scale = d * static_cast<float>(b.scales[g]);
    const int n = g / 8;      // which 128 values
    const int t = g % 8 / 2;  // which 32 of them
    const uint8_t* low = b.ql + 64 * n + 32 * (t % 2) + 16 * (g % 2);
    const uint8_t* high = b.qh + 32 * n + 16 * (g % 2);
    for (int j = 0; j < 16; ++j) {
      const int code = (low[j] >> (4 * (t / 2)) & 15) | (high[j] >> (2 * t) & 3) << 4;
      out[16 * g + j] = scale * static_cast<float>(code - 32);
    }
  }
}

void decode_block(const BlockQ8_K& b, float* out) {
  for (int i = 0; i < BlockQ8_K::kSize; ++i) out[i] = b.d * static_cast<float>(b.q[i]);
}

}  // namespace synod
