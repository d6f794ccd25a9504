// RoundTrip.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/half.h"
#include "quant/codec.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

// 2^ceil(log2(a * inverse_max)) from the bits of the f32 product: exact at powers of two, where a rounded
// logarithm is not. The product is normal and positive: `a` has a floor.
float power_of_two_scale(float a, float inverse_max) {
  const auto bits = std::bit_cast<uint32_t>(a * inverse_max);
  const int exponent = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  return std::ldexp(1.0F, exponent);
}

// Nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code. |v| <= 6 by the choice of the scale.
float to_e2m1(float v) {
  const float m = std::fabs(v);
  if (std::isnan(v)) return v;
  float rounded = 6.0F;
  if (m <= 0.25F) {
    rounded = 0.0F;
  } else if (m < 0.75F) {
    rounded = 0.5F;
  } else if (m <= 1.25F) {
    rounded = 1.0F;
  } else if (m < 1.75F) {
    rounded = 1.5F;
  } else if (m <= 2.5F) {
    rounded = 2.0F;
  } else if (m < 3.5F) {
    rounded = 3.0F;
  } else if (m <= 5.0F) {
    rounded = 4.0F;
  }
  return std::copysign(rounded, v);
}

float to_e4m3(float v) {
  if (std::isnan(v)) return v;
  return e4m3_to_f32(f32_to_e4m3(std::clamp(v, -448.0F, 448.0F)));
}

void round_block(RoundTrip::Grid grid, const float* x, int64_t n, float* out) {
  const bool fp8 = grid == RoundTrip::Grid::kFp8;
  float a = fp8 ? 1e-4F : 6.0F * 0x1p-126F;
  for (int64_t i = 0; i < n; ++i) a = std::max(a, std::fabs(x[i]));
  const float scale = power_of_two_scale(a, fp8 ? 1.0F / 448.0F : 1.0F / 6.0F);
  for (int64_t i = 0; i < n; ++i) {
    const float code = fp8 ? to_e4m3(x[i] / scale) : to_e2m1(x[i] / scale);
    out[i] = bf16_to_f32(f32_to_bf16(code * scale));
  }
}

}  // namespace

void RefBackend::run(const RoundTrip& op) {
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    const float* x = op.x.row_as<const float>(r);
    float* out = op.out.row_as<float>(r);
    for (int64_t i = 0; i < op.count; i += op.block) {
      round_block(op.grid, x + i, std::min(op.block, op.count - i), out + i);
    }
    if (out != x) std::copy(x + op.count, x + op.x.inner(), out + op.count);
  }
}

}  // namespace synod
