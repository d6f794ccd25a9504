// Products of f32 rows with rows of a stored matrix: the one loop behind every matrix op of the reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "quant/matrix.h"
#include "ref/lanes.h"

namespace synod::ref {

// Rows of `x`, outer dimensions flattened, as doubles: converted once instead of once per output.
class WideRows {
 public:
  explicit WideRows(const Tensor& x) : width_(x.inner()), values_(static_cast<size_t>(x.size())) {
    for (int64_t r = 0; r < x.rows(); ++r) std::copy_n(x.row_as<const float>(r), width_, row(r));
  }
  // The same values as rows of `width`, for an input whose last two dimensions are one vector.
  WideRows(const Tensor& x, int64_t width) : WideRows(x) { width_ = width; }

  int64_t width() const { return width_; }
  double* row(int64_t r) { return values_.data() + r * width_; }
  const double* row(int64_t r) const { return values_.data() + r * width_; }

 private:
  int64_t width_;
  std::vector<double> values_;
};

// Calls sink(i, output, sum) for every input i and every output row of `weight`. Each weight row is decoded
// once.
template <typename Sink>
void multiply(const Matrix& weight, std::span<const double* const> inputs, Sink&& sink) {
  constexpr int64_t kBlock = 8;  // weight rows that stay in cache while the inputs pass by
  std::vector<float> decoded(static_cast<size_t>(weight.n_in));
  std::vector<double> rows(static_cast<size_t>(kBlock * weight.n_in));
  for (int64_t first = 0; first < weight.n_out; first += kBlock) {
    const int64_t n = std::min(kBlock, weight.n_out - first);
    for (int64_t r = 0; r < n; ++r) {
      decode_row(weight, first + r, decoded.data());
      std::copy(decoded.begin(), decoded.end(), rows.data() + r * weight.n_in);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (int64_t r = 0; r < n; ++r) {
        sink(i, first + r, dot(inputs[i], rows.data() + r * weight.n_in, weight.n_in));
      }
    }
  }
}

}  // namespace synod::ref
