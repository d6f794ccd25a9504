// Q2_K to Q6_K: scales of small groups by search, then scales of the scales, then codes once more against the
// scales as they are stored.
#include <algorithm>
#include <array>
#include <vector>

#include "base/half.h"
#include "quant/blocks.h"
#include "quant/encode_rows.h"

namespace synod::quant {
namespace {

constexpr int kSuper = 256;

// What the searches of one row find, group after group.
struct Found {
  std::vector<float> weights;
  std::vector<float> scales;
  std::vector<float> mins;
  std::vector<uint8_t> codes;

  Found(int64_t n, int length)
      : weights(static_cast<size_t>(n)),
        scales(static_cast<size_t>(n / length)),
        mins(static_cast<size_t>(n / length)),
        codes(static_cast<size_t>(n)) {}

  Groups groups(const Row& row, int length) const {
    return {.x = row.x, .w = weights.data(), .n = row.n / length, .length = length};
  }
};

// importance * sqrt(factor * mean square of the super-block + x^2)
void super_block_weights(const Row& row, float factor, float* w) {
  for (int64_t i = 0; i < row.n; i += kSuper) {
    const float variance = factor * sum_of_squares(row.x + i, kSuper) / static_cast<float>(kSuper);
    importance_weights(row.x + i, row.importance + i, kSuper, variance, w + i);
  }
}

void sums(const float* w, int n_groups, int length, float* out) {
  for (int g = 0; g < n_groups; ++g) {
    float sum = 0.0F;
    for (int i = 0; i < length; ++i) sum += w[g * length + i];
    out[g] = sum;
  }
}

// Codes of the values of a group against its stored scale; a scale of 0 keeps the codes of the search.
void code_again(const float* x, int n, float scale, float offset, int low, int high, uint8_t* codes) {
  if (scale == 0.0F) return;
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(clip(round_to_int((x[i] + offset) / scale), low, high) - low);
  }
}

// How Q2_K, Q4_K and Q5_K differ.
struct AffineType {
  int length;          // values per group
  int top_scale;       // largest stored scale and min
  AffineSearch plain;  // without importance
  AffineSearch weighted;
  float variance;  // factor of the super-block's mean square in the weights
};

// Stored scales (or mins) of a super-block: y[i] ~ d * codes[i].
float code_scales(const float* y, const float* group_weights, int n, int top, uint8_t* codes) {
  if (group_weights != nullptr) return search_positive(y, group_weights, n, top, codes);
  const float largest = std::max(0.0F, *std::max_element(y, y + n));
  const float inverse = largest > 0.0F ? static_cast<float>(top) / largest : 0.0F;
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(clip(round_to_int(inverse * y[i]), 0, top));
  return largest / static_cast<float>(top);
}

// A super-block whose codes are final.
struct AffineCodes {
  uint16_t d;
  uint16_t dmin;
  std::array<uint8_t, 16> scales;
  std::array<uint8_t, 16> mins;
  const uint8_t* codes;  // [256]
};

void pack(const AffineCodes& c, BlockQ2_K& b) {
  for (size_t g = 0; g < 16; ++g) b.scales[g] = static_cast<uint8_t>(c.scales[g] | c.mins[g] << 4);
  for (int i = 0; i < kSuper; ++i) {
    b.q[32 * (i / 128) + i % 32] |= static_cast<uint8_t>(c.codes[i] << (2 * (i % 128 / 32)));
  }
}

void pack_k_scales(const AffineCodes& c, uint8_t (&s)[12]) {
  for (size_t g = 0; g < 4; ++g) {
    s[g] = static_cast<uint8_t>(c.scales[g] | c.scales[g + 4] >> 4 << 6);
    s[g + 4] = static_cast<uint8_t>(c.mins[g] | c.mins[g + 4] >> 4 << 6);
    s[g + 8] = static_cast<uint8_t>((c.scales[g + 4] & 15) | (c.mins[g + 4] & 15) << 4);
  }
}

void pack(const AffineCodes& c, BlockQ4_K& b) {
  pack_k_scales(c, b.scales);
  for (int n = 0; n < 4; ++n) {
    for (int i = 0; i < 32; ++i) {
      b.q[32 * n + i] = static_cast<uint8_t>(c.codes[64 * n + i] | c.codes[64 * n + 32 + i] << 4);
    }
  }
}

void pack(const AffineCodes& c, BlockQ5_K& b) {
  pack_k_scales(c, b.scales);
  for (int n = 0; n < 4; ++n) {
    for (int i = 0; i < 32; ++i) {
      const int low = c.codes[64 * n + i];
      const int high = c.codes[64 * n + 32 + i];
      b.q[32 * n + i] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
      b.qh[i] |= static_cast<uint8_t>((low >> 4) << (2 * n) | (high >> 4) << (2 * n + 1));
    }
  }
}

void affine_weights(const Row& row, const AffineType& type, float* w) {
  if (row.importance != nullptr) {
    super_block_weights(row, type.variance, w);
    return;
  }
  for (int64_t i = 0; i < row.n; i += type.length) {
    const float* x = row.x + i;
    float spread = 0.0F;
    if (!type.plain.absolute_error) {
      spread = std::sqrt(sum_of_squares(x, type.length) / static_cast<float>(type.length));
    }
    for (int j = 0; j < type.length; ++j) w[i + j] = spread + std::fabs(x[j]);
  }
}

template <typename Block>
void encode_affine(const Row& row, const AffineType& type, std::byte* out) {
  Found found(row.n, type.length);
  affine_weights(row, type, found.weights.data());
  row.search.affine(found.groups(row, type.length), row.importance != nullptr ? type.weighted : type.plain,
                    found.scales.data(), found.mins.data(), found.codes.data());

  const int n_groups = kSuper / type.length;
  for (int64_t s = 0; s < row.n / kSuper; ++s) {
    std::array<float, 16> group_weights;
    const float* g = nullptr;
    if (row.importance != nullptr) {
      sums(found.weights.data() + s * kSuper, n_groups, type.length, group_weights.data());
      g = group_weights.data();
    }
    AffineCodes c{};
    c.d = f32_to_f16(
        code_scales(found.scales.data() + s * n_groups, g, n_groups, type.top_scale, c.scales.data()));
    c.dmin =
        f32_to_f16(code_scales(found.mins.data() + s * n_groups, g, n_groups, type.top_scale, c.mins.data()));
    uint8_t* codes = found.codes.data() + s * kSuper;
    for (int i = 0; i < n_groups; ++i) {
      const auto index = static_cast<size_t>(i);
      code_again(row.x + s * kSuper + i * type.length, type.length,
                 f16_to_f32(c.d) * static_cast<float>(c.scales[index]),
                 f16_to_f32(c.dmin) * static_cast<float>(c.mins[index]), 0, type.plain.top,
                 codes + i * type.length);
    }
    c.codes = codes;
    Block b{};
    b.d = c.d;
    b.dmin = c.dmin;
    pack(c, b);
    store_block(out, s, b);
  }
}

constexpr AffineSearch with_importance(int top) {
  return {.top = top, .first = -0.9F, .step = 0.05F, .n_steps = 37, .absolute_error = false};
}

void encode_q2_k(const Row& row, std::byte* out) {
  constexpr AffineType kType = {.length = 16,
                                .top_scale = 15,
                                .plain = {3, -0.5F, 0.1F, 16, /*absolute_error=*/true},
                                .weighted = with_importance(3),
                                .variance = 1.0F};
  encode_affine<BlockQ2_K>(row, kType, out);
}

void encode_q4_k(const Row& row, std::byte* out) {
  constexpr AffineType kType = {.length = 32,
                                .top_scale = 63,
                                .plain = {15, -1.0F, 0.1F, 21, /*absolute_error=*/false},
                                .weighted = with_importance(15),
                                .variance = 2.0F};
  encode_affine<BlockQ4_K>(row, kType, out);
}

void encode_q5_k(const Row& row, std::byte* out) {
  constexpr AffineType kType = {.length = 32,
                                .top_scale = 63,
                                .plain = {31, -0.5F, 0.1F, 16, /*absolute_error=*/false},
                                .weighted = with_importance(31),
                                .variance = 2.0F};
  encode_affine<BlockQ5_K>(row, kType, out);
}

// Scale of largest magnitude with its sign, the first of equals.
float extreme_scale(const float* scales) {
  float result = 0.0F;
  for (int g = 0; g < 16; ++g) {
    if (std::fabs(scales[g]) > std::fabs(result)) result = scales[g];
  }
  return result;
}

// Stored scales of Q3_K: scale ~ d * (codes - 32).
float code_q3_k_scales(const Row& row, const float* scales, const float* weights, uint8_t* codes) {
  if (row.importance != nullptr) {
    std::array<float, 16> group_weights;
    sums(weights, 16, 16, group_weights.data());
    float d = 0.0F;
    kPlainSearch.symmetric({.x = scales, .w = group_weights.data(), .n = 1, .length = 16}, 32, &d, codes);
    return d;
  }
  const float extreme = extreme_scale(scales);
  std::fill(codes, codes + 16, uint8_t{0});
  if (extreme == 0.0F) return 0.0F;
  const float inverse = -32.0F / extreme;
  for (int g = 0; g < 16; ++g) {
    codes[g] = static_cast<uint8_t>(clip(round_to_int(inverse * scales[g]), -32, 31) + 32);
  }
  return 1.0F / inverse;
}

void pack(const uint8_t* codes, const uint8_t* scales, BlockQ3_K& b) {
  for (int i = 0; i < kSuper; ++i) {
    b.hmask[i % 32] |= static_cast<uint8_t>((codes[i] >> 2) << (i / 32));
    b.q[32 * (i / 128) + i % 32] |= static_cast<uint8_t>((codes[i] & 3) << (2 * (i % 128 / 32)));
  }
  for (int g = 0; g < 16; ++g) {
    b.scales[g % 8] |= static_cast<uint8_t>((scales[g] & 15) << (4 * (g / 8)));
    b.scales[8 + g % 4] |= static_cast<uint8_t>((scales[g] >> 4) << (2 * (g / 4)));
  }
}

void encode_q3_k(const Row& row, std::byte* out) {
  Found found(row.n, 16);
  if (row.importance != nullptr) {
    super_block_weights(row, 2.0F, found.weights.data());
    row.search.symmetric(found.groups(row, 16), 4, found.scales.data(), found.codes.data());
  } else {
    row.search.refined(found.groups(row, 16), 4, found.scales.data(), found.codes.data());
  }
  for (int64_t s = 0; s < row.n / kSuper; ++s) {
    std::array<uint8_t, 16> scales;
    BlockQ3_K b{};
    b.d = f32_to_f16(code_q3_k_scales(row, found.scales.data() + s * 16, found.weights.data() + s * kSuper,
                                      scales.data()));
    uint8_t* codes = found.codes.data() + s * kSuper;
    for (int g = 0; g < 16; ++g) {
      const float d = f16_to_f32(b.d) * static_cast<float>(scales[static_cast<size_t>(g)] - 32);
      code_again(row.x + s * kSuper + g * 16, 16, d, 0.0F, -4, 3, codes + g * 16);
    }
    pack(codes, scales.data(), b);
    store_block(out, s, b);
  }
}

void pack(const uint8_t* codes, BlockQ6_K& b) {
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 32; ++i) {
      const uint8_t* q = codes + 128 * n + i;
      b.ql[64 * n + i] = static_cast<uint8_t>((q[0] & 15) | (q[64] & 15) << 4);
      b.ql[64 * n + 32 + i] = static_cast<uint8_t>((q[32] & 15) | (q[96] & 15) << 4);
      b.qh[32 * n + i] =
          static_cast<uint8_t>(q[0] >> 4 | q[32] >> 4 << 2 | q[64] >> 4 << 4 | q[96] >> 4 << 6);
    }
  }
}

