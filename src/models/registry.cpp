// The architectures synod knows. A new one is a folder and a line here.
#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "models/deepseek4/deepseek4.h"
#include "models/gemma4/gemma4.h"
#include "models/model.h"
#include "models/quant_config.h"

namespace synod {
namespace {

bool is_named(const Architecture& architecture, Checkpoint::Container container, std::string_view name) {
  if (container == Checkpoint::Container::kGguf) return architecture.name == name;
  const auto& types = architecture.hf_model_types;
  return std::find(types.begin(), types.end(), name) != types.end();
}

std::string supported(Checkpoint::Container container) {
  std::string text;
  for (const Architecture* architecture : architectures()) {
    std::vector<std::string_view> names = architecture->hf_model_types;
    if (container == Checkpoint::Container::kGguf) names = {architecture->name};
    for (const std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  }
  return text;
}

// V4.1 shares the name's beginning but not the layers: shared compressors, n-gram tables.
bool is_deepseek_v41(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"deepseek_v41", "deepseek_v4_1", "deepseek41",
                                                      "deepseek4_1", "deepseek4.1"};
  return std::any_of(kNames.begin(), kNames.end(), [&](std::string_view n) { return name.starts_with(n); });
}

}  // namespace

std::span<const Architecture* const> architectures() {
  static const std::array<const Architecture*, 2> kAll = {&gemma4::architecture(),
                                                          &deepseek4::architecture()};
  return kAll;
}

const Architecture& find_architecture(const Checkpoint& checkpoint) {
  const Checkpoint::Container container = checkpoint.container();
  const bool gguf = container == Checkpoint::Container::kGguf;
  const std::vector<std::string> names = stored_architectures(checkpoint);
  for (const Architecture* architecture : architectures()) {
    for (const std::string& name : names) {
      if (is_named(*architecture, container, name)) return *architecture;
    }
  }
  const std::string file = checkpoint.path().string();
  const char* key = gguf ? "general.architecture" : "config.json's model_type";
  if (names.empty()) bad_file("{}: {} is missing; supported are {}", file, key, supported(container));
  if (is_deepseek_v41(names.front())) {
    bad_file(
        "{}: {} is {}: DeepSeek-V4.1 is another architecture than DeepSeek-V4 (shared compressors, n-gram "
        "tables) and is not supported",
        file, key, names.front());
  }
  bad_file("{}: {}: expected one of {}, got '{}'", file, key, supported(container), names.front());
}

std::unique_ptr<Model> load_model(const Checkpoint& checkpoint, const ModelOptions& options) {
  return find_architecture(checkpoint).load(checkpoint, options);
}

}  // namespace synod
