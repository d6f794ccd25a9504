// Types and rows for the tests of the row encoders.
#pragma once

#include <array>
#include <iterator>
#include <random>
#include <vector>

#include "quant/encode.h"
#include "quant/encode_rows.h"
#include "quant/quant_test_data.h"

namespace synod::quant_test {

// Types whose bytes equal the recorded ones.
inline constexpr DType kExactTypes[] = {
    DType::kF16,    DType::kBF16,   DType::kQ4_0,  DType::kQ4_1,  DType::kQ5_0,  DType::kQ5_1,
    DType::kQ8_0,   DType::kQ2_K,   DType::kQ3_K,  DType::kQ4_K,  DType::kQ5_K,  DType::kQ6_K,
    DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kNVFP4, DType::kTQ1_0, DType::kTQ2_0};
inline constexpr DType kCodebookTypes[] = {DType::kIQ1_S, DType::kIQ1_M,   DType::kIQ2_XXS, DType::kIQ2_XS,
                                           DType::kIQ2_S, DType::kIQ3_XXS, DType::kIQ3_S};
inline constexpr auto kAllTypes = [] {
  std::array<DType, std::size(kExactTypes) + std::size(kCodebookTypes)> all{};
  size_t n = 0;
  for (const DType type : kExactTypes) all[n++] = type;
  for (const DType type : kCodebookTypes) all[n++] = type;
  return all;
}();

inline std::vector<float> normal_row(size_t n, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

inline Bytes encoded_row(DType type, const std::vector<float>& x, const std::vector<float>& importance,
                         const quant::SearchTable& search = *quant::available_searches().back()) {
  Bytes out(static_cast<size_t>(row_bytes(type, static_cast<int64_t>(x.size()))));
  quant::encode_row_with(search, type, x, importance, out.data(), 0);
  return out;
}

}  // namespace synod::quant_test
