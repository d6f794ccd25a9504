// A non-owning typed view of memory: outermost dimension first, innermost contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"

namespace synod {

inline constexpr int kMaxRank = 4;

// The outer dimensions may be strided (a slice of a packed buffer); values of the innermost dimension are
// always contiguous. `data` may be null in a dry run: shapes are checked, bytes are counted, nothing is read.
struct Tensor {
  std::byte* data = nullptr;
  DType type = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};   // values per dimension
  std::array<int64_t, kMaxRank> stride{};  // bytes between neighbours; stride[rank - 1] is unused
  std::string_view name;                   // for messages; the owner outlives the view

  static Tensor contiguous(void* data, DType type, std::span<const int64_t> shape,
                           std::string_view name = {});
  static Tensor contiguous(void* data, DType type, std::initializer_list<int64_t> shape,
                           std::string_view name = {}) {
    return contiguous(data, type, std::span<const int64_t>(shape.begin(), shape.size()), name);
  }

  explicit operator bool() const { return rank > 0; }  // an absent optional operand has rank 0
  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t inner() const { return shape[static_cast<size_t>(rank - 1)]; }  // width of the innermost dimension
  int64_t rows() const;                                                   // product of the outer dimensions
  int64_t size() const { return rank == 0 ? 0 : rows() * inner(); }
  int64_t bytes() const { return rank == 0 ? 0 : rows() * row_bytes(type, inner()); }
  bool is_contiguous() const;

  // The innermost vector at an outer index, flattened over all outer dimensions.
  std::byte* row(int64_t flat_index) const;
  template <typename T>
  T* row_as(int64_t flat_index) const {
    return reinterpret_cast<T*>(row(flat_index));
  }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  // Views. All return the same bytes under another shape; shapes that do not fit are our own bug.
  Tensor slice(int dimension, int64_t begin, int64_t end) const;  // innermost slices need a plain type
  Tensor reshape(
      std::initializer_list<int64_t> new_shape) const;  // contiguous, or only the innermost is split
  Tensor named(std::string_view new_name) const;
};

std::string shape_string(std::span<const int64_t> shape);  // "[128, 704, 2816]"
std::string shape_string(const Tensor& tensor);

}  // namespace synod
