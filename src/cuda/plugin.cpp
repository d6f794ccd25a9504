#include "cuda/plugin.h"

#include <cstdio>
#include <exception>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_device.h"

namespace synod::cuda {
namespace {

DeviceBackend* create(char* message, size_t size) {
  try {
    return new CudaBackend(make_cuda_device({}), {});  // the caller owns it
  } catch (const std::exception& error) {
    std::snprintf(message, size, "%s", error.what());
    return nullptr;
  }
}

}  // namespace
}  // namespace synod::cuda

extern "C" __attribute__((visibility("default"))) const synod::cuda::PluginApi* synod_cuda_plugin_v1() {
  static const synod::cuda::PluginApi api{.version = synod::cuda::kPluginVersion,
                                          .build = synod::cuda::plugin_build(),
                                          .create = synod::cuda::create};
  return &api;
}
