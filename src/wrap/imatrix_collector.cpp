#include "wrap/imatrix_collector.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "ops/lowering.h"

namespace synod {
namespace {

void add_row(const float* x, int64_t n, std::vector<double>& squares) {
  for (int64_t i = 0; i < n; ++i) {
    squares[static_cast<size_t>(i)] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
}

}  // namespace

void ImatrixCollector::watch(const Matrix& matrix, size_t slot) {
  if (matrix.data == nullptr) return;
  slots_.emplace(matrix.data, slot);
  if (sums_.size() <= slot) sums_.resize(slot + 1);
  sums_[slot].squares.resize(static_cast<size_t>(matrix.n_in));
}

ImatrixCollector::Sums* ImatrixCollector::slot_of(const Matrix& matrix) {
  const auto it = slots_.find(matrix.data);
  return it == slots_.end() ? nullptr : &sums_[it->second];
}

void ImatrixCollector::add_rows(const Matrix& matrix, const Tensor& x) {
  Sums* sums = slot_of(matrix);
  if (sums == nullptr) return;
  SYNOD_ASSERT(static_cast<int64_t>(sums->squares.size()) == x.inner());
  for (int64_t r = 0; r < x.rows(); ++r) add_row(x.row_as<float>(r), x.inner(), sums->squares);
  sums->n_rows += x.rows();
}

void ImatrixCollector::observe(const Linear& op) { add_rows(op.weight, op.x); }

void ImatrixCollector::observe(const GroupedLinear& op) { add_rows(op.weight, op.x); }

void ImatrixCollector::observe(const Projections& op) {
  // Parts that are one stored matrix see the same input once.
  std::vector<const Sums*> seen;
  for (int i = 0; i < op.n_parts; ++i) {
    const Matrix& weight = op.parts[static_cast<size_t>(i)].weight;
    const Sums* sums = slot_of(weight);
    if (std::ranges::find(seen, sums) != seen.end()) continue;
    seen.push_back(sums);
    add_rows(weight, op.x);
  }
}

void ImatrixCollector::observe(const ExpertLinear& op) {
  const int64_t k = op.ids.dim(1);
  for (int64_t t = 0; t < op.ids.dim(0); ++t) {
    for (int64_t s = 0; s < k; ++s) {
      const auto expert = static_cast<size_t>(op.ids.row_as<int32_t>(t)[s]);
      SYNOD_ASSERT(expert < op.experts.size());
      Sums* sums = slot_of(op.experts[expert]);
      if (sums == nullptr) continue;
      add_row(op.x.row_as<float>(op.x.rank == 3 ? t * k + s : t), op.x.inner(), sums->squares);
      ++sums->n_rows;
    }
  }
}

template <typename Op>
void ImatrixCollector::observed(const Op& op) {
  if constexpr (std::is_same_v<Op, ExpertFfn>) {
    lower(op, *this);  // only the lowered form shows what enters the down projections
  } else {
    if constexpr (requires { observe(op); }) {
      inner_.join();
      observe(op);
    }
    inner_.run(op);
  }
}

#define SYNOD_PRIMITIVE(Op) \
  void ImatrixCollector::run(const Op& op) { observed(op); }
#define SYNOD_FUSED(Op) \
  void ImatrixCollector::run(const Op& op) { observed(op); }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

}  // namespace synod
