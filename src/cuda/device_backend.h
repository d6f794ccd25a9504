// What a device backend offers beyond Backend: weights that it must hold before the first step.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/weight_set.h"
#include "ops/backend.h"
#include "ops/device_memory.h"

namespace synod::cuda {

class DeviceBackend : public Backend, public DeviceMemory {
 public:
  virtual std::string device_name() const = 0;
  virtual int64_t free_bytes() const = 0;  // of device memory
  virtual int64_t total_bytes() const = 0;

  // Bytes of device memory that `place_all` takes.
  virtual int64_t planned_bytes(const WeightSet& weights) const = 0;
  // Uploads all constants of a model; replaces those of the model before. The host memory they came from must
  // stay mapped: ops name weights by it. Throws kNoMemory before anything is uploaded when it does not fit.
  virtual void place_all(const WeightSet& weights) = 0;

  // Seconds the device spent per label since the last call, in order of first use. Steps are timed when this
  // was called once; their launches then run one by one, not as a graph.
  struct StageTime {
    Label label;
    double seconds = 0.0;
    int64_t n_launches = 0;
  };
  virtual std::vector<StageTime> take_stage_times() = 0;
  virtual void stop_stage_times() = 0;
};

}  // namespace synod::cuda
