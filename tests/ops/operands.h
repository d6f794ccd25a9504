// Owners of operands for tests: tensors with values, ragged batches, paged cache rows.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "ops/batch.h"
#include "ops/cache_rows.h"
#include "quant/codec.h"
#include "quant/matrix.h"

namespace synod::testing {

inline std::vector<float> normal_values(int64_t n, uint32_t seed, float deviation = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(engine);
  return v;
}

inline int64_t product(std::initializer_list<int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// A contiguous tensor that owns its values.
template <typename T>
class Owned {
 public:
  Owned(std::initializer_list<int64_t> shape, std::vector<T> v, std::string_view name = {})
      : v_(std::move(v)) {
    v_.resize(static_cast<size_t>(product(shape)));
    constexpr DType kType = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
    tensor_ = Tensor::contiguous(v_.data(), kType, shape, name);
  }
  explicit Owned(std::initializer_list<int64_t> shape) : Owned(shape, {}) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  operator const Tensor&() const { return tensor_; }  // NOLINT: reads as the tensor in op structs
  const Tensor& tensor() const { return tensor_; }
  T& operator[](int64_t i) { return v_[static_cast<size_t>(i)]; }
  const T& operator[](int64_t i) const { return v_[static_cast<size_t>(i)]; }
  const std::vector<T>& values() const { return v_; }

 private:
  std::vector<T> v_;
  Tensor tensor_;
};
using F32 = Owned<float>;
using I32 = Owned<int32_t>;

// A matrix of random values stored as `type`, and the values it decodes to.
class StoredMatrix {
 public:
  StoredMatrix(DType type, int64_t n_out, int64_t n_in, uint32_t seed, float deviation = 1.0F)
      : StoredMatrix(type, n_out, n_in, normal_values(n_out * n_in, seed, deviation)) {}
  StoredMatrix(DType type, int64_t n_out, int64_t n_in, const std::vector<float>& v)
      : bytes_(static_cast<size_t>(n_out * row_bytes(type, n_in))), values_(v.size()) {
    encode(type, v.data(), n_out * n_in, bytes_.data());
    decode(type, bytes_.data(), n_out * n_in, values_.data());
    matrix_ = matrix_of(Tensor::contiguous(bytes_.data(), type, {n_out, n_in}, "weight"));
  }
  StoredMatrix(StoredMatrix&&) = default;  // a moved vector keeps its memory

  operator const Matrix&() const { return matrix_; }  // NOLINT
  const Matrix& matrix() const { return matrix_; }
  double at(int64_t o, int64_t i) const { return values_[static_cast<size_t>(o * matrix_.n_in + i)]; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
  Matrix matrix_;
};

// A ragged batch: past and new tokens of each sequence.
class Batch {
 public:
  explicit Batch(std::vector<std::pair<int64_t, int64_t>> sequences) {
    row_start_.push_back(0);
    for (const auto& [past, n] : sequences) {
      past_.push_back(past);
      row_start_.push_back(row_start_.back() + n);
      for (int64_t i = 0; i < n; ++i) positions_.push_back(static_cast<int32_t>(past + i));
    }
    ids_.resize(positions_.size());
    const auto n = static_cast<int64_t>(ids_.size());
    view_ = {.ids = Tensor::contiguous(ids_.data(), DType::kI32, {n}, "ids"),
             .positions = Tensor::contiguous(positions_.data(), DType::kI32, {n}, "positions"),
             .row_start = row_start_,
             .past = past_};
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const BatchView* view() const { return &view_; }

 private:
  std::vector<int64_t> row_start_, past_;
  std::vector<int32_t> ids_, positions_;
  BatchView view_;
};

// Paged rows of several sequences, all pages present until `drop_page`.
class PagedRows {
 public:
  PagedRows(DType type, int64_t row_dim, int64_t rows_per_page, int64_t n_sequences, int64_t n_rows)
      : type_(type), row_dim_(row_dim), rows_per_page_(rows_per_page), row_bytes_(row_bytes(type, row_dim)) {
    const int64_t n_pages = (n_rows + rows_per_page - 1) / rows_per_page;
    for (int64_t s = 0; s < n_sequences; ++s) {
      auto& table = pages_.emplace_back();
      for (int64_t p = 0; p < n_pages; ++p) {
        memory_.emplace_back(static_cast<size_t>(rows_per_page * row_bytes_));
        table.push_back(memory_.back().data());
      }
    }
    for (auto& table : pages_) tables_.push_back({table});
  }
  PagedRows(const PagedRows&) = delete;
  PagedRows& operator=(const PagedRows&) = delete;

  CacheRows rows() const {
    return {.name = "rows",
            .type = type_,
            .row_dim = row_dim_,
            .row_bytes = row_bytes_,
            .rows_per_page = rows_per_page_,
            .sequences = tables_};
  }
  // Rows of one sequence as the next call of a batch of that sequence alone sees them.
  CacheRows sequence(int64_t s) const {
    CacheRows r = rows();
    r.sequences = r.sequences.subspan(static_cast<size_t>(s), 1);
    return r;
  }
  void fill(uint32_t seed, float deviation = 1.0F) {
    for (int64_t s = 0; s < static_cast<int64_t>(pages_.size()); ++s) {
      const int64_t n = static_cast<int64_t>(pages_[static_cast<size_t>(s)].size()) * rows_per_page_;
      for (int64_t r = 0; r < n; ++r) {
        set(s, r, normal_values(row_dim_, seed + static_cast<uint32_t>(1000 * s + r), deviation));
      }
    }
  }
  void set(int64_t s, int64_t r, const std::vector<float>& v) {
    encode(type_, v.data(), row_dim_, rows().row(s, r));
  }
  std::vector<float> get(int64_t s, int64_t r) const {
    std::vector<float> v(static_cast<size_t>(row_dim_));
    decode(type_, rows().row(s, r), row_dim_, v.data());
    return v;
  }
  void drop_page(int64_t s, int64_t page) {
    pages_[static_cast<size_t>(s)][static_cast<size_t>(page)] = nullptr;
  }

 private:
  DType type_;
  int64_t row_dim_, rows_per_page_, row_bytes_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::vector<std::byte*>> pages_;
  std::vector<RowTable> tables_;
};

}  // namespace synod::testing
