// The CUDA backend. Ops are recorded (step.h) and run at join(): a step that looks like an earlier one
// replays that one's graph, so a decode step costs one launch. Ops therefore never read device data on the
// host, and host memory that an op points to must stand until join().
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/builder.h"
#include "cuda/device_backend.h"
#include "cuda/scratch.h"
#include "cuda/step.h"
#include "cuda/weight_store.h"

namespace synod::cuda {

struct CudaBackendOptions {
  bool graphs = true;  // replay repeated steps as graphs
};

class CudaBackend final : public DeviceBackend, public StepReplay {
 public:
  CudaBackend(std::unique_ptr<Device> device, const CudaBackendOptions& options);
  ~CudaBackend() override;

  std::string_view name() const override { return "cuda"; }
  std::string device_name() const override { return device_->name(); }
  int64_t free_bytes() const override { return device_->free_bytes(); }
  int64_t total_bytes() const override { return device_->total_bytes(); }

  Buffer allocate(int64_t bytes) override;
  Workspace& workspace() override { return workspace_; }
  void begin(const Label& label) override;
  void end() override;
  void join() override;
  // Also forgets ops that were issued and never joined: a step that failed midway must not run later.
  StatusReport take_status() override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  bool replay(const StepCall& call) override;

  int64_t planned_bytes(const WeightSet& weights) const override {
    return WeightStore::planned_bytes(weights);
  }
  void place_all(const WeightSet& weights) override;
  std::vector<StageTime> take_stage_times() override;
  void stop_stage_times() override { timed_ = false; }

#define SYNOD_PRIMITIVE(Op) \
  void run(const Op& op) override { record(op); }
#define SYNOD_FUSED(Op) \
  void run(const Op& op) override { record(op); }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

 private:
  // A kind of step and how to run it.
  struct Plan {
    std::vector<uint64_t> key;
    std::vector<PlannedLaunch> launches;
    Device::Graph graph = nullptr;
    int64_t uses = 0;
  };

  template <typename Op>
  void record(const Op& op);
  uint32_t label_index();
  Plan& plan_for_step();
  void run_plan(Plan& plan);
  void run_timed(const Plan& plan);
  void drop_plans();
  static void release(std::byte* data, int64_t bytes);

  std::unique_ptr<Device> device_;
  CudaBackendOptions options_;
  WeightStore weights_;
  Scratch scratch_;
  Step step_;
  Workspace workspace_;
  std::list<Plan> plans_;  // last used first
  std::byte* tickets_ = nullptr;

  std::vector<Label> labels_;            // open labels
  std::vector<Label> step_labels_;       // of this step, by index
  std::optional<uint32_t> label_index_;  // of the current label, once an op had it
  StatusReport status_;
  bool timed_ = false;
  std::vector<StageTime> stage_times_;
};

}  // namespace synod::cuda
