// IQ4_NL and IQ4_XS: 16 levels at uneven distances, one scale per 32 values.
#include <array>
#include <vector>

#include "base/half.h"
#include "quant/blocks.h"
#include "quant/encode_rows.h"

namespace synod::quant {
namespace {

constexpr int kGroup = 32;

// Scales of all groups of a row. The variance in the importance weights is that of `span` values.
std::vector<float> search_scales(const Row& row, int span) {
  std::vector<float> w(static_cast<size_t>(row.n));
  if (row.importance == nullptr) {
    for (int64_t i = 0; i < row.n; ++i) w[static_cast<size_t>(i)] = row.x[i] * row.x[i];
  } else {
    for (int64_t i = 0; i < row.n; i += span) {
      const float variance = 2.0F * sum_of_squares(row.x + i, span) / static_cast<float>(span);
      importance_weights(row.x + i, row.importance + i, span, variance, w.data() + i);
    }
  }
  std::vector<float> scales(static_cast<size_t>(row.n / kGroup));
  row.search.iq4_scales({.x = row.x, .w = w.data(), .n = row.n / kGroup, .length = kGroup}, scales.data());
  return scales;
}

void code_group(const float* x, float inverse, uint8_t (&q)[16]) {
  std::array<uint8_t, kGroup> codes;
  for (size_t i = 0; i < kGroup; ++i) codes[i] = static_cast<uint8_t>(nearest_iq4(inverse * x[i]));
  for (size_t i = 0; i < 16; ++i) q[i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
}

void encode_iq4_nl(const Row& row, std::byte* out) {
  const std::vector<float> scales = search_scales(row, kGroup);
  for (int64_t g = 0; g < row.n / kGroup; ++g) {
    const float scale = scales[static_cast<size_t>(g)];
    BlockIQ4_NL b{};
    b.d = f32_to_f16(scale);
    code_group(row.x + g * kGroup, reciprocal_or_zero(scale), b.q);
    store_block(out, g, b);
  }
}

void encode_iq4_xs(const Row& row, std::byte* out) {
  const std::vector<float> scales = search_scales(row, BlockIQ4_XS::kSize);
  for (int64_t s = 0; s < row.n / BlockIQ4_XS::kSize; ++s) {
    float extreme = 0.0F;
    for (int64_t k = 0; k < 8; ++k) {
      const float scale = scales[static_cast<size_t>(8 * s + k)];
      if (std::fabs(scale) > std::fabs(extreme)) extreme = scale;
    }
    BlockIQ4_XS b{};
    const float d = -extreme / 32.0F;
    b.d = f32_to_f16(d);
    for (int k = 0; k < 8; ++k) {
      const int code =
          clip(round_to_int(reciprocal_or_zero(d) * scales[static_cast<size_t>(8 * s + k)]), -32, 31);
      code_group(row.x + s * BlockIQ4_XS::kSize + k * kGroup,
                 reciprocal_or_zero(d * static_cast<float>(code)), b.q[k]);
      b.scales_l[k / 2] |= static_cast<uint8_t>(((code + 32) & 15) << (4 * (k % 2)));
      b.scales_h = static_cast<uint16_t>(b.scales_h | (code + 32) >> 4 << (2 * k));
    }
    store_block(out, s, b);
  }
}

constexpr RowEncoder kEncoders[] = {
    {.type = DType::kIQ4_NL, .encode = encode_iq4_nl, .largest = 65504.0F * 127},
    {.type = DType::kIQ4_XS, .encode = encode_iq4_xs, .largest = 65504.0F * 32 * 127},
};

}  // namespace

std::span<const RowEncoder> iq4_encoders() { return kEncoders; }

}  // namespace synod::quant
