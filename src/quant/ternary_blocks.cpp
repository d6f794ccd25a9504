// Types of one and two bits without codebooks.
#include "base/half.h"
#include "quant/block_decoders.h"

namespace synod {

void decode_block(const BlockTQ1_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  const auto digits = [&](const uint8_t* bytes, int n_bytes, int n_trits) {
    for (int p = 0; p < n_trits; ++p) {
      for (int j = 0; j < n_bytes; ++j) *out++ = static_cast<float>(tq1_trit(bytes[j], p) - 1) * d;
    }
  };
  digits(b.q, 32, 5);
  digits(b.q + 32, 16, 5);
  digits(b.qh, 4, 4);
}

void decode_block(const BlockTQ2_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < BlockTQ2_0::kSize; ++i) {
    const int code = b.q[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
    out[i] = static_cast<float>(code - 1) * d;
  }
}

void decode_block(const BlockQ1_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < BlockQ1_0::kSize; ++i) out[i] = (b.q[i / 8] >> (i % 8) & 1) != 0 ? d : -d;
}

void decode_block(const BlockQ2_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < BlockQ2_0::kSize; ++i) {
    out[i] = static_cast<float>((b.q[i / 4] >> (2 * (i % 4)) & 3) - 1) * d;
  }
}

}  // namespace synod
