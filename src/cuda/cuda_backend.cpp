#include "cuda/cuda_backend.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/error.h"
#include "ops/lowering.h"

namespace synod::cuda {
namespace {

// Buffer deleters are plain functions: this finds the backend of an allocation.
struct Owners {
  std::mutex mutex;
  std::map<std::byte*, std::pair<Device*, Step*>> by_address;
};
Owners& owners() {
  static Owners instance;
  return instance;
}

constexpr size_t kMostPlans = 64;
constexpr int64_t kTicketBytes = kMostTickets * sizeof(uint32_t);

}  // namespace

CudaBackend::CudaBackend(std::unique_ptr<Device> device, const CudaBackendOptions& options)
    : device_(std::move(device)),
      options_(options),
      weights_(*device_),
      scratch_(*device_),
      step_(*device_, weights_),
      workspace_([this](int64_t bytes) { return allocate(bytes); }) {
  static_cast<void>(owners());  // outlives the backend, also at exit
  tickets_ = device_->allocate(kTicketBytes);
  device_->clear(tickets_, kTicketBytes);
}

CudaBackend::~CudaBackend() {
  device_->synchronize();
  drop_plans();
  device_->release(tickets_);
  workspace_ = Workspace();  // before the device
  const std::lock_guard lock(owners().mutex);
  std::erase_if(owners().by_address, [&](const auto& entry) { return entry.second.first == device_.get(); });
}

void CudaBackend::release(std::byte* data, int64_t) {
  const std::lock_guard lock(owners().mutex);
  const auto it = owners().by_address.find(data);
  if (it == owners().by_address.end()) return;  // the backend is gone and took its memory along
  it->second.second->remove_device_range(data);
  it->second.first->release(data);
  owners().by_address.erase(it);
}

Buffer CudaBackend::allocate(int64_t bytes) {
  if (bytes <= 0) return {};
  std::byte* data = device_->allocate(bytes);
  step_.add_device_range(data, bytes);
  const std::lock_guard lock(owners().mutex);
  owners().by_address[data] = {device_.get(), &step_};
  return Buffer::adopt(data, bytes, &CudaBackend::release);
}

void CudaBackend::begin(const Label& label) {
  labels_.push_back(label);
  label_index_.reset();
}
void CudaBackend::end() {
  labels_.pop_back();
  label_index_.reset();
}

uint32_t CudaBackend::label_index() {
  if (label_index_) return *label_index_;
  const Label label = labels_.empty() ? Label{} : labels_.back();
  const auto same = [&](const Label& l) { return l.layer == label.layer && l.part == label.part; };
  // Labels come in runs.
  for (size_t i = step_labels_.size(); i > 0 && i + 8 > step_labels_.size(); --i) {
    if (same(step_labels_[i - 1])) return *(label_index_ = static_cast<uint32_t>(i - 1));
  }
  step_labels_.push_back(label);
  return *(label_index_ = static_cast<uint32_t>(step_labels_.size() - 1));
}

template <typename Op>
void CudaBackend::record(const Op& op) {
  if constexpr (std::is_same_v<Op, Compress>) {
    lower(op, *this);
  } else {
    if (step_.empty()) {  // the last step's labels served until now
      step_labels_.clear();
      label_index_.reset();
    }
    step_.record(op, label_index());
  }
}

CudaBackend::Plan& CudaBackend::plan_for_step() {
  // The last step's plan is the first.
  if (step_.repeats() && !plans_.empty()) return plans_.front();
  const auto key = step_.key();
  const auto it = std::ranges::find_if(plans_, [&](const Plan& p) { return std::ranges::equal(p.key, key); });
  if (it != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, it);
    return plans_.front();
  }
  Plan plan;
  plan.key.assign(key.begin(), key.end());
  plan.launches =
      Builder(step_, weights_, scratch_, step_.status_on_device(), reinterpret_cast<uint32_t*>(tickets_))
          .build();
  plans_.push_front(std::move(plan));
  while (plans_.size() > kMostPlans) {
    if (plans_.back().graph != nullptr) device_->drop(plans_.back().graph);
    plans_.pop_back();
  }
  return plans_.front();
}

void CudaBackend::run_plan(Plan& plan) {
  // A kind of step that comes once is not worth a graph.
  constexpr int64_t kUsesForGraph = 2;
  if (++plan.uses >= kUsesForGraph && options_.graphs && plan.graph == nullptr) {
    device_->begin_capture();
    for (const PlannedLaunch& l : plan.launches) device_->launch(l.launch);
    plan.graph = device_->end_capture();
  }
  if (plan.graph != nullptr) {
    device_->replay(plan.graph);
  } else {
    for (const PlannedLaunch& l : plan.launches) device_->launch(l.launch);
  }
}

void CudaBackend::run_timed(const Plan& plan) {
  constexpr int kFirst = Device::kMarks - 2, kSecond = Device::kMarks - 1;
  for (size_t i = 0; i < plan.launches.size();) {
    const uint32_t label = plan.launches[i].label;
    device_->set_mark(kFirst);
    int64_t n = 0;
    for (; i < plan.launches.size() && plan.launches[i].label == label; ++i, ++n)
      device_->launch(plan.launches[i].launch);
    device_->set_mark(kSecond);
    device_->wait_mark(kSecond);
    const Label& where = step_labels_[label];
    auto it = std::ranges::find_if(stage_times_, [&](const StageTime& s) {
      return s.label.layer == where.layer && s.label.part == where.part;
    });
    if (it == stage_times_.end()) it = stage_times_.insert(it, {.label = where});
    it->seconds += device_->seconds_between(kFirst, kSecond);
    it->n_launches += n;
  }
}

void CudaBackend::join() {
  if (step_.empty()) return;
  try {
    Plan& plan = plan_for_step();
    step_.upload();
    if (timed_) {
      run_timed(plan);
    } else {
      run_plan(plan);
    }
    step_.download();
    device_->synchronize();
  } catch (...) {
    step_.forget();  // it may have no plan
    throw;
  }
  step_.finish_downloads();
  const std::span<const uint32_t, 2> status = step_.status();
  if (status[0] != 0) {
    if (status_.bits == 0 && status[1] > 0 && status[1] <= step_labels_.size()) {
      status_.where = step_labels_[status[1] - 1];
    }
    status_.bits |= status[0];
    step_.clear_status();
  }
  // Weights that were not placed are good for one step: their host memory may hold others later.
  if (weights_.has_extra()) {
    drop_plans();
    weights_.clear_extra();
  }
  step_.clear();
}

bool CudaBackend::replay(const StepCall& call) {
  if (step_.repeat(call)) return true;
  step_.announce(call);
  return false;
}

void CudaBackend::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  device_->copy(to, from, bytes);
  device_->synchronize();
}

Backend::StatusReport CudaBackend::take_status() {
  if (!step_.ended()) step_.forget();
  const StatusReport report = status_;
  status_ = {};
  return report;
}

void CudaBackend::place_all(const WeightSet& weights) {
  drop_plans();
  weights_.place(weights);
}

std::vector<DeviceBackend::StageTime> CudaBackend::take_stage_times() {
  timed_ = true;
  return std::exchange(stage_times_, {});
}

void CudaBackend::drop_plans() {
  for (const Plan& plan : plans_) {
    if (plan.graph != nullptr) device_->drop(plan.graph);
  }
  plans_.clear();
  step_.forget();
}

#define SYNOD_PRIMITIVE(Op) template void CudaBackend::record<Op>(const Op& op);
#define SYNOD_FUSED(Op) template void CudaBackend::record<Op>(const Op& op);
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

}  // namespace synod::cuda
