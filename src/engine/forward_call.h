// A forward call as everything above the models makes it.
#pragma once

#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/backend.h"
#include "ops/batch.h"

namespace synod {

// Runs the batch to its end: issues the model's ops, or has the backend repeat those of the last call, and
// waits. Nothing is committed. Throws what the model or the backend's status throws, and clears that status.
void forward_call(const Model& model, const BatchView& batch, const KvView& kv, Backend& backend,
                  const ForwardRequest& request);

}  // namespace synod
