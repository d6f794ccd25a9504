// config.json of Hugging Face, MLX and NVFP4 checkpoints: one layout, `text_config` or the top level.
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "models/gemma4/config.h"

namespace synod::gemma4 {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// An object of the file with typed getters. JSON null counts as absent.
class Fields {
 public:
  Fields(const json& object, std::string source) : object_(object), source_(std::move(source)) {
    if (!object.is_object()) bad_file("{}: expected a JSON object, got {}", source_, shown(object));
  }

  const json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::optional<int64_t> find_int(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    // Unsigned values above 2^63 wrap to negative ones here, which every range check refuses.
    if (!value->is_number_integer()) wrong(key, "an integer", *value);
    return value->get<int64_t>();
  }
  int64_t get_int(const char* key) const {
    const auto value = find_int(key);
    if (!value) bad_file("{}: {} is missing", source_, key);
    return *value;
  }
  double get_float(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) wrong(key, "a number", *value);
    return value->get<double>();
  }
  bool get_bool(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) wrong(key, "true or false", *value);
    return value->get<bool>();
  }
  std::string get_string(const char* key, const char* fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) wrong(key, "a string", *value);
    return value->get<std::string>();
  }
  std::optional<Fields> find_object(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return Fields(*value, fmt::format("{}: {}", source_, key));
  }
  [[noreturn]] void wrong(const char* key, std::string_view expected, const json& got) const {
    bad_file("{}: {}: expected {}, got {}", source_, key, expected, shown(got));
  }
  const std::string& source() const { return source_; }

 private:
  const json& object_;
  std::string source_;
};

