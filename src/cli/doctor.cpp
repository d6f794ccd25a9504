// Checks what decides whether and how fast a model runs here, and says what to do about it.
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "engine/memory_plan.h"

namespace synod::cli {
namespace {

enum class Verdict { kOk, kNote, kProblem };

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string found;
  std::string advice;  // "" = nothing to do
};

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// "model name : ..." of /proc/cpuinfo.
std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

int64_t meminfo_kib(const std::string& key) {
  std::ifstream in("/proc/meminfo");
  std::string word;
  int64_t value = 0;
  std::string unit;
  while (in >> word >> value) {
    std::getline(in, unit);
    if (word == key + ":") return value;
  }
  return 0;
}

Finding check_cpu() {
  std::string tables;
  for (const auto* table : cpu::available_tables())
    tables += (tables.empty() ? "" : ", ") + std::string(table->name);
  Finding f{"processor", Verdict::kOk, fmt::format("{}; kernels: {}", cpu_name(), tables), ""};
  if (cpu::available_tables().size() == 1) {
    f.verdict = Verdict::kProblem;
    f.advice =
        "only the plain kernels run here, ten times slower; use a processor (or a virtual machine) with AVX2";
  }
  return f;
}

Finding check_threads() {
  const unsigned logical = std::thread::hardware_concurrency();
  return {"threads", Verdict::kOk,
          fmt::format("{} of {} logical processors are used (physical cores within affinity and quota)",
                      cpu::default_threads(), logical),
          ""};
}

Finding check_memory() {
  const int64_t total = meminfo_kib("MemTotal") << 10;
  const int64_t available = available_memory();
  Finding f{"memory", Verdict::kOk,
            fmt::format("{} available of {}", human_bytes(available), human_bytes(total)), ""};
  if (available < total / 4) {
    f.verdict = Verdict::kNote;
    f.advice = "most of the memory is taken; close programs or raise the container's limit";
  }
  if (meminfo_kib("SwapTotal") > 0 && meminfo_kib("SwapFree") < meminfo_kib("SwapTotal") / 2) {
    f.verdict = Verdict::kNote;
    f.advice = "the machine swaps; a model that does not fit runs at the speed of the disk";
  }
  return f;
}

Finding check_huge_pages() {
  const std::string mode = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (mode.empty()) return {"huge pages", Verdict::kNote, "not offered by this kernel", ""};
  Finding f{"huge pages", Verdict::kOk, mode, ""};
  if (mode.find("[never]") != std::string::npos) {
    f.verdict = Verdict::kNote;
    f.advice =
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root) makes large models faster";
  }
  return f;
}

Finding check_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Finding f{"open files", Verdict::kOk,
            fmt::format("{} (can be raised to {})", limit.rlim_cur, limit.rlim_max), ""};
  constexpr rlim_t kFew = 4096;
  if (limit.rlim_max < kFew) {
    f.verdict = Verdict::kNote;
    f.advice =
        "serve holds fewer connections than this; raise it with `ulimit -n` or LimitNOFILE of the service";
  }
  return f;
}

Finding check_locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool is_unlimited = limit.rlim_cur == RLIM_INFINITY;
  return {"locked memory", Verdict::kOk,
          is_unlimited ? "unlimited" : human_bytes(static_cast<int64_t>(limit.rlim_cur)), ""};
}

Finding check_driver() {
  std::error_code ignored;
  const bool has_device = std::filesystem::exists("/dev/nvidia0", ignored);
  void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  const bool has_library = library != nullptr;
  if (library != nullptr) ::dlclose(library);
  const std::string version = first_line("/proc/driver/nvidia/version");
  if (has_device && has_library)
    return {"NVIDIA driver", Verdict::kOk, version.empty() ? "present" : version, ""};
  if (has_device) {
    return {"NVIDIA driver", Verdict::kProblem, "a device, but no libcuda.so.1",
            "install the driver's user libraries (in containers: the NVIDIA container toolkit)"};
  }
  return {"NVIDIA driver", Verdict::kNote, "no device; models run on the processor", ""};
}

Finding check_model_folder(const std::filesystem::path& folder) {
  std::error_code error;
  int64_t n_files = 0;
  int64_t bytes = 0;
  for (std::filesystem::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const auto extension = it->path().extension();
    if (extension != ".gguf" && extension != ".safetensors") continue;
    std::error_code ignored;
    const auto size = std::filesystem::file_size(it->path(), ignored);
    ++n_files;
    if (!ignored) bytes += static_cast<int64_t>(size);
  }
  const std::string name = "models in " + folder.string();
  if (error && n_files == 0) return {name, Verdict::kNote, "not there", ""};
  return {name, Verdict::kOk, fmt::format("{} files, {}", n_files, human_bytes(bytes)), ""};
}

std::vector<std::filesystem::path> model_folders() {
  std::vector<std::filesystem::path> folders;
  if (const char* hub = std::getenv("HF_HUB_CACHE")) {
    folders.emplace_back(hub);
  } else if (const char* home = std::getenv("HF_HOME")) {
    folders.push_back(std::filesystem::path(home) / "hub");
  } else if (const char* user = std::getenv("HOME")) {
    folders.push_back(std::filesystem::path(user) / ".cache" / "huggingface" / "hub");
  }
  return folders;
}

// Opens the model and plans its memory, without loading it.
Finding check_model(const Options& options) {
  try {
    const std::filesystem::path path = model_path(options);
    const Checkpoint checkpoint = Checkpoint::open(path);
    const std::unique_ptr<Model> model = load_model(checkpoint, options.model_options());
    constexpr int64_t kContext = 4096;
    const MemoryPlan plan =
        plan_memory(*model, std::min(model->info().context_length, kContext), options.chunk);
    Finding f{"model", Verdict::kOk, fmt::format("{}: {}", path.string(), plan.describe()), ""};
    if (plan.total() > available_memory()) {
      f.verdict = Verdict::kProblem;
      f.advice = "it does not fit; take a smaller quantization (see `synod quantize`)";
    }
    return f;
  } catch (const Error& error) {
    return {"model", Verdict::kProblem, error.what(), "give the path of a .gguf file or a model folder"};
  }
}

const char* word(Verdict verdict) {
  return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kNote ? "note" : "problem";
}

}  // namespace

int doctor_verb(const Options& options) {
  std::vector<Finding> findings = {check_cpu(),   check_threads(),       check_memory(), check_huge_pages(),
                                   check_files(), check_locked_memory(), check_driver()};
  for (const auto& folder : model_folders()) findings.push_back(check_model_folder(folder));
  findings.push_back(check_model(options));
  bool has_problem = false;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& f : findings) {
    has_problem = has_problem || f.verdict == Verdict::kProblem;
    if (options.json) {
      list.push_back(
          {{"name", f.name}, {"verdict", word(f.verdict)}, {"found", f.found}, {"advice", f.advice}});
      continue;
    }
    std::printf("%-8s %s: %s\n", word(f.verdict), f.name.c_str(), f.found.c_str());
    if (!f.advice.empty()) std::printf("         -> %s\n", f.advice.c_str());
  }
  if (options.json) {
    const nlohmann::ordered_json out = {
        {"schema_version", 1}, {"healthy", !has_problem}, {"checks", std::move(list)}};
    std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return has_problem ? 1 : 0;
}

}  // namespace synod::cli
