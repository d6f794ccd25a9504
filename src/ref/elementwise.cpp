// Add, Scale, SoftCap, Hadamard, ArgMax, GatherRows. Values are computed in double and rounded once.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ref/ref_backend.h"

namespace synod {

void RefBackend::run(const Add& op) {
  for (int64_t r = 0; r < op.a.rows(); ++r) {
    const float* a = op.a.row_as<const float>(r);
    const float* b = op.b.row_as<const float>(r);
    float* out = op.out.row_as<float>(r);
    for (int64_t i = 0; i < op.a.inner(); ++i) {
      out[i] = static_cast<float>((static_cast<double>(a[i]) + b[i]) * op.factor);
    }
  }
}

void RefBackend::run(const Scale& op) {
  const double factor = op.by ? static_cast<double>(op.factor) * op.by.as<const float>()[0] : op.factor;
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    float* x = op.x.row_as<float>(r);
    for (int64_t i = 0; i < op.x.inner(); ++i) x[i] = static_cast<float>(x[i] * factor);
  }
}

void RefBackend::run(const SoftCap& op) {
  const double cap = op.cap;
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    float* x = op.x.row_as<float>(r);
    for (int64_t i = 0; i < op.x.inner(); ++i) x[i] = static_cast<float>(cap * std::tanh(x[i] / cap));
  }
}

void RefBackend::run(const Hadamard& op) {
  const int64_t d = op.x.inner();
  const double norm = 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<double> v(static_cast<size_t>(d));
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    float* x = op.x.row_as<float>(r);
    std::copy_n(x, d, v.begin());
    for (int64_t half = 1; half < d; half *= 2) {
      for (int64_t first = 0; first < d; first += 2 * half) {
        for (int64_t i = first; i < first + half; ++i) {
          const double a = v[static_cast<size_t>(i)], b = v[static_cast<size_t>(i + half)];
          v[static_cast<size_t>(i)] = a + b;
          v[static_cast<size_t>(i + half)] = a - b;
        }
      }
    }
    for (int64_t i = 0; i < d; ++i) x[i] = static_cast<float>(v[static_cast<size_t>(i)] * norm);
  }
}

void RefBackend::run(const ArgMax& op) {
  for (int64_t r = 0; r < op.x.dim(0); ++r) {
    const float* x = op.x.row_as<const float>(r);
    const float* end = x + op.x.dim(1);
    const float* best = std::max_element(x, end);  // the first of equals
    const bool any_nan = std::any_of(x, end, [](float v) { return std::isnan(v); });
    const bool decided = best != end && std::isfinite(*best) && !any_nan;
    if (!decided) raise(Status::kNonFinite);
    op.out.as<int32_t>()[r] = decided ? static_cast<int32_t>(best - x) : 0;
  }
}

void RefBackend::run(const GatherRows& op) {
  const int64_t n = op.rows.dim(0), d = op.x.inner();
  int64_t per_row = 1;  // inner vectors of one row
  for (int i = 1; i + 1 < op.x.rank; ++i) per_row *= op.x.dim(i);
  for (int64_t r = 0; r < n; ++r) {
    const int64_t row = op.rows.as<const int32_t>()[r];
    const bool known = row >= 0 && row < op.x.dim(0);
    if (!known) raise(Status::kBadId);
    for (int64_t s = 0; s < per_row; ++s) {
      float* out = op.out.row_as<float>(r * per_row + s);
      if (known) {
        std::copy_n(op.x.row_as<const float>(row * per_row + s), d, out);
      } else {
        std::fill_n(out, d, 0.0F);
      }
    }
  }
}

}  // namespace synod
