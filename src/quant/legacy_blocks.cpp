// Types of 32 values under one scale (NVFP4: 16), and the Q8_0 quantiser.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "quant/block_decoders.h"
#include "quant/small_floats.h"

namespace synod {
namespace {

// Calls value(i, nibble i) for the 32 codes of `q`.
template <typename Value>
void for_nibbles(const uint8_t (&q)[16], float* out, Value value) {
  for (int j = 0; j < 16; ++j) {
    out[j] = value(j, q[j] & 15);
    out[j + 16] = value(j + 16, q[j] >> 4);
  }
}

uint32_t load_u32(const uint8_t (&bytes)[4]) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

}  // namespace

void decode_block(const BlockQ4_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for_nibbles(b.q, out, [&](int, int n) { return d * static_cast<float>(n - 8); });
}

void decode_block(const BlockQ4_1& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for_nibbles(b.q, out, [&](int, int n) { return static_cast<float>(n) * d + m; });
}

void decode_block(const BlockQ5_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  const uint32_t h = load_u32(b.h);
  for_nibbles(b.q, out, [&](int i, int n) {
    const int code = n | static_cast<int>(h >> i & 1U) << 4;
    return d * static_cast<float>(code - 16);
  });
}

void decode_block(const BlockQ5_1& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  const uint32_t h = load_u32(b.h);
  for_nibbles(b.q, out, [&](int i, int n) {
    const int code = n | static_cast<int>(h >> i & 1U) << 4;
    return static_cast<float>(code) * d + m;
  });
}

void decode_block(const BlockQ8_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < BlockQ8_0::kSize; ++i) out[i] = static_cast<float>(b.q[i]) * d;
}

void decode_block(const BlockQ8_1& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < BlockQ8_1::kSize; ++i) out[i] = static_cast<float>(b.q[i]) * d;
}

void decode_block(const BlockIQ4_NL& b, float* out) {
  const float d = f16_to_f32(b.d);
  for_nibbles(b.q, out, [&](int, int n) { return d * static_cast<float>(kIq4Values[n]); });
}

void decode_block(const BlockMXFP4& b, float* out) {
  const float d = e8m0_half(b.e);
  for_nibbles(b.q, out, [&](int, int n) { return d * static_cast<float>(kE2m1Doubled[n]); });
}

void decode_block(const BlockNVFP4& b, float* out) {
  for (int s = 0; s < 4; ++s) {
    const float d = nvfp4_half_scale(b.scale[s]);
    for (int j = 0; j < 8; ++j) {
      out[16 * s + j] = d * static_cast<float>(kE2m1Doubled[b.q[s][j] & 15]);
      out[16 * s + j + 8] = d * static_cast<float>(kE2m1Doubled[b.q[s][j] >> 4]);
    }
  }
}

BlockQ8_0 encode_q8_0(const float* in) {
  float largest = 0.0F;
  for (int i = 0; i < BlockQ8_0::kSize; ++i) {
    if (!std::isfinite(in[i])) fail(Error::Kind::kNumeric, "q8_0 cannot hold the value {}", in[i]);
    largest = std::max(largest, std::fabs(in[i]));
  }
  const float d = largest / 127.0F;
  BlockQ8_0 b{};
  b.d = f32_to_f16(d);
  if (b.d == 0x7c00U)
    fail(Error::Kind::kNumeric, "q8_0 cannot hold the value {}: its scale exceeds f16", largest);
  // Codes come from the unrounded scale. Where its reciprocal overflows, the f16 scale is 0 as well.
  const float inverse = d == 0.0F ? 0.0F : 1.0F / d;
  if (!std::isfinite(inverse)) return b;
  for (int i = 0; i < BlockQ8_0::kSize; ++i) {
    b.q[i] = static_cast<int8_t>(std::round(in[i] * inverse));  // halves away from zero, |q| <= 127
  }
  return b;
}

}  // namespace synod
