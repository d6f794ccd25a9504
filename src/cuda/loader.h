// Opens the CUDA plugin.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "cuda/device_backend.h"
#include "cuda/plugin.h"

namespace synod::cuda {

// Where the plugin may lie: beside the program, and in ../lib of it.
std::vector<std::filesystem::path> plugin_places();

// Opens the first plugin found. Throws kNotFound when there is none, kNoMemory (the exit code of a device
// that cannot be used) with the reason when it does not belong to this program or finds no usable device.
std::unique_ptr<DeviceBackend> load_backend(std::span<const std::filesystem::path> places);

// What is wrong with a plugin's answer, or empty.
std::string plugin_mismatch(const PluginApi* api);

}  // namespace synod::cuda
