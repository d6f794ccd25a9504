#include "cuda/weight_set.h"

#include "ops/visitor.h"

namespace synod::cuda {

struct CollectOperands : OperandVisitor {
  WeightCollector& collector;
  explicit CollectOperands(WeightCollector& c) : collector(c) {}

  void in(std::string_view, const Tensor& t) { collector.add(t); }
  // Hyper-connection products stay f32: they are small and read by all of a step's blocks.
  void weight(std::string_view role, const Matrix& m) { collector.add({&m, 1}, role == "fn", true); }
  void rows_of(std::string_view, const Matrix& m, int64_t) { collector.add({&m, 1}, false, true); }
  void experts(std::string_view, std::span<const Matrix> e, int64_t, int64_t) {
    collector.add(e, false, false);
  }
};

void WeightCollector::add(std::span<const Matrix> matrices, bool as_float, bool single) {
  if (matrices.empty() || matrices[0].data == nullptr || !seen_.insert(matrices[0].data).second) return;
  WeightSet::Entry& entry = set_.matrices.emplace_back();
  entry.as_float = as_float;
  entry.matrices = matrices;
  if (single) entry.own.assign(1, matrices[0]);
}

void WeightCollector::add(const Tensor& constant) {
  if (constant.data != nullptr && seen_.insert(constant.data).second) set_.constants.push_back(constant);
}

#define SYNOD_PRIMITIVE(Op)                                                                         \
  void WeightCollector::run(const Op& op) {                                                         \
    CollectOperands visitor(*this);                                                                 \
    op.visit(visitor);                                                                              \
    if constexpr (std::is_same_v<Op, RouteHash>) add(reinterpret_cast<const RouteHash&>(op).table); \
  }
#define SYNOD_FUSED(Op)                     \
  void WeightCollector::run(const Op& op) { \
    CollectOperands visitor(*this);         \
    op.visit(visitor);                      \
  }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

}  // namespace synod::cuda
