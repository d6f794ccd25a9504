#include "ref/ref_backend.h"

namespace synod {

RefBackend::RefBackend() : workspace_([](int64_t bytes) { return Buffer::host(bytes); }) {}

Backend::StatusReport RefBackend::take_status() {
  const StatusReport report = status_;
  status_ = {};
  return report;
}

void RefBackend::raise(Status status) {
  if (status_.bits == 0) status_.where = labels_.empty() ? Label{} : labels_.back();
  status_.bits |= static_cast<uint32_t>(status);
}

}  // namespace synod
