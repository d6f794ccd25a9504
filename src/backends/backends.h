// Which backend runs a model: the one place where the program and the library choose by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/memory_plan.h"
#include "models/model.h"
#include "ops/backend.h"

namespace synod {

struct BackendOptions {
  std::string name = "auto";  // "auto", "cuda", "cpu", "ref"; auto = the fastest that works here
  int64_t n_threads = 0;      // of cpu; 0 = physical cores within affinity and quota
  std::string isa;            // of cpu; "" = the best of this machine
  int64_t moe_threshold = 0;  // rows per expert from which experts run grouped; 0 = the device's default
  std::filesystem::path plugin_dir;  // where the CUDA plugin lies; "" = beside the program or in its ../lib
};

// Throws kUsage for a name there is not, kNotFound and kNoMemory where "cuda" was asked for and cannot be
// had. "auto" warns when there is a plugin without a usable device, and takes the CPU.
std::unique_ptr<Backend> open_backend(const BackendOptions& options);

// Puts the model's weights on the backend when it is a device: refuses first when weights, cache and scratch
// of the plan exceed what is free (unless `force`). False when the backend reads weights from host memory.
bool place_weights(const Model& model, Backend& backend, MemoryPlan plan, bool force);

}  // namespace synod
