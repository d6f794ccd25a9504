#include "cuda/loader.h"

#include <dlfcn.h>

#include <array>
#include <system_error>

#include "base/error.h"

namespace synod::cuda {

namespace fs = std::filesystem;

std::vector<fs::path> plugin_places() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  return {program / kPluginFile, program / ".." / "lib" / kPluginFile};
}

std::string plugin_mismatch(const PluginApi* api) {
  if (api == nullptr || api->create == nullptr) return "it has no entry point of this version";
  if (api->version != kPluginVersion) {
    return fmt::format("expected interface version {}, got {}", kPluginVersion, api->version);
  }
  if (api->build == nullptr || std::string_view(api->build) != plugin_build()) {
    return fmt::format("expected build {}, got {}", plugin_build(),
                       api->build == nullptr ? "none" : api->build);
  }
  return {};
}

std::unique_ptr<DeviceBackend> load_backend(std::span<const fs::path> places) {
  std::error_code ignored;
  std::string looked;
  for (const fs::path& place : places) {
    const std::string path = place.lexically_normal().string();
    looked += "\n  " + path;
    if (!fs::exists(place, ignored)) continue;
    // Stays open for the life of the program: its kernels and objects are in use until exit.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(Error::Kind::kNoMemory, "cuda: cannot open {}: {}", path, dlerror());
    const auto entry = reinterpret_cast<PluginEntry>(dlsym(library, kPluginEntry));
    const PluginApi* api = entry == nullptr ? nullptr : entry();
    if (const std::string wrong = plugin_mismatch(api); !wrong.empty()) {
      fail(Error::Kind::kNoMemory, "cuda: {} does not belong to this program: {}; build both together", path,
           wrong);
    }
    std::array<char, 512> message{};
    DeviceBackend* backend = api->create(message.data(), message.size());
    if (backend == nullptr) fail(Error::Kind::kNoMemory, "{}", message.data());
    return std::unique_ptr<DeviceBackend>(backend);
  }
  fail(Error::Kind::kNotFound, "backend cuda: {} is in none of:{}\nbuild it with nvcc: cmake --preset cuda",
       kPluginFile, looked);
}

}  // namespace synod::cuda
