// What the device tests share: a backend where there is a GPU (tests skip, counted, where there is none),
// paged rows in a backend's own memory, and comparison with the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_device.h"
#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod::testing {

using Values = std::vector<float>;

// The one backend of the test program; null without a device.
inline cuda::CudaBackend* gpu() {
  static const std::unique_ptr<cuda::CudaBackend> backend = [] {
    try {
      return std::make_unique<cuda::CudaBackend>(cuda::make_cuda_device({}), cuda::CudaBackendOptions{});
    } catch (const Error& error) {
      std::printf("no GPU tests: %s\n", error.what());
      return std::unique_ptr<cuda::CudaBackend>();
    }
  }();
  return backend.get();
}

#define SYNOD_NEED_GPU() \
  if (gpu() == nullptr) GTEST_SKIP() << "no CUDA device"

// ||got - want|| / ||want||; infinite when a value is not finite where the other is, or sizes differ.
inline double relative_error(const Values& got, const Values& want) {
  if (got.size() != want.size()) return INFINITY;
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (got[i] == want[i]) {
      norm += std::isfinite(want[i]) ? static_cast<double>(want[i]) * want[i] : 0.0;
      continue;
    }
    if (!std::isfinite(got[i]) || !std::isfinite(want[i])) return INFINITY;
    const double d = static_cast<double>(got[i]) - want[i];
    difference += d * d;
    norm += static_cast<double>(want[i]) * want[i];
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / std::max(norm, 1e-60));
}

// Runs `compute` on the reference and on the device; the outputs must agree to `tolerance`.
inline Values expect_close(const std::string& what, double tolerance,
                           const std::function<Values(Backend&)>& compute) {
  RefBackend ref;
  const Values want = compute(ref);
  Values got;
  try {
    got = compute(*gpu());
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": " << error.what();
    return {};
  }
  const double error = relative_error(got, want);
  EXPECT_LE(error, tolerance) << what;
  if (!(error <= tolerance)) {
    for (size_t i = 0, shown = 0; i < std::min(got.size(), want.size()) && shown < 4; ++i) {
      if (std::fabs(got[i] - want[i]) <= 1e-2F * (1.0F + std::fabs(want[i]))) continue;
      std::printf("    %s: value %zu of %zu: got %g, want %g\n", what.c_str(), i, got.size(),
                  static_cast<double>(got[i]), static_cast<double>(want[i]));
      ++shown;
    }
  }
  return got;
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline Values values_of(const F32& t) { return t.values(); }
inline Values as_floats(const I32& t) { return {t.values().begin(), t.values().end()}; }

// Rows of several sequences in the backend's memory.
class BackendRows {
 public:
  BackendRows(Backend& be, DType type, int64_t row_dim, int64_t rows_per_page, int64_t n_sequences,
              int64_t n_rows)
      : be_(be), type_(type), row_dim_(row_dim), rows_per_page_(rows_per_page) {
    const int64_t page = rows_per_page * row_bytes(type, row_dim);
    const int64_t n_pages = (n_rows + rows_per_page - 1) / rows_per_page;
    memory_ = be.allocate(n_sequences * n_pages * page);
    // Pages of a sequence are not neighbours, and the last comes first.
    for (int64_t s = 0; s < n_sequences; ++s) {
      auto& table = pages_.emplace_back();
      for (int64_t p = 0; p < n_pages; ++p) {
        table.push_back(memory_.data() + ((n_pages - 1 - p) * n_sequences + s) * page);
      }
    }
    for (auto& table : pages_) tables_.push_back({table});
  }
  CacheRows rows() const {
    return {.name = "rows",
            .type = type_,
            .row_dim = row_dim_,
            .row_bytes = row_bytes(type_, row_dim_),
            .rows_per_page = rows_per_page_,
            .sequences = tables_};
  }
  // Writes rows [0, n) of every sequence with random values, `ratio` tokens each.
  void fill(int64_t n, uint32_t seed, int64_t ratio = 1) {
    std::vector<std::pair<int64_t, int64_t>> sequences(tables_.size(), {0, n * ratio});
    const Batch batch(sequences);
    const int64_t total = n * static_cast<int64_t>(tables_.size());
    const F32 x({total, row_dim_}, normal_values(total * row_dim_, seed));
    be_(CacheWrite{.rows = rows(), .x = x, .batch = batch.view(), .tokens_per_row = ratio});
    be_.join();
  }
  // All rows as stored, f32 only.
  Values get() {
    const int64_t n = memory_.bytes() / (4 * row_dim_);
    F32 out({n, row_dim_});
    std::vector<int32_t> index(static_cast<size_t>(n));
    std::iota(index.begin(), index.end(), 0);
    const I32 rows_index({n}, index);
    be_(GatherRows{
        .out = out, .x = Tensor::contiguous(memory_.data(), DType::kF32, {n, row_dim_}), .rows = rows_index});
    be_.join();
    return out.values();
  }

 private:
  Backend& be_;
  DType type_;
  int64_t row_dim_, rows_per_page_;
  Buffer memory_;
  std::vector<std::vector<std::byte*>> pages_;
  std::vector<RowTable> tables_;
};

}  // namespace synod::testing
