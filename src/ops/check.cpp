#include "ops/check.h"

#include <array>
#include <string>

namespace synod {
namespace {

// "[3, any]": -1 stands for a dimension that is not compared.
std::string expected_shape(std::initializer_list<int64_t> shape) {
  std::string s;
  for (const int64_t n : shape)
    s += (s.empty() ? "" : ", ") + (n < 0 ? std::string("any") : std::to_string(n));
  return "[" + s + "]";
}

std::string got(const Tensor& t) {
  return t ? fmt::format("{} {}", name(t.type), shape_string(t)) : std::string("no tensor");
}

// "x (hidden)": the operand, and the tensor bound to it when it has a name.
std::string operand_text(std::string_view operand, std::string_view tensor) {
  return tensor.empty() ? std::string(operand) : fmt::format("{} ({})", operand, tensor);
}

}  // namespace

void Checker::tensor(std::string_view operand, const Tensor& t, DType type,
                     std::initializer_list<int64_t> shape) const {
  bool same = t.type == type && t.rank == static_cast<int>(shape.size());
  for (size_t i = 0; same && i < shape.size(); ++i) {
    same = shape.begin()[i] < 0 || t.shape[i] == shape.begin()[i];
  }
  if (same) return;
  fail(Error::Kind::kFailure, "{}: {}: expected {} {}, got {}", op_, operand_text(operand, t.name),
       name(type), expected_shape(shape), got(t));
}

void Checker::any_f32(std::string_view operand, const Tensor& t) const {
  if (t.rank > 0 && t.type == DType::kF32) return;
  fail(Error::Kind::kFailure, "{}: {}: expected f32, got {}", op_, operand_text(operand, t.name), got(t));
}

void Checker::same_shape(std::string_view operand, const Tensor& t, const Tensor& like) const {
  bool same = t.type == DType::kF32 && t.rank == like.rank;
  for (int i = 0; same && i < t.rank; ++i) same = t.dim(i) == like.dim(i);
  if (same) return;
  fail(Error::Kind::kFailure, "{}: {}: expected f32 {}, got {}", op_, operand_text(operand, t.name),
       shape_string(like), got(t));
}

void Checker::matrix(std::string_view operand, const Matrix& m, int64_t n_out, int64_t n_in) const {
  if ((n_out < 0 || m.n_out == n_out) && (n_in < 0 || m.n_in == n_in) && m) return;
  fail(Error::Kind::kFailure, "{}: {}: expected a matrix {}, got {}", op_, operand_text(operand, m.name),
       expected_shape({n_out, n_in}), shape_string(std::array{m.n_out, m.n_in}));
}

void Checker::rows(std::string_view operand, const CacheRows& rows, int64_t row_dim) const {
  if (rows.row_dim == row_dim && rows.row_bytes >= row_bytes(rows.type, row_dim)) return;
  fail(Error::Kind::kFailure, "{}: {}: expected cache rows of {} values, got {} in {} bytes", op_,
       operand_text(operand, rows.name), row_dim, rows.row_dim, rows.row_bytes);
}

void Checker::that(bool holds, std::string_view condition) const {
  if (!holds) fail(Error::Kind::kFailure, "{}: expected that {}", op_, condition);
}

}  // namespace synod
