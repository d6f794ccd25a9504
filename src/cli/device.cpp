#include "cli/device.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "cuda/loader.h"
#include "engine/dry_steps.h"

namespace synod::cli {

std::unique_ptr<Backend> open_cuda(bool automatic) {
  const std::vector<std::filesystem::path> places = cuda::plugin_places();
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

}  // namespace synod::cli
