#include "cpu/cpu_backend.h"

#include <utility>

#include "base/error.h"
#include "cpu/scratch.h"

namespace synod {

CpuBackend::CpuBackend(std::unique_ptr<Backend> fallback, const CpuOptions& options)
    : fallback_(std::move(fallback)),
      kernels_(cpu::kernel_table(options.isa)),
      pool_(options.n_threads),
      options_(options),
      workspace_([](int64_t bytes) { return Buffer::host(bytes); }),
      scratch_(std::make_unique<Scratch>(pool_.n_threads())) {
  SYNOD_ASSERT(fallback_ != nullptr);
  options_.isa = kernels_.name;  // the caller's text may not live as long
}

CpuBackend::~CpuBackend() = default;

void CpuBackend::begin(const Label& label) {
  labels_.push_back(label);
  fallback_->begin(label);
}

void CpuBackend::end() {
  labels_.pop_back();
  fallback_->end();
}

// Labels change only between phases, so whichever thread is first names the same place.
void CpuBackend::raise(Status status) {
  if (status_bits_.fetch_or(static_cast<uint32_t>(status)) == 0) {
    status_where_ = labels_.empty() ? Label{} : labels_.back();
  }
}

void CpuBackend::take_fallback_status() {
  const StatusReport report = fallback_->take_status();
  if (report.bits != 0 && status_bits_.fetch_or(report.bits) == 0) status_where_ = report.where;
}

Backend::StatusReport CpuBackend::take_status() {
  take_fallback_status();
  const StatusReport report{.bits = status_bits_.exchange(0), .where = status_where_};
  status_where_ = {};
  return report;
}

}  // namespace synod
