// config.json in both spellings: the published one (compress_ratios, rope_scaling, num_hash_layers) and that
// of transformers (layer_types, rope_parameters, mlp_layer_types). Where a file has both, they must agree.
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "models/deepseek4/config.h"

namespace synod::deepseek4 {
namespace {

using nlohmann::json;

constexpr int64_t kMaxListedLayers = 65536;

// One object of the file. Nulls count as absent.
class Object {
 public:
  Object(const json& value, const std::string& file, std::string path)
      : value_(value), file_(file), path_(std::move(path)) {
    if (!value_.is_object())
      bad_file("{}: {}: expected an object", file_, path_.empty() ? "top level" : path_);
  }

  const std::string& file() const { return file_; }
  std::string key(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  }

  const json* find(std::string_view name) const {
    const auto found = value_.find(name);
    return found == value_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<Object> find_object(std::string_view name) const {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    return Object(*found, file_, key(name));
  }
  std::optional<int64_t> find_int(std::string_view name) const {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    return integer(*found, key(name));
  }
  std::optional<float> find_float(std::string_view name) const {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (!found->is_number()) wrong(*found, key(name), "a number");
    return static_cast<float>(found->get<double>());
  }
  std::optional<std::string> find_string(std::string_view name) const {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (!found->is_string()) wrong(*found, key(name), "a string");
    return found->get<std::string>();
  }
  std::optional<bool> find_bool(std::string_view name) const {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (!found->is_boolean()) wrong(*found, key(name), "true or false");
    return found->get<bool>();
  }
  const json* find_list(std::string_view name) const {
    const json* found = find(name);
    if (found != nullptr && !found->is_array()) wrong(*found, key(name), "an array");
    if (found != nullptr && static_cast<int64_t>(found->size()) > kMaxListedLayers) {
      bad_file("{}: {}: expected at most {} entries, got {}", file_, key(name), kMaxListedLayers,
               found->size());
    }
    return found;
  }

  int64_t get_int(std::string_view name) const { return required(find_int(name), name); }
  float get_float(std::string_view name) const { return required(find_float(name), name); }

  int64_t integer(const json& value, const std::string& where) const {
    if (!value.is_number_integer()) wrong(value, where, "an integer");
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})
      wrong(value, where, "an integer");
    return value.get<int64_t>();
  }
  [[noreturn]] void wrong(const json& value, const std::string& where, std::string_view expected) const {
    std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (shown.size() > 80) shown = shown.substr(0, 80) + "...";
    bad_file("{}: {}: expected {}, got {}", file_, where, expected, shown);
  }
  [[noreturn]] void missing(std::string_view name) const {
    bad_file("{}: the key {} is missing", file_, key(name));
  }

 private:
  template <typename T>
  T required(const std::optional<T>& value, std::string_view name) const {
    if (!value) missing(name);
    return *value;
  }

  const json& value_;
  const std::string& file_;
  std::string path_;
};

// The one value of two spellings.
template <typename T>
std::optional<T> agreed(const Object& top, std::string_view key_a, const std::optional<T>& a,
                        std::string_view key_b, const std::optional<T>& b) {
  if (a && b && *a != *b)
    bad_file("{}: {} is {} but {} is {}: they must agree", top.file(), key_a, *a, key_b, *b);
  return a ? a : b;
}

std::optional<std::vector<int64_t>> published_ratios(const Object& top, int64_t n_layers) {
  const json* list = top.find_list("compress_ratios");
  if (list == nullptr) return std::nullopt;
  if (static_cast<int64_t>(list->size()) < n_layers) {
    bad_file("{}: compress_ratios: expected at least {} entries, got {}", top.file(), n_layers, list->size());
  }
  std::vector<int64_t> ratios;  // entries past n_layers belong to draft blocks
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    ratios.push_back(
        top.integer((*list)[static_cast<size_t>(layer)], fmt::format("compress_ratios[{}]", layer)));
  }
  return ratios;
}

// A list of n_layers strings under `name`.
std::optional<std::vector<std::string>> layer_names(const Object& top, std::string_view name,
                                                    int64_t n_layers) {
  const json* list = top.find_list(name);
  if (list == nullptr) return std::nullopt;
  if (static_cast<int64_t>(list->size()) != n_layers) {
    bad_file("{}: {}: expected {} entries, got {}", top.file(), name, n_layers, list->size());
  }
  std::vector<std::string> names;
  for (const json& entry : *list) {
    if (!entry.is_string()) top.wrong(entry, fmt::format("{}[{}]", name, names.size()), "a string");
    names.push_back(entry.get<std::string>());
  }
  return names;
}

