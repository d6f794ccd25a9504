#include "models/gemma4/model.h"

#include <algorithm>
#include <array>

#include "models/gemma4/specs.h"

namespace synod::gemma4 {
namespace {

std::string role(int64_t layer, std::string_view name) {
  return fmt::format("blk.{}.{}.weight", layer, name);
}

// Row groups of the cache: layers of one kind and row width share a pair of groups, one for keys, one for
// values.
class Groups {
 public:
  explicit Groups(const Config& config) : config_(config) {}

  // Adds the rows of an owning layer and returns the index of its key group; the value group is the next.
  int add(int64_t index) {
    const LayerConfig& layer = config_.layer(index);
    const int64_t window = layer.sliding ? config_.window : 0;
    const int64_t row_dim = layer.n_kv_heads * layer.head_dim;
    int group = find(window, row_dim);
    if (group < 0) {
      group = static_cast<int>(groups_.size());
      const bool first = std::none_of(groups_.begin(), groups_.end(),
                                      [&](const RowGroup& other) { return other.window == window; });
      const std::string kind = layer.sliding ? "sliding" : "full";
      const std::string suffix = first ? "" : fmt::format("_{}", row_dim);
      for (const char* part : {"k", "v"}) {
        RowGroup rows;
        rows.name = fmt::format("{}_{}{}", kind, part, suffix);
        rows.row_dim = row_dim;
        rows.window = window;
        rows.boundary_rows = window > 0 ? window - 1 : 0;
        groups_.push_back(std::move(rows));
      }
    }
    groups_[static_cast<size_t>(group)].layers.push_back(index);
    groups_[static_cast<size_t>(group) + 1].layers.push_back(index);
    return group;
  }

  CacheSpec spec() const {
    CacheSpec spec;
    for (const RowGroup& group : groups_) spec.groups.push_back(make_group(group));
    return spec;
  }

 private:
  int find(int64_t window, int64_t row_dim) const {
    for (size_t i = 0; i < groups_.size(); i += 2) {
      if (groups_[i].window == window && groups_[i].row_dim == row_dim) return static_cast<int>(i);
    }
    return -1;
  }

  const Config& config_;
  std::vector<RowGroup> groups_;
};

}  // namespace

Gemma4::Gemma4(Config config, Weights weights, const ModelOptions& options, std::string name,
               DialogueFormat format)
    : config_(std::move(config)), weights_(std::move(weights)), format_(format) {
  info_.architecture = "gemma4";
  info_.name = std::move(name);
  info_.n_layers = config_.n_layers();
  info_.d_model = config_.d_model;
  info_.vocab_size = config_.vocab_size;
  info_.n_experts = config_.n_experts;
  info_.n_experts_used = config_.n_experts_used;
  info_.context_length = config_.context_length;
  for (const LayerConfig& layer : config_.layers)
    info_.layer_kinds.emplace_back(layer.sliding ? "sliding" : "full");

  sliding_frequencies_ = rope_frequencies(config_.sliding_head_dim, config_.sliding_rope_theta, {});
  full_frequencies_ = rope_frequencies(config_.full_head_dim, config_.full_rope_theta, config_.rope_divisors);
  resolve_global();
  layers_.resize(static_cast<size_t>(config_.n_layers()));
  for (int64_t i = 0; i < config_.n_layers(); ++i) resolve_layer(i);
  plan_cache();
  plan_fusion(options);
}

void Gemma4::resolve_global() {
  embedding_ = weights_.matrix("token_embd.weight");
  head_ = config_.tied_head ? embedding_ : weights_.matrix("output.weight");
  final_norm_ = weights_.vector("output_norm.weight");
  if (config_.d_ple > 0) {
    ple_table_ = weights_.matrix("per_layer_token_embd.weight");
    ple_model_projection_ = weights_.matrix("per_layer_model_proj.weight");
    ple_norm_ = weights_.vector("per_layer_proj_norm.weight");
  }
}

void Gemma4::resolve_layer(int64_t index) {
  LayerWeights& w = layers_[static_cast<size_t>(index)];
  const auto vector = [&](std::string_view name) { return weights_.vector(role(index, name)); };
  const auto matrix = [&](std::string_view name) { return weights_.matrix(role(index, name)); };
  const auto experts = [&](std::string_view name) { return weights_.experts(role(index, name)); };
  const LayerConfig& layer = config_.layer(index);

  w.attn_norm = vector("attn_norm");
  w.q = matrix("attn_q");
  w.q_norm = vector("attn_q_norm");
  if (layer.owns_kv) {
    w.k = matrix("attn_k");
    w.k_norm = vector("attn_k_norm");
    if (!layer.k_eq_v) w.v = matrix("attn_v");
  }
  w.o = matrix("attn_output");
  w.post_attn_norm = vector("post_attention_norm");

  w.ffn_norm = vector("ffn_norm");
  w.gate = matrix("ffn_gate");
  w.up = matrix("ffn_up");
  w.down = matrix("ffn_down");
  w.post_ffn_norm = vector("post_ffw_norm");
  w.layer_scale = vector("layer_output_scale");

  if (config_.n_experts > 0) {
    w.post_ffn_norm_1 = vector("post_ffw_norm_1");
    w.pre_ffn_norm_2 = vector("pre_ffw_norm_2");
    w.post_ffn_norm_2 = vector("post_ffw_norm_2");
    w.router = matrix("ffn_gate_inp");
    w.router_scale = weights_.vector(fmt::format("blk.{}.ffn_gate_inp.scale", index));
    w.expert_scale = weights_.vector(fmt::format("blk.{}.ffn_down_exps.scale", index));
    w.expert_gate = experts("ffn_gate_exps");
    w.expert_up = experts("ffn_up_exps");
    w.expert_down = experts("ffn_down_exps");
  }
  if (config_.d_ple > 0) {
    w.ple_gate = matrix("inp_gate");
    w.ple_projection = matrix("proj");
    w.post_ple_norm = vector("post_norm");
  }
}

void Gemma4::plan_cache() {
  Groups groups(config_);
  for (int64_t i = 0; i < config_.n_layers(); ++i) {
    LayerWeights& w = layers_[static_cast<size_t>(i)];
    const LayerConfig& layer = config_.layer(i);
    w.k_group = layer.owns_kv ? groups.add(i) : layers_[static_cast<size_t>(layer.donor)].k_group;
    w.v_group = w.k_group + 1;
  }
  cache_spec_ = groups.spec();
}

void Gemma4::plan_fusion(const ModelOptions& options) {
  std::vector<std::array<const Matrix*, 3>> parts;  // stable storage of the candidates' spans
  parts.reserve(layers_.size() * 3);
  std::vector<FusionCandidate> candidates;
  const auto add = [&](int64_t index, std::string_view kind, std::array<const Matrix*, 3> matrices,
                       size_t n) {
    parts.push_back(matrices);
    candidates.push_back({index, kind, std::span<const Matrix* const>(parts.back()).first(n)});
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& w = layers_[i];
    const auto index = static_cast<int64_t>(i);
    if (w.k) add(index, "qkv", {&w.q, &w.k, &w.v}, w.v ? 3 : 2);
    add(index, "gate_up", {&w.gate, &w.up, nullptr}, 2);
    if (config_.n_experts > 0) {
      add(index, "expert_gate_up", {&w.expert_gate.front(), &w.expert_up.front(), nullptr}, 2);
    }
  }
  fusion_ = FusionPlan(options.fusion, candidates, options.fusion_budget_bytes);
}

}  // namespace synod::gemma4
