// The entry point of libsynod_cuda.so. The program opens the plugin at run time, so that it starts on
// machines without a driver. Backend objects cross the border as C++ objects: plugin and program must come
// from one build, which `build` tells.
#pragma once

#include <cstddef>
#include <cstdint>

namespace synod::cuda {

class DeviceBackend;

inline constexpr int32_t kPluginVersion = 1;
inline constexpr const char* kPluginFile = "libsynod_cuda.so";
inline constexpr const char* kPluginEntry = "synod_cuda_plugin_v1";

struct PluginApi {
  int32_t version = kPluginVersion;
  const char* build = nullptr;  // version and compiler of the program it belongs to
  // Null with a message (cut to `size`) when no device can be used.
  DeviceBackend* (*create)(char* message, size_t size) = nullptr;
};

// extern "C" const PluginApi* synod_cuda_plugin_v1();
using PluginEntry = const PluginApi* (*)();

// What both sides compare.
inline const char* plugin_build() { return SYNOD_BUILD_ID; }

}  // namespace synod::cuda
