// Construction: weights by layer, cache groups, fusion plan.
#include "models/deepseek4/deepseek4_model.h"

#include <bit>
#include <utility>

#include "models/deepseek4/dialogue.h"
#include "models/deepseek4/gguf_keys.h"
#include "models/deepseek4/specs.h"

namespace synod::deepseek4 {
namespace {

// Weights of one layer by the short names of the specs.
class LayerView {
 public:
  LayerView(const Weights& weights, int64_t layer) : weights_(weights), layer_(layer) {}
  Tensor vector(std::string_view name) const { return weights_.vector(layer_role(layer_, name)); }
  Tensor ids(std::string_view name) const { return weights_.ids(layer_role(layer_, name)); }
  Matrix matrix(std::string_view name) const { return weights_.matrix(layer_role(layer_, name)); }
  Matrix values(std::string_view name) const { return matrix_of(weights_.values(layer_role(layer_, name))); }
  std::span<const Matrix> experts(std::string_view name) const {
    return weights_.experts(layer_role(layer_, name));
  }

 private:
  const Weights& weights_;
  int64_t layer_;
};

SiteWeights bind_site(const LayerView& w, const std::string& prefix) {
  return {.fn = w.matrix(prefix + "_fn.weight"),
          .base = w.vector(prefix + "_base.weight"),
          .scale = w.vector(prefix + "_scale.weight")};
}

CompressorWeights bind_compressor(const LayerView& w, const std::string& prefix) {
  return {.values = w.matrix(prefix + "_kv.weight"),
          .scores = w.matrix(prefix + "_gate.weight"),
          .positions = w.values(prefix + "_ape.weight"),
          .norm = w.vector(prefix + "_norm.weight")};
}

AttentionWeights bind_attention(const LayerView& w, int64_t ratio) {
  AttentionWeights result{.norm = w.vector("attn_norm.weight"),
                          .q_a = w.matrix("attn_q_a.weight"),
                          .q_a_norm = w.vector("attn_q_a_norm.weight"),
                          .q_b = w.matrix("attn_q_b.weight"),
                          .kv = w.matrix("attn_kv.weight"),
                          .kv_norm = w.vector("attn_kv_a_norm.weight"),
                          .sinks = w.vector("attn_sinks.weight"),
                          .output_a = w.matrix("attn_output_a.weight"),
                          .output_b = w.matrix("attn_output_b.weight")};
  if (ratio != kRatioNone) result.compressor = bind_compressor(w, "attn_compressor");
  if (ratio == kRatioSparse) {
    result.indexer = {.q = w.matrix("indexer.attn_q_b.weight"),
                      .beta = w.matrix("indexer.proj.weight"),
                      .compressor = bind_compressor(w, "indexer_compressor")};
  }
  return result;
}

MoeWeights bind_moe(const LayerView& w, bool is_hash_layer) {
  MoeWeights result{.norm = w.vector("ffn_norm.weight"), .router = w.matrix("ffn_gate_inp.weight")};
  if (is_hash_layer) {
    result.table = w.ids("ffn_gate_tid2eid.weight");
  } else {
    result.bias = w.vector("exp_probs_b.bias");
  }
  result.gate = w.experts("ffn_gate_exps.weight");
  result.up = w.experts("ffn_up_exps.weight");
  result.down = w.experts("ffn_down_exps.weight");
  result.shared_gate = w.matrix("ffn_gate_shexp.weight");
  result.shared_up = w.matrix("ffn_up_shexp.weight");
  result.shared_down = w.matrix("ffn_down_shexp.weight");
  return result;
}

Tensor vector_view(std::vector<float>& values, std::string_view name) {
  return Tensor::contiguous(values.data(), DType::kF32, {static_cast<int64_t>(values.size())}, name);
}

// Entries choose experts without further checks on the way.
void check_table(const Tensor& table, int64_t layer, int64_t n_experts) {
  if (table.data == nullptr) return;
  for (int64_t token = 0; token < table.dim(0); ++token) {
    const int32_t* row = table.row_as<const int32_t>(token);
    for (int64_t slot = 0; slot < table.dim(1); ++slot) {
      if (row[slot] >= 0 && row[slot] < n_experts) continue;
      bad_file("tensor {}: entry [{}, {}]: expected an expert from 0 to {}, got {}",
               layer_role(layer, "ffn_gate_tid2eid.weight"), token, slot, n_experts - 1, row[slot]);
    }
  }
}

}  // namespace

Deepseek4::Deepseek4(Config config, Weights weights, const ModelOptions& options, std::string name,
                     PromptTexts prompt_texts)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      profile_(options.profile),
      prompt_texts_(std::move(prompt_texts)),
      window_freqs_(config_.window_freqs()),
      compressed_freqs_(config_.compressed_freqs()) {
  if (rounds() && config_.has_ratio(kRatioSparse) &&
      !std::has_single_bit(static_cast<uint64_t>(config_.index_dim))) {
    bad_file("{}: index_head_dim: profile q needs a power of two, got {}", name, config_.index_dim);
  }
  info_ = {.architecture = std::string(kArchitecture),
           .name = std::move(name),
           .n_layers = config_.n_layers,
           .d_model = config_.d_model,
           .vocab_size = config_.vocab_size,
           .n_experts = config_.n_experts,
           .n_experts_used = config_.n_experts_used,
           .context_length = config_.context_length,
           .layer_kinds = {}};
  for (const int64_t r : config_.ratios) {
    info_.layer_kinds.emplace_back(r == kRatioNone ? "window" : r == kRatioSparse ? "csa" : "hca");
  }
  window_freqs_tensor_ = vector_view(window_freqs_, "window rope freqs");
  compressed_freqs_tensor_ = vector_view(compressed_freqs_, "compressed rope freqs");
  bind_layers();
  plan_cache();
  plan_fusion(options);
}

std::unique_ptr<Dialogue> Deepseek4::dialogue() const { return make_dialogue(prompt_texts_); }

const Tensor& Deepseek4::freqs(int64_t layer) const {
  return ratio(layer) == kRatioNone ? window_freqs_tensor_ : compressed_freqs_tensor_;
}

void Deepseek4::bind_layers() {
  head_ = {.embedding = weights_.matrix("token_embd.weight"),
           .fn = weights_.matrix("output_hc_fn.weight"),
           .base = weights_.vector("output_hc_base.weight"),
           .scale = weights_.vector("output_hc_scale.weight"),
           .norm = weights_.vector("output_norm.weight"),
           .output = weights_.matrix("output.weight")};
  layers_.reserve(static_cast<size_t>(config_.n_layers));
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const LayerView w(weights_, layer);
    layers_.push_back({.attention_site = bind_site(w, "hc_attn"),
                       .moe_site = bind_site(w, "hc_ffn"),
                       .attention = bind_attention(w, ratio(layer)),
                       .moe = bind_moe(w, config_.is_hash_layer(layer))});
    if (config_.is_hash_layer(layer)) check_table(layers_.back().moe.table, layer, config_.n_experts);
  }
}

