#include "models/gemma4/specs.h"

#include <charconv>
#include <string>

namespace synod::gemma4 {
namespace {

enum Dialect { kGguf, kPlain, kMultimodal, kMlx };
constexpr Dialect kHfDialects[] = {kPlain, kMultimodal, kMlx};
constexpr std::string_view kPrefix[] = {"", "model.", "model.language_model.", "language_model.model."};

using Kind = WeightSpec::Kind;

// Collects the specs; `layer` < 0 names tensors outside the layers.
class SpecList {
 public:
  void set_layer(int64_t layer) { layer_ = layer; }

  // A tensor that is called `gguf` in GGUF files and `hf` after every dialect's prefix.
  WeightSpec& add(Kind kind, std::string_view gguf, std::string_view hf, std::vector<int64_t> shape) {
    WeightSpec& spec = specs_.emplace_back();
    spec.role = gguf_name(gguf);
    spec.kind = kind;
    spec.shape = std::move(shape);
    spec.candidates.push_back({kGguf, spec.role});
    if (!hf.empty()) add_hf(spec, hf);
    return spec;
  }
  WeightSpec& vector(std::string_view gguf, std::string_view hf, int64_t n) {
    return add(Kind::kVector, gguf, hf, {n});
  }
  WeightSpec& matrix(std::string_view gguf, std::string_view hf, int64_t n_out, int64_t n_in) {
    return add(Kind::kMatrix, gguf, hf, {n_out, n_in});
  }

  std::string gguf_name(std::string_view name) const {
    return layer_ < 0 ? std::string(name) : fmt::format("blk.{}.{}", layer_, name);
  }
  void add_hf(WeightSpec& spec, std::string_view name, int part = 0, int n_parts = 1) const {
    for (const Dialect dialect : kHfDialects) {
      std::string full = layer_ < 0 ? fmt::format("{}{}", kPrefix[dialect], name)
                                    : fmt::format("{}layers.{}.{}", kPrefix[dialect], layer_, name);
      spec.candidates.push_back({dialect, std::move(full), part, n_parts});
    }
  }

  std::vector<WeightSpec> take() { return std::move(specs_); }

