#include "engine/forward_call.h"

#include "ops/step_replay.h"

namespace synod {
namespace {

bool repeats(const Model& model, const BatchView& batch, const KvView& kv, Backend& backend,
             const ForwardRequest& request) {
  auto* replay = dynamic_cast<StepReplay*>(&backend);
  if (replay == nullptr || request.tap) return false;
  const std::optional<uint64_t> kind = model.step_kind(batch);
  return kind && replay->replay({.model = &model,
                                 .kind = *kind,
                                 .batch = &batch,
                                 .tables = kv.tables(),
                                 .operands = {request.rows, request.greedy, request.logits}});
}

}  // namespace

void issue_call(const Model& model, const BatchView& batch, const KvView& kv, Backend& backend,
                const ForwardRequest& request) {
  if (!repeats(model, batch, kv, backend, request)) model.forward(batch, kv, backend, request);
}

void forward_call(const Model& model, const BatchView& batch, const KvView& kv, Backend& backend,
                  const ForwardRequest& request) {
  try {
    issue_call(model, batch, kv, backend, request);
    backend.join();
    require_ok(backend);
  } catch (...) {
    static_cast<void>(backend.take_status());
    throw;
  }
}

}  // namespace synod
