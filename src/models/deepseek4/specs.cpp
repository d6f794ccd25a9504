// The table of names. A row of the tables below is one weight: its GGUF name, the published one, that of
// transformers, its kind and shape.
#include "models/deepseek4/specs.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace synod::deepseek4 {
namespace {

using Kind = WeightSpec::Kind;

// kSaved is what save_pretrained of transformers 5.17 writes: published layer names behind "model.", and a
// few names of transformers.
enum Dialect { kGguf, kPublished, kTransformers, kSaved };

enum class Store { kAny, kKeep };  // kKeep: never in a block type, small errors there change what is chosen

struct Names {
  std::string gguf, published, transformers;
  std::string saved;  // "" = as published
};

class Specs {
 public:
  void add(std::string role, Kind kind, std::vector<int64_t> shape, Store store,
           std::vector<Candidate> candidates) {
    specs_.push_back({.role = std::move(role),
                      .kind = kind,
                      .shape = std::move(shape),
                      .quantizable = store == Store::kAny,
                      .candidates = std::move(candidates)});
  }

  void add_global(const Names& n, Kind kind, std::vector<int64_t> shape, Store store) {
    add(n.gguf, kind, std::move(shape), store,
        {{kGguf, n.gguf}, {kPublished, n.published}, {kTransformers, n.transformers}, {kSaved, n.saved}});
  }

  void set_layer(int64_t layer) { layer_ = layer; }

  // A weight of the current layer; in transformers it is range `part` of a matrix of `n_parts` such ranges.
  void add_layer(const Names& n, Kind kind, std::vector<int64_t> shape, Store store, int part = 0,
                 int n_parts = 1) {
    const std::string gguf = layer_role(layer_, n.gguf);
    add(gguf, kind, std::move(shape), store,
        {{kGguf, gguf},
         {kPublished, fmt::format("layers.{}.{}", layer_, n.published)},
         {kTransformers, fmt::format("model.layers.{}.{}", layer_, n.transformers), part, n_parts},
         {kSaved, fmt::format("model.layers.{}.{}", layer_, n.saved.empty() ? n.published : n.saved)}});
  }

  std::vector<WeightSpec> take() { return std::move(specs_); }