 private:
  std::vector<WeightSpec> specs_;
  int64_t layer_ = -1;
};

void add_global(SpecList& list, const Config& config) {
  const int64_t d = config.d_model;
  list.matrix("token_embd.weight", "embed_tokens.weight", config.vocab_size, d);
  list.vector("output_norm.weight", "norm.weight", d);
  if (!config.tied_head) {
    WeightSpec& head = list.matrix("output.weight", "", config.vocab_size, d);
    for (const Dialect dialect : kHfDialects) head.candidates.push_back({dialect, "lm_head.weight"});
    head.candidates.push_back({kMlx, "language_model.lm_head.weight"});
  }
  list.vector("rope_freqs.weight", "", config.full_head_dim / 2).required = false;
  if (config.d_ple > 0) {
    const int64_t all = config.n_layers() * config.d_ple;
    list.matrix("per_layer_token_embd.weight", "embed_tokens_per_layer.weight", config.ple_vocab_size, all);
    list.matrix("per_layer_model_proj.weight", "per_layer_model_projection.weight", all, d).quantizable =
        false;
    list.vector("per_layer_proj_norm.weight", "per_layer_projection_norm.weight", config.d_ple);
  }
}

void add_attention(SpecList& list, const Config& config, const LayerConfig& layer) {
  const int64_t d = config.d_model;
  const int64_t q_dim = config.n_heads * layer.head_dim;
  const int64_t kv_dim = layer.n_kv_heads * layer.head_dim;
  list.vector("attn_norm.weight", "input_layernorm.weight", d);
  list.matrix("attn_q.weight", "self_attn.q_proj.weight", q_dim, d);
  if (layer.owns_kv) {
    list.matrix("attn_k.weight", "self_attn.k_proj.weight", kv_dim, d);
    if (!layer.k_eq_v) list.matrix("attn_v.weight", "self_attn.v_proj.weight", kv_dim, d);
    list.vector("attn_k_norm.weight", "self_attn.k_norm.weight", layer.head_dim);
  }
  list.vector("attn_q_norm.weight", "self_attn.q_norm.weight", layer.head_dim);
  list.matrix("attn_output.weight", "self_attn.o_proj.weight", d, q_dim);
  list.vector("post_attention_norm.weight", "post_attention_layernorm.weight", d);
}

void add_ffn(SpecList& list, const Config& config, const LayerConfig& layer) {
  const int64_t d = config.d_model;
  list.vector("ffn_norm.weight", "pre_feedforward_layernorm.weight", d);
  list.matrix("ffn_gate.weight", "mlp.gate_proj.weight", layer.d_ff, d);
  list.matrix("ffn_up.weight", "mlp.up_proj.weight", layer.d_ff, d);
  list.matrix("ffn_down.weight", "mlp.down_proj.weight", d, layer.d_ff);
  list.vector("post_ffw_norm.weight", "post_feedforward_layernorm.weight", d);
}

// Experts are stacked, stacked with gate above up, or stored one by one (NVFP4), in some files under "moe.".
void add_expert_names(const SpecList& list, WeightSpec& spec, std::string_view module) {
  list.add_hf(spec, fmt::format("experts.switch_glu.{}.weight", module));
  list.add_hf(spec, fmt::format("experts.{{e}}.{}.weight", module));
  list.add_hf(spec, fmt::format("moe.experts.{{e}}.{}.weight", module));
}

void add_gate_or_up(SpecList& list, const Config& config, std::string_view gguf, std::string_view module,
                    int part) {
  WeightSpec& spec = list.add(Kind::kExperts, gguf, "", {config.n_experts, config.d_expert, config.d_model});
  spec.candidates.push_back({kGguf, list.gguf_name("ffn_gate_up_exps.weight"), part, 2});
  list.add_hf(spec, "experts.gate_up_proj", part, 2);
  add_expert_names(list, spec, module);
}

void add_experts(SpecList& list, const Config& config) {
  const int64_t d = config.d_model;
  list.vector("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", d);
  list.vector("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", d);
  list.vector("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", d);
  // A router of few bits flips experts.
  list.matrix("ffn_gate_inp.weight", "router.proj.weight", config.n_experts, d).quantizable = false;
  list.vector("ffn_gate_inp.scale", "router.scale", d);
  list.vector("ffn_down_exps.scale", "router.per_expert_scale", config.n_experts);
  add_gate_or_up(list, config, "ffn_gate_exps.weight", "gate_proj", 0);
  add_gate_or_up(list, config, "ffn_up_exps.weight", "up_proj", 1);
  WeightSpec& down = list.add(Kind::kExperts, "ffn_down_exps.weight", "experts.down_proj",
                              {config.n_experts, d, config.d_expert});
  add_expert_names(list, down, "down_proj");
}

void add_per_layer_input(SpecList& list, const Config& config) {
  list.matrix("inp_gate.weight", "per_layer_input_gate.weight", config.d_ple, config.d_model);
  list.matrix("proj.weight", "per_layer_projection.weight", config.d_model, config.d_ple);
  list.vector("post_norm.weight", "post_per_layer_input_norm.weight", config.d_model);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (text.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// Number after "layers." or "blk.", -1 without.
int64_t layer_of(std::string_view name) {
  for (const std::string_view marker : {std::string_view("layers."), std::string_view("blk.")}) {
    const size_t at = name.find(marker);
    if (at == std::string_view::npos) continue;
    int64_t layer = -1;
    const std::string_view rest = name.substr(at + marker.size());
    std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    return layer;
  }
  return -1;
}

const char* modality(std::string_view name) {
  for (const std::string_view prefix : {std::string_view("model."), std::string_view("language_model.")}) {
    if (starts_with_any(name, {prefix})) name.remove_prefix(prefix.size());
  }
  if (starts_with_any(name, {"vision_tower.", "embed_vision.", "vision_embedder.", "multi_modal_projector.",
                             "v.", "mm."}))
    return "vision tower";
  if (starts_with_any(name, {"audio_tower.", "embed_audio.", "a."})) return "audio tower";
  return nullptr;
}

bool is_clipping_bound(std::string_view name) {
  for (const std::string_view end : {"input_min", "input_max", "output_min", "output_max"}) {
    if (name.size() >= end.size() && name.substr(name.size() - end.size()) == end) return true;
  }
  return false;
}

const char* skip_reason(std::string_view name, bool tied, int64_t first_shared) {
  if (const char* reason = modality(name)) return reason;
  if (is_clipping_bound(name)) return "clipping bounds of the towers";
  if (tied && (starts_with_any(name, {"lm_head.", "language_model.lm_head."})))
    return "output head equal to the embedding";
  const bool key_or_value = contains(name, ".self_attn.k_proj.") || contains(name, ".self_attn.v_proj.") ||
                            contains(name, ".self_attn.k_norm.") || contains(name, ".attn_k.") ||
                            contains(name, ".attn_v.") || contains(name, ".attn_k_norm.");
  if (key_or_value && layer_of(name) >= first_shared) return "keys and values of layers that share them";
  return nullptr;
}

}  // namespace

std::vector<WeightSpec> weight_specs(const Config& config) {
  SpecList list;
  add_global(list, config);
  for (int64_t i = 0; i < config.n_layers(); ++i) {
    const LayerConfig& layer = config.layer(i);
    list.set_layer(i);
    add_attention(list, config, layer);
    add_ffn(list, config, layer);
    if (config.n_experts > 0) add_experts(list, config);
    if (config.d_ple > 0) add_per_layer_input(list, config);
    list.vector("layer_output_scale.weight", "layer_scalar", 1).required = false;
  }
  return list.take();
}

DialectInfo dialects(const Config& config) {
  DialectInfo info;
  info.names = {"GGUF", "Hugging Face (model.)", "Hugging Face (model.language_model.)",
                "MLX (language_model.model.)"};
  const bool tied = config.tied_head;
  const int64_t first_shared = config.n_layers() - config.n_kv_shared_layers;
  info.skip_reason = [tied, first_shared](std::string_view name) {
    return skip_reason(name, tied, first_shared);
  };
  return info;
}

}  // namespace synod::gemma4
