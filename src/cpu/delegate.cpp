// Ops without a kernel of their own: small per step, or decisions that must equal the reference bit for bit.
#include "cpu/cpu_backend.h"
#include "ops/lowering.h"

namespace synod {

void CpuBackend::run(const ArgMax& op) { delegate(op); }
void CpuBackend::run(const GatherRows& op) { delegate(op); }
void CpuBackend::run(const RoundTrip& op) { delegate(op); }
void CpuBackend::run(const Hadamard& op) { delegate(op); }
void CpuBackend::run(const RouteSoftmax& op) { delegate(op); }
void CpuBackend::run(const RouteScores& op) { delegate(op); }
void CpuBackend::run(const RouteHash& op) { delegate(op); }
void CpuBackend::run(const CacheWrite& op) { delegate(op); }
void CpuBackend::run(const IndexSelect& op) { delegate(op); }
void CpuBackend::run(const CompressPool& op) { delegate(op); }
void CpuBackend::run(const Compress& op) { lower(op, *this); }

}  // namespace synod
