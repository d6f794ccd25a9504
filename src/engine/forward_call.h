// A forward call as everything above the models makes it.
#pragma once

#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/backend.h"
#include "ops/batch.h"

namespace synod {

// Issues the model's ops, or has the backend repeat those of the last call; join() finishes them.
void issue_call(const Model& model, const BatchView& batch, const KvView& kv, Backend& backend,
                const ForwardRequest& request);

// Issues the batch and waits for its end. Nothing is committed. Throws what the model or the backend's status
// throws, and clears that status.
void forward_call(const Model& model, const BatchView& batch, const KvView& kv, Backend& backend,
                  const ForwardRequest& request);

}  // namespace synod
