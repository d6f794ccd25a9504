// The types without a scale of scales: plain floats, Q4_0 to Q8_0, the FP4 formats, ternary.
#include <algorithm>
#include <array>
#include <vector>

#include "base/half.h"
#include "quant/block_decoders.h"
#include "quant/blocks.h"
#include "quant/encode_rows.h"
#include "quant/small_floats.h"

namespace synod::quant {
namespace {

float largest_magnitude(const float* x, int n) {
  float largest = 0.0F;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

void encode_f32(const Row& row, std::byte* out) {
  std::memcpy(out, row.x, static_cast<size_t>(row.n) * sizeof(float));
}
void encode_f16(const Row& row, std::byte* out) {
  for (int64_t i = 0; i < row.n; ++i) store_block(out, i, f32_to_f16(row.x[i]));
}
void encode_bf16(const Row& row, std::byte* out) {
  for (int64_t i = 0; i < row.n; ++i) store_block(out, i, f32_to_bf16(row.x[i]));
}
void encode_q8_0_row(const Row& row, std::byte* out) {
  for (int64_t i = 0; i < row.n / BlockQ8_0::kSize; ++i) {
    store_block(out, i, encode_q8_0(row.x + i * BlockQ8_0::kSize));
  }
}

// Codes of 32 values. Q4 has room for four bits, Q5 keeps the fifth apart.
using Codes = std::array<uint8_t, 32>;

template <typename Block>
void pack(const uint8_t* codes, Block& b) {
  for (int i = 0; i < 16; ++i) b.q[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
  if constexpr (requires { b.h; }) {
    for (int i = 0; i < 32; ++i) b.h[i / 8] |= static_cast<uint8_t>((codes[i] >> 4) << (i % 8));
  }
}

// Weights by importance and the mean square of the whole row.
std::vector<float> row_weights(const Row& row) {
  std::vector<float> w(static_cast<size_t>(row.n));
  const float variance = sum_of_squares(row.x, row.n) / static_cast<float>(row.n);
  importance_weights(row.x, row.importance, row.n, variance, w.data());
  return w;
}

// floor(v + half) in 0 to top. Where the reciprocal of a tiny scale overflowed, the code is 0.
uint8_t round_up(float v, float half, int top) {
  const float shifted = v + half;
  if (!(shifted > 0.0F && shifted < 256.0F)) return 0;
  return static_cast<uint8_t>(std::min(top, static_cast<int>(shifted)));
}

// Q4_0 (kTop 8) and Q5_0 (kTop 16): x ~ d * (code - top), the extreme value at code 0.
template <typename Block, int kTop>
void encode_symmetric(const Row& row, std::byte* out) {
  const int64_t n_blocks = row.n / 32;
  if (row.importance != nullptr) {
    const std::vector<float> w = row_weights(row);
    std::vector<float> scales(static_cast<size_t>(n_blocks));
    std::vector<uint8_t> codes(static_cast<size_t>(row.n));
    row.search.symmetric({.x = row.x, .w = w.data(), .n = n_blocks, .length = 32}, kTop, scales.data(),
                         codes.data());
    for (int64_t i = 0; i < n_blocks; ++i) {
      Block b{};
      b.d = f32_to_f16(scales[static_cast<size_t>(i)]);
      pack(codes.data() + 32 * i, b);
      store_block(out, i, b);
    }
    return;
  }
  for (int64_t i = 0; i < n_blocks; ++i) {
    const float* x = row.x + 32 * i;
    float extreme = 0.0F;
    for (int j = 0; j < 32; ++j) {
      if (std::fabs(x[j]) > std::fabs(extreme)) extreme = x[j];
    }
    const float d = extreme / static_cast<float>(-kTop);
    const float inverse = reciprocal_or_zero(d);
    Codes codes;
    for (size_t j = 0; j < 32; ++j) {
      codes[j] = round_up(x[j] * inverse, static_cast<float>(kTop) + 0.5F, 2 * kTop - 1);
    }
    Block b{};
    b.d = f32_to_f16(d);
    pack(codes.data(), b);
    store_block(out, i, b);
  }
}

// Q4_1 and Q5_1: x ~ code * d + m.
template <typename Block, int kTop>
void encode_affine(const Row& row, std::byte* out) {
  const int64_t n_blocks = row.n / 32;
  if (row.importance != nullptr) {
    const std::vector<float> w = row_weights(row);
    std::vector<float> scales(static_cast<size_t>(n_blocks));
    std::vector<float> mins(static_cast<size_t>(n_blocks));
    std::vector<uint8_t> codes(static_cast<size_t>(row.n));
    constexpr AffineSearch kSearch = {kTop, -0.9F, 0.05F, 37, /*absolute_error=*/false};
    row.search.affine({.x = row.x, .w = w.data(), .n = n_blocks, .length = 32}, kSearch, scales.data(),
                      mins.data(), codes.data());
    for (int64_t i = 0; i < n_blocks; ++i) {
      Block b{};
      b.d = f32_to_f16(scales[static_cast<size_t>(i)]);
      b.m = f32_to_f16(-mins[static_cast<size_t>(i)]);
      pack(codes.data() + 32 * i, b);
      store_block(out, i, b);
    }
    return;
  }
  for (int64_t i = 0; i < n_blocks; ++i) {
    const float* x = row.x + 32 * i;
    float low = x[0];
    float high = x[0];
    for (int j = 1; j < 32; ++j) {
      low = std::min(low, x[j]);
      high = std::max(high, x[j]);
    }
    const float d = (high - low) / static_cast<float>(kTop);
    const float inverse = reciprocal_or_zero(d);
    Codes codes;
    for (size_t j = 0; j < 32; ++j) codes[j] = round_up((x[j] - low) * inverse, 0.5F, kTop);
    Block b{};
    b.d = f32_to_f16(d);
    b.m = f32_to_f16(low);
    pack(codes.data(), b);
    store_block(out, i, b);
  }
}

// E2M1 code of x at a scale whose half is `half_scale`: the nearest of half_scale * kE2m1Doubled, the lower
// magnitude on ties. Zero keeps code 0 for both signs.
uint8_t nearest_e2m1(float x, float half_scale) {
  constexpr float kMidpoints[7] = {0.5F, 1.5F, 2.5F, 3.5F, 5.0F, 7.0F, 10.0F};
  if (half_scale == 0.0F) return 0;  // all codes are equally far
  int code = 0;
  for (const float middle : kMidpoints) code += std::fabs(x) > middle * half_scale ? 1 : 0;
  return static_cast<uint8_t>(code | (x < 0.0F && code != 0 ? 8 : 0));
}

void encode_mxfp4(const Row& row, std::byte* out) {
  for (int64_t i = 0; i < row.n / BlockMXFP4::kSize; ++i) {
    const float* x = row.x + i * BlockMXFP4::kSize;
    const float largest = largest_magnitude(x, BlockMXFP4::kSize);
    BlockMXFP4 b{};
    if (largest > 0.0F) {
      // The largest value lands in [4, 8) times the scale, the topmost code of E2M1 is 6.
      b.e = static_cast<uint8_t>(clip(static_cast<int>(std::floor(std::log2(largest))) - 2 + 127, 0, 254));
    }
    Codes codes;
    for (size_t j = 0; j < 32; ++j) codes[j] = nearest_e2m1(x[j], e8m0_half(b.e));
    pack(codes.data(), b);
    store_block(out, i, b);
  }
}

// Unsigned E4M3 scale nearest to v >= 0, halves up. Values below the normal range do not round up into it.
uint8_t nvfp4_scale(float v) {
  if (v > 448.0F) v = 448.0F;
  if (v < 0x1p-6F) return static_cast<uint8_t>(std::min(7, static_cast<int>(512.0F * v + 0.5F)));
  // Rounds the 23-bit mantissa to 3 bits; a carry moves into the exponent by itself.
  const uint32_t rounded = (std::bit_cast<uint32_t>(v) + (1U << 19)) >> 20;
  const uint32_t code = rounded - (120U << 3);  // exponent bias 127 to 7
  return static_cast<uint8_t>(code >= 15U << 3 ? 0x7e : code);
}

void encode_nvfp4(const Row& row, std::byte* out) {
  for (int64_t i = 0; i < row.n / BlockNVFP4::kSize; ++i) {
    BlockNVFP4 b{};
    for (int s = 0; s < 4; ++s) {
      const float* x = row.x + i * BlockNVFP4::kSize + 16 * s;
      b.scale[s] = nvfp4_scale(largest_magnitude(x, 16) / 6.0F);
      const float half_scale = nvfp4_half_scale(b.scale[s]);
      for (int j = 0; j < 8; ++j) {
        b.q[s][j] =
            static_cast<uint8_t>(nearest_e2m1(x[j], half_scale) | nearest_e2m1(x[j + 8], half_scale) << 4);
      }
    }
    store_block(out, i, b);
  }
}

// Trits 0 to 2 of 256 values, and the scale.
struct Trits {
  uint16_t d;
  std::array<uint8_t, 256> t;
};

Trits ternary(const float* x) {
  Trits result;
  const float d = largest_magnitude(x, 256);
  result.d = f32_to_f16(d);
  const float inverse = reciprocal_or_zero(d);
  // An infinite reciprocal belongs to values whose f16 scale is 0.
  for (size_t i = 0; i < 256; ++i) {
    result.t[i] = std::isfinite(inverse) ? static_cast<uint8_t>(std::lround(x[i] * inverse) + 1) : uint8_t{1};
  }
  return result;
}

void encode_tq1_0(const Row& row, std::byte* out) {
  for (int64_t i = 0; i < row.n / 256; ++i) {
    const Trits trits = ternary(row.x + i * 256);
    BlockTQ1_0 b{};
    b.d = trits.d;
    const uint8_t* next = trits.t.data();
    // Trit p of byte j is value p * n_bytes + j of the run. A byte is the fraction v / 243 of 256, rounded
    // up.
    const auto pack_run = [&next](uint8_t* bytes, int n_bytes, int n_trits) {
      for (int j = 0; j < n_bytes; ++j) {
        int v = 0;
        for (int p = 0; p < 5; ++p) v = 3 * v + (p < n_trits ? next[p * n_bytes + j] : 0);
        bytes[j] = static_cast<uint8_t>((v * 256 + 242) / 243);
      }
      next += n_bytes * n_trits;
    };
    pack_run(b.q, 32, 5);
    pack_run(b.q + 32, 16, 5);
    pack_run(b.qh, 4, 4);
    store_block(out, i, b);
  }
}

void encode_tq2_0(const Row& row, std::byte* out) {
  for (int64_t i = 0; i < row.n / 256; ++i) {
    const Trits trits = ternary(row.x + i * 256);
    BlockTQ2_0 b{};
    b.d = trits.d;
    for (size_t j = 0; j < 256; ++j) {
      b.q[32 * (j / 128) + j % 32] |= static_cast<uint8_t>(trits.t[j] << (2 * (j % 128 / 32)));
    }
    store_block(out, i, b);
  }
}

constexpr float kF16 = 65504.0F;
constexpr float kF32 = 3.4028234e38F;
constexpr RowEncoder kEncoders[] = {
    {.type = DType::kF32, .encode = encode_f32, .largest = kF32, .uses_importance = false},
    {.type = DType::kF16, .encode = encode_f16, .largest = 65519.996F, .uses_importance = false},
    {.type = DType::kBF16, .encode = encode_bf16, .largest = 3.3961e38F, .uses_importance = false},
    {.type = DType::kQ4_0, .encode = encode_symmetric<BlockQ4_0, 8>, .largest = kF16 * 8},
    {.type = DType::kQ4_1, .encode = encode_affine<BlockQ4_1, 15>, .largest = kF16},
    {.type = DType::kQ5_0, .encode = encode_symmetric<BlockQ5_0, 16>, .largest = kF16 * 16},
    {.type = DType::kQ5_1, .encode = encode_affine<BlockQ5_1, 31>, .largest = kF16},
    {.type = DType::kQ8_0, .encode = encode_q8_0_row, .largest = kF16 * 127, .uses_importance = false},
    {.type = DType::kMXFP4, .encode = encode_mxfp4, .largest = kF32, .uses_importance = false},
    {.type = DType::kNVFP4, .encode = encode_nvfp4, .largest = kF32, .uses_importance = false},
    {.type = DType::kTQ1_0, .encode = encode_tq1_0, .largest = kF16, .uses_importance = false},
    {.type = DType::kTQ2_0, .encode = encode_tq2_0, .largest = kF16, .uses_importance = false},
};

}  // namespace

std::span<const RowEncoder> simple_encoders() { return kEncoders; }

}  // namespace synod::quant
