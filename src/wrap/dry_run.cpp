#include "wrap/dry_run.h"

#include "ops/lowering.h"
#include "ops/visitor.h"

namespace synod {

template <typename Op>
void DryRun::count(const Op& op) {
  if (lowering_) return;  // parts of an op that was counted whole
  ByteCounter bytes;
  op.visit(bytes);
  weight_bytes_ += bytes.weights;
  ++n_ops_;
}

// Lowered as well: checks the parts and counts the scratch of a backend that has no such kernel.
template <typename Op>
void DryRun::count_fused(const Op& op) {
  count(op);
  const bool outermost = !lowering_;
  lowering_ = true;
  lower(op, *this);
  if (outermost) lowering_ = false;
}

#define SYNOD_PRIMITIVE(Op) \
  void DryRun::run(const Op& op) { count(op); }
#define SYNOD_FUSED(Op) \
  void DryRun::run(const Op& op) { count_fused(op); }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

}  // namespace synod