void encode_q6_k(const Row& row, std::byte* out) {
  Found found(row.n, 16);
  for (int64_t i = 0; i < row.n; ++i) {
    found.weights[static_cast<size_t>(i)] =
        row.importance != nullptr ? row.importance[i] : row.x[i] * row.x[i];
  }
  row.search.symmetric(found.groups(row, 16), 32, found.scales.data(), found.codes.data());
  for (int64_t s = 0; s < row.n / kSuper; ++s) {
    BlockQ6_K b{};
    const float* scales = found.scales.data() + s * 16;
    const float extreme = extreme_scale(scales);
    if (std::fabs(extreme) >= kZeroGroup) {  // else the block is all zero bytes
      const float inverse = -128.0F / extreme;
      b.d = f32_to_f16(1.0F / inverse);
      uint8_t* codes = found.codes.data() + s * kSuper;
      for (int g = 0; g < 16; ++g) {
        b.scales[g] = static_cast<int8_t>(clip(round_to_int(inverse * scales[g]), -128, 127));
        const float d = f16_to_f32(b.d) * static_cast<float>(b.scales[g]);
        code_again(row.x + s * kSuper + g * 16, 16, d, 0.0F, -32, 31, codes + g * 16);
      }
      pack(codes, b);
    }
    store_block(out, s, b);
  }
}

constexpr float kF16 = 65504.0F;
constexpr RowEncoder kEncoders[] = {
    {.type = DType::kQ2_K, .encode = encode_q2_k, .largest = kF16 * 15 * 3},
    {.type = DType::kQ3_K, .encode = encode_q3_k, .largest = kF16 * 32 * 4},
    {.type = DType::kQ4_K, .encode = encode_q4_k, .largest = kF16 * 63 * 15},
    {.type = DType::kQ5_K, .encode = encode_q5_k, .largest = kF16 * 63 * 31},
    {.type = DType::kQ6_K, .encode = encode_q6_k, .largest = kF16 * 128 * 32},
};

}  // namespace

std::span<const RowEncoder> k_encoders() { return kEncoders; }

}  // namespace synod::quant
