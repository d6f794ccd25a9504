#include "models/gemma4/gemma4.h"

#include <nlohmann/json.hpp>

#include "models/gemma4/dialogue.h"
#include "models/gemma4/metadata.h"
#include "models/gemma4/model.h"
#include "models/gemma4/specs.h"

namespace synod::gemma4 {
namespace {

// The small models (those with per-layer embeddings) leave the empty channel out.
DialogueFormat default_format(const Config& config) {
  return {.empty_channel = config.d_ple == 0, .newline_after_think = true};
}

std::unique_ptr<Model> load(const Checkpoint& checkpoint, const ModelOptions& options) {
  Config config = read_config(checkpoint);
  const std::vector<WeightSpec> specs = weight_specs(config);
  Weights weights = Weights::bind(checkpoint, specs, dialects(config));
  const DialogueFormat format = format_of_template(checkpoint.chat_template(), default_format(config));
  return std::make_unique<Gemma4>(std::move(config), std::move(weights), options, model_name(checkpoint),
                                  format);
}

std::unique_ptr<Model> plan(const std::string& config_json, DType type, const ModelOptions& options) {
  Config config = config_from_json(parse_json(config_json, "config.json"), "config.json");
  const std::vector<WeightSpec> specs = weight_specs(config);
  Weights weights = Weights::planned(
      specs, [type](const WeightSpec& spec) { return spec.quantizable ? type : DType::kF32; });
  const DialogueFormat format = default_format(config);
  return std::make_unique<Gemma4>(std::move(config), std::move(weights), options, "planned", format);
}

std::vector<WeightSpec> specs(const Checkpoint& checkpoint) { return weight_specs(read_config(checkpoint)); }

std::vector<WeightSpec> config_specs(const std::string& config_json) {
  return weight_specs(config_from_json(parse_json(config_json, "config.json"), "config.json"));
}

DialectInfo dialects_of(const Checkpoint& checkpoint) { return dialects(read_config(checkpoint)); }

std::unique_ptr<Dialogue> default_dialogue() { return make_dialogue({}); }

}  // namespace

std::vector<float> rope_freq_divisors(const Checkpoint& checkpoint) {
  return rope_freq_divisors(read_config(checkpoint));
}

const Architecture& architecture() {
  static const Architecture gemma4{
      .name = "gemma4",
      .hf_model_types = {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"},
      .load = load,
      .plan = plan,
      .specs = specs,
      .config_specs = config_specs,
      .dialects = dialects_of,
      .write_metadata = write_metadata,
      .computed_tensors = computed_tensors,
      .dialogue = default_dialogue,
  };
  return gemma4;
}

}  // namespace synod::gemma4
