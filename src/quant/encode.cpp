// The checks around every encoder, and the table that finds them.
#include "quant/encode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/encode_rows.h"

namespace synod {
namespace {

constexpr size_t kMaxTypes = 64;

struct Registry {
  std::array<const quant::RowEncoder*, kMaxTypes> by_type{};

  Registry() {
    for (const auto family :
         {quant::simple_encoders(), quant::k_encoders(), quant::iq4_encoders(), quant::codebook_encoders()}) {
      for (const quant::RowEncoder& e : family) by_type[static_cast<size_t>(e.type)] = &e;
    }
  }
};

const quant::RowEncoder* encoder_of(DType type) {
  static const Registry registry;
  const auto index = static_cast<size_t>(type);
  return index < kMaxTypes ? registry.by_type[index] : nullptr;
}

// The bits of a float as an integer that orders magnitudes, NaN above infinity above all else.
int32_t magnitude_bits(float v) { return std::bit_cast<int32_t>(v) & 0x7fffffff; }

// One pass without branches, which the compiler turns into vectors; the index is wanted only for messages.
bool all_below(std::span<const float> x, float largest) {
  const int32_t limit = magnitude_bits(largest);
  int32_t above = 0;
  for (const float v : x) above |= magnitude_bits(v) > limit ? 1 : 0;
  return above == 0;
}

void check_values(DType type, std::span<const float> x, float largest, int64_t row) {
  if (all_below(x, largest)) return;
  const auto bad = std::find_if(x.begin(), x.end(), [&](float v) { return !(std::fabs(v) <= largest); });
  const int64_t column = bad - x.begin();
  if (!std::isfinite(*bad)) {
    fail(Error::Kind::kNumeric, "{}: row {}, column {}: expected a finite weight, got {}", name(type), row,
         column, *bad);
  }
  fail(Error::Kind::kNumeric, "{}: row {}, column {}: the weight {} is too large for this type (limit {})",
       name(type), row, column, *bad, largest);
}

// Index of the first float of type Bits whose exponent bits are all set, or -1.
template <typename Bits>
int64_t first_not_finite(std::span<const std::byte> bytes, uint32_t exponent) {
  SYNOD_ASSERT(bytes.size() % sizeof(Bits) == 0);
  const size_t n = bytes.size() / sizeof(Bits);
  const auto is_bad = [&](size_t i) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    return (bits & exponent) == exponent;
  };
  int any = 0;
  for (size_t i = 0; i < n; ++i) any |= is_bad(i) ? 1 : 0;
  if (any == 0) return -1;
  for (size_t i = 0; i < n; ++i) {
    if (is_bad(i)) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace

bool can_encode_row(DType type) { return encoder_of(type) != nullptr; }
bool uses_importance(DType type) { return can_encode_row(type) && encoder_of(type)->uses_importance; }
bool wants_importance(DType type) { return can_encode_row(type) && encoder_of(type)->wants_importance; }

ImportanceUse check_importance(std::span<const float> importance) {
  if (importance.empty()) return ImportanceUse::kNone;
  constexpr int32_t kInfinity = 0x7f800000;
  int32_t not_finite = 0;
  int32_t negative = 0;
  int32_t positive = 0;
  for (const float v : importance) {
    const auto bits = std::bit_cast<int32_t>(v);
    not_finite |= (bits & kInfinity) == kInfinity ? 1 : 0;
    negative |= (bits & 0x7fffffff) != 0 && bits < 0 ? 1 : 0;  // -0 is zero
    positive |= bits > 0 ? 1 : 0;
  }
  if (not_finite != 0) return ImportanceUse::kNotFinite;
  if (negative != 0) return ImportanceUse::kNegative;
  return positive != 0 ? ImportanceUse::kUsed : ImportanceUse::kAllZero;
}

namespace quant {

ImportanceUse encode_row_with(const SearchTable& search, DType type, std::span<const float> x,
                              std::span<const float> importance, std::byte* out, int64_t row) {
  const RowEncoder* encoder = encoder_of(type);
  if (encoder == nullptr) fail(Error::Kind::kUsage, "{} cannot be written", name(type));
  const auto n = static_cast<int64_t>(x.size());
  if (n % info(type).block_values != 0) {
    fail(Error::Kind::kUsage, "{}: a row of {} values is no whole number of blocks of {}", name(type), n,
         info(type).block_values);
  }
  if (!importance.empty() && importance.size() != x.size()) {
    fail(Error::Kind::kUsage, "{}: expected {} importance weights, one per column, got {}", name(type), n,
         importance.size());
  }
  check_values(type, x, encoder->largest, row);
  const ImportanceUse use = check_importance(importance);
  encoder->encode({.x = x.data(),
                   .importance = use == ImportanceUse::kUsed ? importance.data() : nullptr,
                   .n = n,
                   .search = search},
                  out);

  // The limits above are those of exact arithmetic; the searches may step over them by a rounding.
  const auto bytes = static_cast<size_t>(row_bytes(type, n));
  const int64_t bad = validate_blocks(type, {out, bytes});
  if (bad >= 0) {
    const int64_t column = bad * info(type).block_values;
    fail(Error::Kind::kNumeric,
         "{}: row {}, columns {} to {}: the weights are too large for the block's scale", name(type), row,
         column, column + info(type).block_values - 1);
  }
  return use;
}

}  // namespace quant

ImportanceUse encode_row(DType type, std::span<const float> x, std::span<const float> importance,
                         std::byte* out, int64_t row) {
  return quant::encode_row_with(*quant::available_searches().back(), type, x, importance, out, row);
}

int64_t validate_blocks(DType type, std::span<const std::byte> bytes) {
  if (type == DType::kF32) return first_not_finite<uint32_t>(bytes, 0x7f800000U);
  if (type == DType::kF16) return first_not_finite<uint16_t>(bytes, 0x7c00U);
  if (type == DType::kBF16) return first_not_finite<uint16_t>(bytes, 0x7f80U);
  SYNOD_ASSERT(is_block_type(type));
  int64_t first_bad = -1;
  valid_blocks(type, bytes, &first_bad);
  return first_bad;
}

}  // namespace synod
