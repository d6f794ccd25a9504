// Configuration of DeepSeek-V4, whatever the file: config.json in the published or the transformers spelling,
// or GGUF keys.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace synod::deepseek4 {

// Tokens per compressed row of a layer. Layers without compression see the window only.
inline constexpr int64_t kRatioNone = 0;
inline constexpr int64_t kRatioSparse = 4;   // CSA: overlapping blocks, rows chosen by the indexer
inline constexpr int64_t kRatioHeavy = 128;  // HCA: every closed block is visible

// Stretches the low frequencies of compressed layers. There is no magnitude factor in this family.
struct Yarn {
  bool enabled = false;
  float factor = 1.0F;
  int64_t original_context = 0;  // tokens
  float beta_fast = 32.0F;       // turns over original_context
  float beta_slow = 1.0F;

  bool operator==(const Yarn&) const = default;
};

struct Config {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t n_layers = 0;
  int64_t context_length = 0;  // tokens
  int64_t n_streams = 0;       // hyper-connections
  int64_t sinkhorn_iterations = 0;
  float hc_eps = 0.0F;
  float rms_norm_eps = 0.0F;

  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;  // the last rope_dim of head_dim, and of index_dim
  int64_t q_rank = 0;
  int64_t n_output_groups = 0;
  int64_t output_rank = 0;           // per group
  int64_t window = 0;                // tokens, own token included
  std::vector<int64_t> ratios;       // [n_layers]
  float rope_theta = 0.0F;           // layers without compression
  float compress_rope_theta = 0.0F;  // all others
  Yarn yarn;                         // of compress_rope_theta
  int64_t n_index_heads = 0;
  int64_t index_dim = 0;
  int64_t index_top_k = 0;

  int64_t n_experts = 0;
  int64_t n_experts_used = 0;
  int64_t n_shared_experts = 0;  // one matrix of n_shared_experts * d_expert rows
  int64_t d_expert = 0;
  float route_scale = 1.0F;
  int64_t n_hash_layers = 0;        // the first layers choose experts by token id
  std::vector<float> expert_clamp;  // [n_layers], limit of the gated activation; <= 0 = none
  std::vector<float> shared_clamp;  // [n_layers]

  // All throw kBadFile naming the key.
  static Config from(const Checkpoint& checkpoint);
  static Config from_json(const nlohmann::json& config, const std::string& file);
  static Config from_gguf(const Checkpoint& checkpoint);

  bool operator==(const Config&) const = default;
  bool has_ratio(int64_t ratio) const;
  bool is_hash_layer(int64_t layer) const { return layer < n_hash_layers; }
  int64_t mix_dim() const { return (2 + n_streams) * n_streams; }  // pre, post and comb of one site
  int64_t d_shared() const { return n_shared_experts * d_expert; }

  // Rotation speeds in radians per token, f32 [rope_dim / 2].
  std::vector<float> window_freqs() const;
  std::vector<float> compressed_freqs() const;

  // Ranges and relations that hold for every file; `file` is for messages.
  void validate(const std::string& file) const;
};

}  // namespace synod::deepseek4
