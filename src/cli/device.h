// The CUDA backend as the verbs use it.
#pragma once

#include <memory>

#include "engine/memory_plan.h"
#include "models/model.h"
#include "ops/backend.h"

namespace synod::cli {

// The backend of --backend cuda. For `automatic` (--backend auto) null where there is no plugin or no usable
// device; the latter with a warning.
std::unique_ptr<Backend> open_cuda(bool automatic);

// Puts the model's weights on the backend when it is a device: refuses first when weights, cache and scratch
// of the plan exceed what is free (unless `force`). False when the backend reads weights from host memory.
bool place_weights(const Model& model, Backend& backend, MemoryPlan plan, bool force);

}  // namespace synod::cli