std::optional<std::vector<int64_t>> transformers_ratios(const Object& top, int64_t n_layers) {
  const auto types = layer_names(top, "layer_types", n_layers);
  if (!types) return std::nullopt;
  const std::optional<Object> rates = top.find_object("compress_rates");
  const auto rate = [&](std::string_view type, int64_t fallback) {
    return rates ? rates->find_int(type).value_or(fallback) : fallback;
  };
  std::vector<int64_t> ratios;
  for (const std::string& type : *types) {
    if (type == "sliding_attention") {
      ratios.push_back(kRatioNone);
    } else if (type == "compressed_sparse_attention") {
      ratios.push_back(rate(type, kRatioSparse));
    } else if (type == "heavily_compressed_attention") {
      ratios.push_back(rate(type, kRatioHeavy));
    } else {
      top.wrong(type, fmt::format("layer_types[{}]", ratios.size()),
                "sliding_attention, compressed_sparse_attention or heavily_compressed_attention");
    }
  }
  return ratios;
}

std::vector<int64_t> read_ratios(const Object& top, int64_t n_layers) {
  const auto published = published_ratios(top, n_layers);
  const auto transformers = transformers_ratios(top, n_layers);
  if (published && transformers) {
    for (size_t layer = 0; layer < published->size(); ++layer) {
      agreed<int64_t>(top, fmt::format("compress_ratios[{}]", layer), (*published)[layer],
                      fmt::format("the ratio of layer_types[{}]", layer), (*transformers)[layer]);
    }
  }
  if (published) return *published;
  if (transformers) return *transformers;
  bad_file("{}: the key compress_ratios (or layer_types) is missing: the layer schedule is never guessed",
           top.file());
}

int64_t read_hash_layers(const Object& top, int64_t n_layers) {
  std::optional<int64_t> listed;
  if (const auto types = layer_names(top, "mlp_layer_types", n_layers)) {
    int64_t n_hash = 0;
    for (size_t layer = 0; layer < types->size(); ++layer) {
      const std::string& type = (*types)[layer];
      const std::string where = fmt::format("mlp_layer_types[{}]", layer);
      if (type != "hash_moe" && type != "moe") top.wrong(type, where, "hash_moe or moe");
      if (type != "hash_moe") continue;
      if (n_hash != static_cast<int64_t>(layer)) top.wrong(type, where, "moe after the first moe");
      ++n_hash;
    }
    listed = n_hash;
  }
  const auto n_hash =
      agreed(top, "num_hash_layers", top.find_int("num_hash_layers"), "the count of hash_moe", listed);
  if (!n_hash) top.missing("num_hash_layers");
  return *n_hash;
}

// "default" or "yarn", and no magnitude factor.
Yarn read_scaling(const Object& scaling) {
  const auto type = scaling.find_string("rope_type");
  const auto old_type = scaling.find_string("type");
  if (type && old_type && *type != *old_type) {
    bad_file("{}: {} is {} but {} is {}: they must agree", scaling.file(), scaling.key("rope_type"), *type,
             scaling.key("type"), *old_type);
  }
  const std::string kind = type ? *type : old_type.value_or("default");
  Yarn yarn;
  if (kind == "default") return yarn;
  if (kind != "yarn") scaling.wrong(kind, scaling.key("type"), "yarn or default");
  for (const char* name : {"attention_factor", "mscale", "mscale_all_dim"}) {
    const auto factor = scaling.find_float(name);
    if (factor && *factor != 1.0F)
      scaling.wrong(*factor, scaling.key(name), "1 (the family has no magnitude factor)");
  }
  yarn.enabled = true;
  yarn.factor = scaling.get_float("factor");
  yarn.original_context = scaling.get_int("original_max_position_embeddings");
  yarn.beta_fast = scaling.find_float("beta_fast").value_or(yarn.beta_fast);
  yarn.beta_slow = scaling.find_float("beta_slow").value_or(yarn.beta_slow);
  return yarn;
}