 private:
  int64_t layer_ = 0;
  std::vector<WeightSpec> specs_;
};

void add_globals(const Config& c, Specs& out) {
  const int64_t n = c.n_streams;
  out.add_global(
      {"token_embd.weight", "embed.weight", "model.embed_tokens.weight", "model.embed_tokens.weight"},
      Kind::kMatrix, {c.vocab_size, c.d_model}, Store::kAny);
  out.add_global({"output_norm.weight", "norm.weight", "model.norm.weight", "model.norm.weight"},
                 Kind::kVector, {c.d_model}, Store::kKeep);
  out.add_global({"output.weight", "head.weight", "lm_head.weight", "head.weight"}, Kind::kMatrix,
                 {c.vocab_size, c.d_model}, Store::kAny);
  out.add_global({"output_hc_fn.weight", "hc_head_fn", "model.hc_head.hc_fn", "model.hc_head.hc_fn"},
                 Kind::kMatrix, {n, n * c.d_model}, Store::kKeep);
  out.add_global({"output_hc_base.weight", "hc_head_base", "model.hc_head.hc_base", "model.hc_head.hc_base"},
                 Kind::kVector, {n}, Store::kKeep);
  out.add_global(
      {"output_hc_scale.weight", "hc_head_scale", "model.hc_head.hc_scale", "model.hc_head.hc_scale"},
      Kind::kVector, {1}, Store::kKeep);
}

void add_hyper_connection(const Config& c, std::string_view site, Specs& out) {
  const auto names = [&](std::string_view part) {
    return Names{fmt::format("hc_{}_{}.weight", site, part),
                 fmt::format("hc_{}_{}", site, part),
                 fmt::format("{}_hc.{}", site, part),
                 {}};
  };
  out.add_layer(names("fn"), Kind::kMatrix, {c.mix_dim(), c.n_streams * c.d_model}, Store::kKeep);
  out.add_layer(names("base"), Kind::kVector, {c.mix_dim()}, Store::kKeep);
  out.add_layer(names("scale"), Kind::kVector, {3}, Store::kKeep);
}

void add_attention(const Config& c, Specs& out) {
  const int64_t group_in = c.n_heads * c.head_dim / c.n_output_groups;
  const int64_t latent = c.n_output_groups * c.output_rank;
  out.add_layer({"attn_norm.weight", "attn_norm.weight", "input_layernorm.weight", {}}, Kind::kVector,
                {c.d_model}, Store::kKeep);
  out.add_layer({"attn_q_a.weight", "attn.wq_a.weight", "self_attn.q_a_proj.weight", {}}, Kind::kMatrix,
                {c.q_rank, c.d_model}, Store::kAny);
  out.add_layer({"attn_q_a_norm.weight", "attn.q_norm.weight", "self_attn.q_a_norm.weight", {}},
                Kind::kVector, {c.q_rank}, Store::kKeep);
  out.add_layer({"attn_q_b.weight", "attn.wq_b.weight", "self_attn.q_b_proj.weight", {}}, Kind::kMatrix,
                {c.n_heads * c.head_dim, c.q_rank}, Store::kAny);
  out.add_layer({"attn_kv.weight", "attn.wkv.weight", "self_attn.kv_proj.weight", {}}, Kind::kMatrix,
                {c.head_dim, c.d_model}, Store::kAny);
  out.add_layer(
      {"attn_kv_a_norm.weight", "attn.kv_norm.weight", "self_attn.kv_norm.weight", "attn.norm.weight"},
      Kind::kVector, {c.head_dim}, Store::kKeep);
  out.add_layer({"attn_sinks.weight", "attn.attn_sink", "self_attn.sinks", {}}, Kind::kVector, {c.n_heads},
                Store::kKeep);
  out.add_layer({"attn_output_a.weight", "attn.wo_a.weight", "self_attn.o_a_proj.weight", {}}, Kind::kMatrix,
                {latent, group_in}, Store::kAny);
  out.add_layer({"attn_output_b.weight", "attn.wo_b.weight", "self_attn.o_b_proj.weight", {}}, Kind::kMatrix,
                {c.d_model, latent}, Store::kAny);
}

// `gguf`, `published`, `transformers`: prefixes of the compressor's names.
void add_compressor(const Config& c, const Names& prefix, int64_t ratio, int64_t dim, Specs& out) {
  const int64_t width = (ratio == kRatioSparse ? 2 : 1) * dim;
  const auto names = [&](std::string_view gguf, std::string_view published, std::string_view transformers) {
    return Names{fmt::format("{}_{}.weight", prefix.gguf, gguf),
                 fmt::format("{}.{}", prefix.published, published),
                 fmt::format("{}.{}", prefix.transformers, transformers),
                 {}};
  };
  out.add_layer(names("kv", "wkv.weight", "kv_proj.weight"), Kind::kMatrix, {width, c.d_model}, Store::kKeep);
  out.add_layer(names("gate", "wgate.weight", "gate_proj.weight"), Kind::kMatrix, {width, c.d_model},
                Store::kKeep);
  out.add_layer(names("ape", "ape", "position_bias"), Kind::kValues, {ratio, width}, Store::kKeep);
  out.add_layer(names("norm", "norm.weight", "kv_norm.weight"), Kind::kVector, {dim}, Store::kKeep);
}

void add_indexer(const Config& c, Specs& out) {
  const std::string indexer = "self_attn.compressor.indexer";
  out.add_layer({"indexer.attn_q_b.weight", "attn.indexer.wq_b.weight", indexer + ".q_b_proj.weight", {}},
                Kind::kMatrix, {c.n_index_heads * c.index_dim, c.q_rank}, Store::kAny);
  out.add_layer({"indexer.proj.weight",
                 "attn.indexer.weights_proj.weight",
                 indexer + ".scorer.weights_proj.weight",
                 {}},
                Kind::kMatrix, {c.n_index_heads, c.d_model}, Store::kKeep);
  add_compressor(c, {"indexer_compressor", "attn.indexer.compressor", indexer, {}}, kRatioSparse, c.index_dim,
                 out);
}

void add_router(const Config& c, int64_t layer, Specs& out) {
  out.add_layer({"ffn_norm.weight", "ffn_norm.weight", "post_attention_layernorm.weight", {}}, Kind::kVector,
                {c.d_model}, Store::kKeep);
  out.add_layer({"ffn_gate_inp.weight", "ffn.gate.weight", "mlp.gate.weight", {}}, Kind::kMatrix,
                {c.n_experts, c.d_model}, Store::kKeep);
  if (c.is_hash_layer(layer)) {
    out.add_layer({"ffn_gate_tid2eid.weight", "ffn.gate.tid2eid", "mlp.gate.tid2eid", {}}, Kind::kIds,
                  {c.vocab_size, c.n_experts_used}, Store::kKeep);
  } else {
    out.add_layer({"exp_probs_b.bias", "ffn.gate.bias", "mlp.gate.e_score_correction_bias", {}},
                  Kind::kVector, {c.n_experts}, Store::kKeep);
  }
}

void add_experts(const Config& c, Specs& out) {
  const int64_t n = c.n_experts, d = c.d_model, wide = c.d_expert;
  const auto routed = [](std::string_view gguf, std::string_view published, std::string_view transformers) {
    return Names{fmt::format("ffn_{}_exps.weight", gguf),
                 fmt::format("ffn.experts.{{e}}.{}.weight", published),
                 fmt::format("mlp.experts.{}", transformers),
                 {}};
  };
  const auto shared = [](std::string_view name, std::string_view published) {
    return Names{fmt::format("ffn_{}_shexp.weight", name),
                 fmt::format("ffn.shared_experts.{}.weight", published),
                 fmt::format("mlp.shared_experts.{}_proj.weight", name),
                 {}};
  };
  out.add_layer(routed("gate", "w1", "gate_up_proj"), Kind::kExperts, {n, wide, d}, Store::kAny, 0, 2);
  out.add_layer(routed("up", "w3", "gate_up_proj"), Kind::kExperts, {n, wide, d}, Store::kAny, 1, 2);
  out.add_layer(routed("down", "w2", "down_proj"), Kind::kExperts, {n, d, wide}, Store::kAny);
  out.add_layer(shared("gate", "w1"), Kind::kMatrix, {c.d_shared(), d}, Store::kAny);
  out.add_layer(shared("up", "w3"), Kind::kMatrix, {c.d_shared(), d}, Store::kAny);
  out.add_layer(shared("down", "w2"), Kind::kMatrix, {d, c.d_shared()}, Store::kAny);
}

// Number N of "blk.N.…", or -1.
int64_t block_of(std::string_view tensor) {
  if (!tensor.starts_with("blk.")) return -1;
  int64_t block = -1;
  const char* begin = tensor.data() + 4;
  const char* end = tensor.data() + tensor.size();
  const auto [stop, error] = std::from_chars(begin, end, block);
  return error == std::errc{} && stop != end && *stop == '.' ? block : -1;
}

}  // namespace

