// Gemma 4's configuration, one structure for both containers: whatever a layer's geometry depends on is
// resolved per layer here, so that no other file asks which size of the model this is.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"

namespace synod::gemma4 {

struct LayerConfig {
  bool sliding = true;  // attends to the last `window` tokens; otherwise to all
  bool owns_kv = true;  // false: projects no keys and values, reads the rows of layer `donor`
  bool k_eq_v = false;  // values are the raw key projection
  int64_t donor = 0;    // layer whose rows are read; its own index when owns_kv
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t d_ff = 0;

  bool operator==(const LayerConfig&) const = default;
};

struct Config {
  std::vector<LayerConfig> layers;
  int64_t d_model = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t n_heads = 0;
  int64_t window = 0;  // tokens visible to a sliding layer, its own included
  int64_t sliding_head_dim = 0;
  int64_t full_head_dim = 0;
  int64_t n_kv_shared_layers = 0;  // the last layers, which own no keys and values
  int64_t d_ple = 0;               // width of the per-layer embeddings; 0 = none
  int64_t ple_vocab_size = 0;
  int64_t n_experts = 0;  // 0 = dense feed-forward only
  int64_t n_experts_used = 0;
  int64_t d_expert = 0;
  bool tied_head = true;  // the embedding is the output head
  float rms_eps = 0.0F;
  float soft_cap = 0.0F;  // of the logits; 0 = none
  float sliding_rope_theta = 0.0F;
  float full_rope_theta = 0.0F;
  std::vector<float>
      rope_divisors;  // [full_head_dim / 2] of the full layers' frequencies; infinity = no rotation

  int64_t n_layers() const { return static_cast<int64_t>(layers.size()); }
  const LayerConfig& layer(int64_t index) const { return layers[static_cast<size_t>(index)]; }
  bool operator==(const Config&) const = default;
};

// Reads and validates. `source` names the file in messages. Throws kBadFile.
Config config_from_json(const nlohmann::json& root, const std::string& source);
Config config_from_gguf(const Checkpoint& checkpoint);
Config read_config(const Checkpoint& checkpoint);

// What both readers share. `source` names the file in messages.
// The published pattern: every sixth layer is full, and the last one.
std::vector<bool> default_sliding_pattern(int64_t n_layers);
// Fills owns_kv and donor from the kinds and n_kv_shared_layers. Throws kBadFile when there is no donor.
void assign_donors(Config& config, const std::string& source);
// Ranges and relations of spec'd fields; throws kBadFile naming `source` and the field.
void validate(const Config& config, const std::string& source);

// Divisors of the proportional rotation: `factor` for the pairs that rotate, infinity for the others.
std::vector<float> proportional_divisors(int64_t head_dim, double rotary_fraction, double factor);
// Frequencies in radians per position [head_dim / 2]: an f32 chain, as the published models were run.
std::vector<float> rope_frequencies(int64_t head_dim, float theta, std::span<const float> divisors);

}  // namespace synod::gemma4