void read_rope(const Object& top, Config& c) {
  std::optional<float> main_theta, compress_theta;
  std::optional<Yarn> published, transformers;
  if (const auto parameters = top.find_object("rope_parameters")) {
    if (const auto main = parameters->find_object("main")) {
      main_theta = main->find_float("rope_theta");
      if (read_scaling(*main).enabled) main->wrong("yarn", main->key("rope_type"), "default");
    }
    if (const auto compress = parameters->find_object("compress")) {
      compress_theta = compress->find_float("rope_theta");
      transformers = read_scaling(*compress);
    }
  }
  if (const auto scaling = top.find_object("rope_scaling")) published = read_scaling(*scaling);

  const auto theta =
      agreed(top, "rope_theta", top.find_float("rope_theta"), "rope_parameters.main.rope_theta", main_theta);
  if (!theta) top.missing("rope_theta");
  c.rope_theta = *theta;
  const auto compressed = agreed(top, "compress_rope_theta", top.find_float("compress_rope_theta"),
                                 "rope_parameters.compress.rope_theta", compress_theta);
  if (!compressed) top.missing("compress_rope_theta");
  c.compress_rope_theta = *compressed;

  if (published && transformers && *published != *transformers) {
    bad_file("{}: rope_scaling and rope_parameters.compress must agree", top.file());
  }
  if (!published && !transformers) {
    log_warning("{}: neither rope_scaling nor rope_parameters.compress: positions are not scaled",
                top.file());
  }
  c.yarn = published ? *published : transformers.value_or(Yarn{});
}

// Choices of the family that a file may state but not change.
void check_fixed(const Object& top) {
  const auto text = [&](std::string_view name, std::string_view expected) {
    const auto value = top.find_string(name);
    if (value && *value != expected) top.wrong(*value, std::string(name), expected);
  };
  const auto flag = [&](std::string_view name, bool expected) {
    const auto value = top.find_bool(name);
    if (value && *value != expected) top.wrong(*value, std::string(name), expected ? "true" : "false");
  };
  text("model_type", "deepseek_v4");
  text("hidden_act", "silu");
  text("scoring_func", "sqrtsoftplus");
  text("topk_method", "noaux_tc");
  flag("norm_topk_prob", true);
  flag("tie_word_embeddings", false);
  flag("attention_bias", false);
  flag("mlp_bias", false);
  const auto n_kv_heads = top.find_int("num_key_value_heads");
  if (n_kv_heads && *n_kv_heads != 1) top.wrong(*n_kv_heads, "num_key_value_heads", "1");
}

void read_attention(const Object& top, Config& c) {
  c.n_heads = top.get_int("num_attention_heads");
  c.head_dim = top.get_int("head_dim");
  c.rope_dim = top.get_int("qk_rope_head_dim");
  c.q_rank = top.get_int("q_lora_rank");
  c.n_output_groups = top.get_int("o_groups");
  c.output_rank = top.get_int("o_lora_rank");
  c.window = top.get_int("sliding_window");
  c.ratios = read_ratios(top, c.n_layers);
  read_rope(top, c);
  // Only layers of ratio 4 have an indexer.
  const bool indexed = c.has_ratio(kRatioSparse);
  c.n_index_heads = indexed ? top.get_int("index_n_heads") : top.find_int("index_n_heads").value_or(0);
  c.index_dim = indexed ? top.get_int("index_head_dim") : top.find_int("index_head_dim").value_or(0);
  c.index_top_k = indexed ? top.get_int("index_topk") : top.find_int("index_topk").value_or(0);
}

void read_experts(const Object& top, Config& c) {
  c.n_experts = top.get_int("n_routed_experts");
  c.n_experts_used = top.get_int("num_experts_per_tok");
  c.n_shared_experts = top.get_int("n_shared_experts");
  c.d_expert = top.get_int("moe_intermediate_size");
  c.route_scale = top.get_float("routed_scaling_factor");
  c.n_hash_layers = read_hash_layers(top, c.n_layers);
  c.expert_clamp.assign(static_cast<size_t>(c.n_layers), top.get_float("swiglu_limit"));
  c.shared_clamp = c.expert_clamp;
}

}  // namespace

Config Config::from_json(const json& config, const std::string& file) {
  const Object top(config, file, "");
  check_fixed(top);
  Config c;
  c.vocab_size = top.get_int("vocab_size");
  c.d_model = top.get_int("hidden_size");
  c.n_layers = top.get_int("num_hidden_layers");
  if (c.n_layers < 1 || c.n_layers > kMaxListedLayers) {
    bad_file("{}: num_hidden_layers: expected a value from 1 to {}, got {}", file, kMaxListedLayers,
             c.n_layers);
  }
  c.context_length = top.get_int("max_position_embeddings");
  c.n_streams = top.get_int("hc_mult");
  c.sinkhorn_iterations = top.get_int("hc_sinkhorn_iters");
  c.hc_eps = top.get_float("hc_eps");
  c.rms_norm_eps = top.get_float("rms_norm_eps");
  read_attention(top, c);
  read_experts(top, c);
  c.validate(file);
  return c;
}

}  // namespace synod::deepseek4