// A page boundary is a multiple of both ratios, so no block of 128 is open there; a block of 4 overlaps the
// block before it, whose rows are kept with the boundary.
void Deepseek4::plan_cache() {
  std::vector<int64_t> all, sparse, heavy;
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    all.push_back(layer);
    if (ratio(layer) == kRatioSparse) sparse.push_back(layer);
    if (ratio(layer) == kRatioHeavy) heavy.push_back(layer);
  }
  const auto add = [&](RowGroup group) {
    if (group.layers.empty()) return -1;
    cache_.groups.push_back(make_group(std::move(group)));
    return static_cast<int>(cache_.groups.size()) - 1;
  };
  const int64_t d = config_.head_dim, d_index = config_.index_dim;
  groups_.window = add({.name = "window",
                        .layers = all,
                        .row_dim = d,
                        .window = config_.window,
                        .boundary_rows = config_.window - 1});
  groups_.sparse =
      add({.name = "compressed 4", .layers = sparse, .row_dim = d, .tokens_per_row = kRatioSparse});
  groups_.index_keys =
      add({.name = "index keys", .layers = sparse, .row_dim = d_index, .tokens_per_row = kRatioSparse});
  groups_.heavy =
      add({.name = "compressed 128", .layers = heavy, .row_dim = d, .tokens_per_row = kRatioHeavy});
  // Values and scores, of two lanes where blocks overlap.
  groups_.sparse_state = add({.name = "compressor state 4",
                              .layers = sparse,
                              .row_dim = 4 * d,
                              .window = 2 * kRatioSparse,
                              .boundary_rows = kRatioSparse});
  groups_.index_state = add({.name = "index state",
                             .layers = sparse,
                             .row_dim = 4 * d_index,
                             .window = 2 * kRatioSparse,
                             .boundary_rows = kRatioSparse});
  groups_.heavy_state =
      add({.name = "compressor state 128", .layers = heavy, .row_dim = 2 * d, .window = kRatioHeavy});
}

void Deepseek4::plan_fusion(const ModelOptions& options) {
  struct Entry {
    int64_t layer;
    std::string_view kind;
    std::vector<const Matrix*> parts;
  };
  std::vector<Entry> entries;
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const AttentionWeights& attn = layer_weights(layer).attention;
    const MoeWeights& ffn = layer_weights(layer).moe;
    const auto add_compressor = [&](std::string_view kind, const CompressorWeights& w) {
      entries.push_back({layer, kind, {&w.values, &w.scores}});
    };
    entries.push_back({layer, "q_a_kv", {&attn.q_a, &attn.kv}});
    if (ratio(layer) != kRatioNone) add_compressor("compressor", attn.compressor);
    if (ratio(layer) == kRatioSparse) add_compressor("index_compressor", attn.indexer.compressor);
    entries.push_back({layer, "shared_gate_up", {&ffn.shared_gate, &ffn.shared_up}});
    entries.push_back({layer, "expert_gate_up", {&ffn.gate.front(), &ffn.up.front()}});
  }
  std::vector<FusionCandidate> candidates;
  for (const Entry& entry : entries) candidates.push_back({entry.layer, entry.kind, entry.parts});
  fusion_ = FusionPlan(options.fusion, candidates, options.fusion_budget_bytes);
}

}  // namespace synod::deepseek4
