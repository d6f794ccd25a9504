// Shape checks of op structs. A mismatch is a mistake of the calling code, reported with op, operand and
// tensor.
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/tensor.h"
#include "ops/cache_rows.h"
#include "quant/matrix.h"

namespace synod {

// Checks operands of one op. Dimensions given as -1 are not compared.
class Checker {
 public:
  explicit Checker(std::string_view op) : op_(op) {}

  void tensor(std::string_view operand, const Tensor& t, DType type,
              std::initializer_list<int64_t> shape) const;
  void f32(std::string_view operand, const Tensor& t, std::initializer_list<int64_t> shape) const {
    tensor(operand, t, DType::kF32, shape);
  }
  void i32(std::string_view operand, const Tensor& t, std::initializer_list<int64_t> shape) const {
    tensor(operand, t, DType::kI32, shape);
  }
  // Any rank, f32.
  void any_f32(std::string_view operand, const Tensor& t) const;
  void same_shape(std::string_view operand, const Tensor& t, const Tensor& like) const;
  void matrix(std::string_view operand, const Matrix& m, int64_t n_out, int64_t n_in) const;
  void rows(std::string_view operand, const CacheRows& rows, int64_t row_dim) const;
  // `condition` as words: "window is at least 1".
  void that(bool holds, std::string_view condition) const;

 private:
  std::string_view op_;
};

}  // namespace synod