std::vector<bool> sliding_pattern(const Fields& fields, int64_t n_layers) {
  const json* types = fields.find("layer_types");
  if (types == nullptr) return default_sliding_pattern(n_layers);
  if (!types->is_array() || types->size() != static_cast<size_t>(n_layers)) {
    fields.wrong("layer_types", fmt::format("an array of num_hidden_layers = {} names", n_layers), *types);
  }
  std::vector<bool> sliding;
  for (const json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      fields.wrong("layer_types", "\"sliding_attention\" or \"full_attention\"", type);
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

// Head size and key/value heads of a layer: its own entry in per_layer_config, else the global_* fields for
// full layers (the head count under attention_k_eq_v only), else the general ones.
class Geometry {
 public:
  explicit Geometry(const Fields& fields)
      : per_layer_(fields.find_object("per_layer_config")),
        head_dim_(fields.get_int("head_dim")),
        n_kv_heads_(fields.get_int("num_key_value_heads")),
        global_head_dim_(fields.find_int("global_head_dim")) {
    if (fields.get_bool("attention_k_eq_v", false)) {
      global_n_kv_heads_ = fields.find_int("num_global_key_value_heads");
    }
    if (!per_layer_ && !global_head_dim_) global_head_dim_ = 512;
  }

  int64_t head_dim(int64_t layer, bool sliding) const {
    return pick(layer, sliding, "head_dim", global_head_dim_, head_dim_);
  }
  int64_t n_kv_heads(int64_t layer, bool sliding) const {
    return pick(layer, sliding, "num_key_value_heads", global_n_kv_heads_, n_kv_heads_);
  }

 private:
  int64_t pick(int64_t layer, bool sliding, const char* key, std::optional<int64_t> global,
               int64_t general) const {
    if (sliding) global.reset();
    const auto entry = per_layer_ ? per_layer_->find_object(std::to_string(layer).c_str()) : std::nullopt;
    const auto own = entry ? entry->find_int(key) : std::nullopt;
    if (own && global && *own != *global) {
      bad_file("{}: {}: {} contradicts the field for all full layers, {}", entry->source(), key, *own,
               *global);
    }
    return own ? *own : global.value_or(general);
  }

  std::optional<Fields> per_layer_;
  int64_t head_dim_;
  int64_t n_kv_heads_;
  std::optional<int64_t> global_head_dim_;
  std::optional<int64_t> global_n_kv_heads_;
};

// The head size of a kind: rotation is set up per kind, so its layers must agree.
void set_head_dim(Config& config, int64_t layer, int64_t head_dim, const std::string& source) {
  config.layers[static_cast<size_t>(layer)].head_dim = head_dim;
  const bool sliding = config.layer(layer).sliding;
  int64_t& common = sliding ? config.sliding_head_dim : config.full_head_dim;
  if (common == 0) common = head_dim;
  if (common != head_dim) {
    bad_file("{}: layer {}: head_dim: expected {} as in the other {} layers, got {}", source, layer, common,
             sliding ? "sliding" : "full", head_dim);
  }
}

void read_layers(const Fields& fields, Config& config) {
  const int64_t n_layers = fields.get_int("num_hidden_layers");
  if (n_layers < 1 || n_layers > 4096) {
    bad_file("{}: num_hidden_layers: expected 1 to 4096, got {}", fields.source(), n_layers);
  }
  const std::vector<bool> sliding = sliding_pattern(fields, n_layers);
  const Geometry geometry(fields);
  const bool k_eq_v = fields.get_bool("attention_k_eq_v", false);
  const bool double_wide = fields.get_bool("use_double_wide_mlp", false);
  const int64_t d_ff = fields.get_int("intermediate_size");
  if (d_ff < 1 || d_ff > (int64_t{1} << 20)) {
    bad_file("{}: intermediate_size: expected 1 to 1048576, got {}", fields.source(), d_ff);
  }
  config.n_kv_shared_layers = fields.find_int("num_kv_shared_layers").value_or(0);
  config.layers.resize(static_cast<size_t>(n_layers));
  for (int64_t i = 0; i < n_layers; ++i) {
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layer.sliding = sliding[static_cast<size_t>(i)];
    layer.n_kv_heads = geometry.n_kv_heads(i, layer.sliding);
    set_head_dim(config, i, geometry.head_dim(i, layer.sliding), fields.source());
  }
  if (config.sliding_head_dim == 0) config.sliding_head_dim = geometry.head_dim(n_layers, true);
  assign_donors(config, fields.source());
  for (LayerConfig& layer : config.layers) {
    layer.k_eq_v = k_eq_v && !layer.sliding && layer.owns_kv;
    layer.d_ff = double_wide && !layer.owns_kv ? 2 * d_ff : d_ff;
  }
}

// One kind's rope parameters. The rotation type is fixed per kind; anything else would be read wrongly.
struct Rope {
  double theta, fraction, factor;
};
Rope read_rope(const Fields& fields, const char* kind, const char* type, Rope rope) {
  const auto all = fields.find_object("rope_parameters");
  const auto own = all ? all->find_object(kind) : std::nullopt;
  if (!own) return rope;
  if (own->get_string("rope_type", type) != type) {
    own->wrong("rope_type", fmt::format("\"{}\"", type), *own->find("rope_type"));
  }
  rope.theta = own->get_float("rope_theta", rope.theta);
  rope.fraction = own->get_float("partial_rotary_factor", rope.fraction);
  rope.factor = own->get_float("factor", rope.factor);
  if (!(rope.fraction > 0.0 && rope.fraction <= 1.0)) {
    own->wrong("partial_rotary_factor", "a number above 0, at most 1", *own->find("partial_rotary_factor"));
  }
  if (!std::isfinite(rope.factor) || rope.factor <= 0.0) {
    own->wrong("factor", "a finite number above 0", *own->find("factor"));
  }
  return rope;
}

void read_ropes(const Fields& fields, Config& config) {
  const Rope sliding = read_rope(fields, "sliding_attention", "default", {1e4, 1.0, 1.0});
  if (sliding.fraction != 1.0 || sliding.factor != 1.0) {
    bad_file(
        "{}: rope_parameters: sliding_attention: partial_rotary_factor and factor must be 1 for the rope "
        "type "
        "\"default\", got {} and {}",
        fields.source(), sliding.fraction, sliding.factor);
  }
  const Rope full = read_rope(fields, "full_attention", "proportional", {1e6, 0.25, 1.0});
  config.sliding_rope_theta = static_cast<float>(sliding.theta);
  config.full_rope_theta = static_cast<float>(full.theta);
  if (config.full_head_dim >= 2 && config.full_head_dim <= (int64_t{1} << 20)) {
    config.rope_divisors = proportional_divisors(config.full_head_dim, full.fraction, full.factor);
  }
}

void read_experts(const Fields& fields, Config& config) {
  if (!fields.get_bool("enable_moe_block", false)) return;
  config.n_experts = fields.get_int("num_experts");
  if (config.n_experts < 1)
    bad_file("{}: num_experts: expected at least 1, got {}", fields.source(), config.n_experts);
  config.n_experts_used = fields.get_int("top_k_experts");
  config.d_expert = fields.get_int("moe_intermediate_size");
}

void refuse_unsupported(const Fields& fields) {
  if (fields.get_string("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh") {
    fields.wrong("hidden_activation", "\"gelu_pytorch_tanh\"", *fields.find("hidden_activation"));
  }
  if (fields.get_bool("attention_bias", false)) fields.wrong("attention_bias", "false", json(true));
  if (fields.get_string("use_bidirectional_attention", "vision") != "vision") {
    fields.wrong("use_bidirectional_attention", "null or \"vision\"",
                 *fields.find("use_bidirectional_attention"));
  }
}

}  // namespace

Config config_from_json(const json& root, const std::string& source) {
  const Fields top(root, source);
  const auto text = top.find_object("text_config");
  const Fields& fields = text ? *text : top;
  refuse_unsupported(fields);

  Config config;
  config.d_model = fields.get_int("hidden_size");
  config.vocab_size = fields.get_int("vocab_size");
  config.context_length = fields.find_int("max_position_embeddings").value_or(131072);
  config.n_heads = fields.get_int("num_attention_heads");
  config.window = fields.find_int("sliding_window").value_or(512);
  config.d_ple = fields.find_int("hidden_size_per_layer_input").value_or(0);
  if (config.d_ple > 0) {
    config.ple_vocab_size = fields.find_int("vocab_size_per_layer_input").value_or(config.vocab_size);
  }
  config.rms_eps = static_cast<float>(fields.get_float("rms_norm_eps", 1e-6));
  if (fields.find("final_logit_softcapping") != nullptr) {
    config.soft_cap = static_cast<float>(fields.get_float("final_logit_softcapping", 0.0));
    if (!(config.soft_cap > 0.0F)) {
      fields.wrong("final_logit_softcapping", "null or a number above 0",
                   *fields.find("final_logit_softcapping"));
    }
  }
  config.tied_head = fields.get_bool("tie_word_embeddings", top.get_bool("tie_word_embeddings", true));
  read_layers(fields, config);
  read_ropes(fields, config);
  read_experts(fields, config);
  validate(config, fields.source());
  return config;
}

}  // namespace synod::gemma4