std::string layer_role(int64_t layer, std::string_view name) { return fmt::format("blk.{}.{}", layer, name); }

std::vector<WeightSpec> weight_specs(const Config& config) {
  Specs out;
  add_globals(config, out);
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const int64_t ratio = config.ratios[static_cast<size_t>(layer)];
    out.set_layer(layer);
    add_hyper_connection(config, "attn", out);
    add_attention(config, out);
    if (ratio != kRatioNone) {
      add_compressor(config, {"attn_compressor", "attn.compressor", "self_attn.compressor", {}}, ratio,
                     config.head_dim, out);
    }
    if (ratio == kRatioSparse) add_indexer(config, out);
    add_hyper_connection(config, "ffn", out);
    add_router(config, layer, out);
    add_experts(config, out);
  }
  return out.take();
}

DialectInfo dialect_info(int64_t n_layers) {
  DialectInfo info;
  info.names = {"GGUF", "published (layers.)", "transformers (model.layers.)",
                "save_pretrained (model.layers. mixed)"};
  info.skip_reason = [n_layers](std::string_view tensor) -> const char* {
    constexpr const char* kDraft = "multi-token prediction (MTP) tensors";
    if (tensor.starts_with("mtp.") || tensor.starts_with("model.mtp.")) return kDraft;
    const int64_t block = block_of(tensor);
    if (block >= 0 && tensor.find(".nextn.") != std::string_view::npos) return kDraft;
    return n_layers > 0 && block >= n_layers ? kDraft : nullptr;
  };
  return info;
}

}  // namespace synod::deepseek4
