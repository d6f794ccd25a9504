#include "base/tensor.h"

namespace synod {

Tensor Tensor::contiguous(void* data, DType type, std::span<const int64_t> shape, std::string_view name) {
  SYNOD_ASSERT(!shape.empty() && shape.size() <= kMaxRank);
  Tensor t;
  t.data = static_cast<std::byte*>(data);
  t.type = type;
  t.rank = static_cast<int>(shape.size());
  t.name = name;
  for (size_t i = 0; i < shape.size(); ++i) t.shape[i] = shape[i];
  int64_t step = row_bytes(type, t.inner());
  for (int i = t.rank - 2; i >= 0; --i) {
    t.stride[static_cast<size_t>(i)] = step;
    step *= t.dim(i);
  }
  return t;
}

int64_t Tensor::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank; ++i) n *= dim(i);
  return n;
}

bool Tensor::is_contiguous() const {
  int64_t step = row_bytes(type, inner());
  for (int i = rank - 2; i >= 0; --i) {
    if (dim(i) != 1 && stride[static_cast<size_t>(i)] != step) return false;
    step *= dim(i);
  }
  return true;
}

std::byte* Tensor::row(int64_t flat_index) const {
  std::byte* p = data;
  for (int i = rank - 2; i >= 0; --i) {
    const int64_t n = dim(i);
    p += flat_index % n * stride[static_cast<size_t>(i)];
    flat_index /= n;
  }
  return p;
}

Tensor Tensor::slice(int dimension, int64_t begin, int64_t end) const {
  SYNOD_ASSERT(dimension >= 0 && dimension < rank && begin >= 0 && begin <= end && end <= dim(dimension));
  Tensor t = *this;
  const int64_t step =
      dimension == rank - 1 ? info(type).block_bytes : stride[static_cast<size_t>(dimension)];
  SYNOD_ASSERT(dimension != rank - 1 || !is_block_type(type));
  if (t.data != nullptr) t.data += begin * step;
  t.shape[static_cast<size_t>(dimension)] = end - begin;
  return t;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> new_shape) const {
  if (is_contiguous()) {
    Tensor t = contiguous(data, type, new_shape, name);
    SYNOD_ASSERT(t.size() == size());
    return t;
  }
  // [a, b*c] -> [a, b, c] of a strided view: the outer stride stays.
  SYNOD_ASSERT(rank == 2 && new_shape.size() == 3);
  const int64_t a = new_shape.begin()[0], b = new_shape.begin()[1], c = new_shape.begin()[2];
  SYNOD_ASSERT(a == dim(0) && b * c == dim(1));
  Tensor t = *this;
  t.rank = 3;
  t.shape = {a, b, c, 0};
  t.stride = {stride[0], row_bytes(type, c), 0, 0};
  return t;
}

Tensor Tensor::named(std::string_view new_name) const {
  Tensor t = *this;
  t.name = new_name;
  return t;
}

std::string shape_string(std::span<const int64_t> shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return s + "]";
}

std::string shape_string(const Tensor& tensor) {
  return shape_string(std::span(tensor.shape.data(), static_cast<size_t>(tensor.rank)));
}

}  // namespace synod
