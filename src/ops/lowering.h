// Fused ops as primitives: the reference of every backend's override.
#pragma once

#include "ops/backend.h"

namespace synod {

void lower(const Projections& op, Backend& be);
void lower(const GroupedLinear& op, Backend& be);
void lower(const ExpertFfn& op, Backend& be);
void lower(const Compress& op, Backend& be);

}  // namespace synod
