// One encoder per stored type, by family in encode_*.cpp, behind encode_row(). Their input is checked:
// finite, in the range of the type, a whole number of blocks, importance valid or null.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/dtype.h"
#include "quant/encode.h"
#include "quant/encode_search.h"

namespace synod::quant {

struct Row {
  const float* x;           // f32 [n]
  const float* importance;  // f32 [n] or null
  int64_t n;
  const SearchTable& search;
};

struct RowEncoder {
  DType type;
  void (*encode)(const Row& row, std::byte* out);
  // Largest magnitude the type can hold: 65504 times the largest product of codes and sub-scales.
  float largest;
  bool uses_importance = true;
  bool wants_importance = false;
};

// The encoders of each family.
std::span<const RowEncoder> simple_encoders();    // floats, Q4_0 to Q8_0, FP4, ternary
std::span<const RowEncoder> k_encoders();         // Q2_K to Q6_K
std::span<const RowEncoder> iq4_encoders();       // IQ4_NL, IQ4_XS
std::span<const RowEncoder> codebook_encoders();  // IQ1, IQ2, IQ3

// encode_row with a given table, for tests and benchmarks.
ImportanceUse encode_row_with(const SearchTable& search, DType type, std::span<const float> x,
                              std::span<const float> importance, std::byte* out, int64_t row);

template <typename Block>
void store_block(std::byte* out, int64_t index, const Block& block) {
  std::memcpy(out + index * static_cast<int64_t>(sizeof(Block)), &block, sizeof(Block));
}

inline float reciprocal_or_zero(float v) { return v != 0.0F ? 1.0F / v : 0.0F; }

inline float sum_of_squares(const float* x, int64_t n) {
  float sum = 0.0F;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// Weights of squared errors: importance grows with the size of the value, softened by the variance around it.
inline void importance_weights(const float* x, const float* importance, int64_t n, float variance, float* w) {
  for (int64_t i = 0; i < n; ++i) w[i] = importance[i] * std::sqrt(variance + x[i] * x[i]);
}

}  // namespace synod::quant
