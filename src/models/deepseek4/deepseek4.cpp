#include "models/deepseek4/deepseek4.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "models/deepseek4/config.h"
#include "models/deepseek4/deepseek4_model.h"
#include "models/deepseek4/dialogue.h"
#include "models/deepseek4/gguf_keys.h"
#include "models/deepseek4/metadata.h"
#include "models/deepseek4/specs.h"

namespace synod::deepseek4 {
namespace {

std::unique_ptr<Model> load(const Checkpoint& checkpoint, const ModelOptions& options) {
  Config config = Config::from(checkpoint);
  Weights weights = Weights::bind(checkpoint, weight_specs(config), dialect_info(config.n_layers));
  return std::make_unique<Deepseek4>(std::move(config), std::move(weights), options, model_name(checkpoint),
                                     texts_of(checkpoint));
}

// Types as conversion would choose them: what must not be a block keeps 16 bits, hyper-connections 32.
DType planned_type(const WeightSpec& spec, DType type) {
  if (spec.quantizable || !is_block_type(type)) return type;
  return spec.role.find("hc_") != std::string::npos ? DType::kF32 : DType::kBF16;
}

std::unique_ptr<Model> plan(const std::string& config_json, DType type, const ModelOptions& options) {
  Config config = Config::from_json(parse_json(config_json, "config.json"), "config.json");
  Weights weights = Weights::planned(weight_specs(config),
                                     [type](const WeightSpec& spec) { return planned_type(spec, type); });
  return std::make_unique<Deepseek4>(std::move(config), std::move(weights), options, "planned deepseek4",
                                     default_texts());
}

std::vector<WeightSpec> specs(const Checkpoint& checkpoint) { return weight_specs(Config::from(checkpoint)); }

std::vector<WeightSpec> config_specs(const std::string& config_json) {
  return weight_specs(Config::from_json(parse_json(config_json, "config.json"), "config.json"));
}

DialectInfo dialects(const Checkpoint& checkpoint) { return dialect_info(Config::from(checkpoint).n_layers); }

void write_metadata(const Checkpoint& checkpoint, GgufMetadata& out) {
  write_config(Config::from(checkpoint), out);
  out.set_string("general.name", model_name(checkpoint));
}

std::unique_ptr<Dialogue> default_dialogue() { return make_dialogue(default_texts()); }

// Rotation speeds follow from the keys.
std::vector<ComputedTensor> computed_tensors(const Checkpoint&) { return {}; }

}  // namespace

const Architecture& architecture() {
  static const Architecture instance{.name = kArchitecture,
                                     .hf_model_types = {"deepseek_v4"},
                                     .load = load,
                                     .plan = plan,
                                     .specs = specs,
                                     .config_specs = config_specs,
                                     .dialects = dialects,
                                     .write_metadata = write_metadata,
                                     .computed_tensors = computed_tensors,
                                     .dialogue = default_dialogue};
  return instance;
}

}  // namespace synod::deepseek4
