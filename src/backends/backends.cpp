#include "backends/backends.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "cpu/cpu_backend.h"
#include "cuda/loader.h"
#include "engine/dry_steps.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

constexpr int64_t kMostThreads = 1024;

// For `automatic` null where there is no plugin or no usable device.
std::unique_ptr<Backend> open_cuda(const BackendOptions& options, bool automatic) {
  std::vector<std::filesystem::path> places = cuda::plugin_places();
  if (!options.plugin_dir.empty()) places = {options.plugin_dir / cuda::kPluginFile};
  if (!automatic) return cuda::load_backend(places);
  std::error_code ignored;
  if (std::ranges::none_of(places,
                           [&](const auto& place) { return std::filesystem::exists(place, ignored); })) {
    return nullptr;
  }
  try {
    return cuda::load_backend(places);
  } catch (const Error& error) {
    log_warning("{}; running on the CPU", error.what());
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<Backend> open_backend(const BackendOptions& options) {
  if (options.n_threads < 0 || options.n_threads > kMostThreads) {
    fail(Error::Kind::kUsage, "threads must be 0 to {}, got {}", kMostThreads, options.n_threads);
  }
  if (options.name == "ref") return std::make_unique<RefBackend>();
  const bool automatic = options.name == "auto";
  if (!automatic && options.name != "cuda" && options.name != "cpu") {
    fail(Error::Kind::kUsage, "backend \"{}\": expected auto, cuda, cpu or ref", options.name);
  }
  if (options.name != "cpu") {
    if (auto device = open_cuda(options, automatic)) return device;
  }
  auto cpu = std::make_unique<CpuBackend>(std::make_unique<RefBackend>(),
                                          CpuOptions{.n_threads = static_cast<int>(options.n_threads),
                                                     .isa = options.isa,
                                                     .moe_threshold = options.moe_threshold});
  log_info("cpu: {} kernels, {} threads", cpu->isa(), cpu->n_threads());
  return cpu;
}

bool place_weights(const Model& model, Backend& backend, MemoryPlan plan, bool force) {
  if (backend.name() != "cuda") return false;
  auto& device = static_cast<cuda::DeviceBackend&>(backend);
  cuda::WeightCollector collector;
  dry_steps(model, collector);
  plan.weight_bytes = device.planned_bytes(collector.weights());
  if (!force) require_fits(plan, device.free_bytes());
  device.place_all(collector.weights());
  log_info("{}: {} of weights placed, {} free", device.device_name(), human_bytes(plan.weight_bytes),
           human_bytes(device.free_bytes()));
  return true;
}

}  // namespace synod
