#include "models/quant_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace synod {
namespace {

using nlohmann::json;

constexpr int64_t kMaxGroup = 1 << 20;

// A member that is an object or an array, at the top or in text_config; null when absent.
const json& find_member(const json& config, const char* key) {
  static const json kNull;
  if (!config.is_object()) return kNull;
  if (const auto it = config.find(key); it != config.end() && !it->is_null()) return *it;
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return kNull;
  const auto it = text->find(key);
  return it == text->end() ? kNull : *it;
}

std::optional<int64_t> positive(const json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return std::nullopt;
  if (!it->is_number_integer() || it->get<int64_t>() < 1 || it->get<int64_t>() > kMaxGroup) {
    bad_file("config.json: {}.{}: expected 1 to {}, got {}", where, key, kMaxGroup, it->dump());
  }
  return it->get<int64_t>();
}

MlxQuant::Mode mlx_mode(const json& value, const std::string& where) {
  constexpr std::array<std::pair<const char*, MlxQuant::Mode>, 4> kModes = {
      {{"affine", MlxQuant::Mode::kAffine},
       {"mxfp4", MlxQuant::Mode::kMxFp4},
       {"mxfp8", MlxQuant::Mode::kMxFp8},
       {"nvfp4", MlxQuant::Mode::kNvFp4}}};
  for (const auto& [text, mode] : kModes) {
    if (value == text) return mode;
  }
  bad_file("config.json: {}.mode: expected affine, mxfp4, mxfp8 or nvfp4, got {}", where, value.dump());
}

MlxQuant read_mlx(const json& object, MlxQuant defaults, const std::string& where) {
  if (const auto it = object.find("mode"); it != object.end() && !it->is_null()) {
    defaults.mode = mlx_mode(*it, where);
  }
  if (const auto group = positive(object, "group_size", where)) defaults.group = group;
  if (const auto bits = positive(object, "bits", where)) defaults.bits = bits;
  return defaults;
}

void check_method(const json& config) {
  const auto it = config.find("quant_method");
  if (it == config.end() || it->is_null()) return;
  constexpr std::array<const char*, 4> kKnown = {"fp8", "compressed-tensors", "modelopt", "modelopt_fp4"};
  const bool known = std::any_of(kKnown.begin(), kKnown.end(), [&](const char* name) { return *it == name; });
  if (known) return;
  bad_file(
      "config.json: quantization_config.quant_method: expected fp8, compressed-tensors or modelopt (or an "
      "MLX "
      "file), got {}; use another conversion of this model",
      it->dump());
}

// {"config_groups": {"group_0": {"weights": {"group_size": 16, ...}}}}
std::optional<int64_t> compressed_group(const json& config) {
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object()) return std::nullopt;
  for (const auto& [key, group] : groups->items()) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) continue;
    const auto size = positive(group["weights"], "group_size", "quantization_config.config_groups." + key);
    if (size) return size;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> stored_architectures(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  if (checkpoint.container() == Checkpoint::Container::kGguf) {
    if (auto name = checkpoint.gguf().find_string("general.architecture")) names.push_back(std::move(*name));
    return names;
  }
  const json& config = checkpoint.config();
  const auto text = config.find("text_config");
  for (const json* object : {&config, text == config.end() ? nullptr : &*text}) {
    if (object == nullptr || !object->is_object()) continue;
    const auto type = object->find("model_type");
    if (type != object->end() && type->is_string()) names.push_back(type->get<std::string>());
  }
  return names;
}

QuantConfig QuantConfig::read(const Checkpoint& checkpoint) {
  QuantConfig result;
  if (checkpoint.container() == Checkpoint::Container::kGguf) return result;

  const json& method = find_member(checkpoint.config(), "quantization_config");
  if (method.is_object()) {
    check_method(method);
    if (const auto it = method.find("weight_block_size"); it != method.end() && !it->is_null()) {
      const bool pair =
          it->is_array() && it->size() == 2 && std::all_of(it->begin(), it->end(), [](const json& n) {
            return n.is_number_integer() && n.get<int64_t>() >= 1 && n.get<int64_t>() <= kMaxGroup;
          });
      if (!pair) {
        bad_file("config.json: quantization_config.weight_block_size: expected two positive sizes, got {}",
                 it->dump());
      }
      result.tile_out = it->at(0).get<int64_t>();
      result.tile_in = it->at(1).get<int64_t>();
    }
    auto group = compressed_group(method);
    if (!group && method.contains("quant_algo"))
      group = positive(method, "group_size", "quantization_config");
    if (group) result.nvfp4_group = *group;
  }

  const json& mlx = find_member(checkpoint.config(), "quantization");
  if (!mlx.is_object()) return result;
  result.mlx_default_ = read_mlx(mlx, {}, "quantization");
  for (const auto& [key, value] : mlx.items()) {
    if (value.is_object()) {
      result.mlx_modules_[key] = read_mlx(value, result.mlx_default_, "quantization." + key);
    } else if (value.is_boolean()) {
      result.mlx_modules_[key] = value.get<bool>() ? std::optional(result.mlx_default_) : std::nullopt;
    }
  }
  return result;
}

std::optional<MlxQuant> QuantConfig::mlx(std::string_view module) const {
  const auto it = mlx_modules_.find(module);
  return it == mlx_modules_.end() ? std::optional(mlx_default_) : it->second;
}

}  // namespace synod
