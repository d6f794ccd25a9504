// GGUF keys of a configuration, as llama.cpp reads them.
#include "models/gemma4/metadata.h"

#include <algorithm>
#include <cmath>

#include "models/gemma4/gguf_keys.h"

namespace synod::gemma4 {
namespace {

// One value where all layers agree, else one per layer.
void set_per_layer(GgufMetadata& out, std::string_view key, const std::vector<int32_t>& values) {
  const bool same = std::all_of(values.begin(), values.end(), [&](int32_t v) { return v == values[0]; });
  if (same) {
    out.set_u32(full_key(key), static_cast<uint32_t>(values[0]));
  } else {
    out.set_i32s(full_key(key), values);
  }
}

}  // namespace

void write_config(const Config& config, GgufMetadata& out) {
  const auto u32 = [&](std::string_view key, int64_t value) {
    out.set_u32(full_key(key), static_cast<uint32_t>(value));
  };
  const auto f32 = [&](std::string_view key, float value) { out.set_f32(full_key(key), value); };
  std::vector<int32_t> d_ff, n_kv_heads;
  std::vector<bool> sliding;
  for (const LayerConfig& layer : config.layers) {
    d_ff.push_back(static_cast<int32_t>(layer.d_ff));
    n_kv_heads.push_back(static_cast<int32_t>(layer.n_kv_heads));
    sliding.push_back(layer.sliding);
  }
  u32(key::kLayers, config.n_layers());
  u32(key::kContext, config.context_length);
  u32(key::kWidth, config.d_model);
  set_per_layer(out, key::kFeedForward, d_ff);
  u32(key::kHeads, config.n_heads);
  set_per_layer(out, key::kKvHeads, n_kv_heads);
  u32(key::kKeyLength, config.full_head_dim);
  u32(key::kValueLength, config.full_head_dim);
  u32(key::kKeyLengthSliding, config.sliding_head_dim);
  u32(key::kValueLengthSliding, config.sliding_head_dim);
  f32(key::kRmsEpsilon, config.rms_eps);
  u32(key::kWindow, config.window);
  out.set_bools(full_key(key::kSlidingPattern), sliding);
  u32(key::kSharedKvLayers, config.n_kv_shared_layers);
  u32(key::kPerLayerInput, config.d_ple);
  u32(key::kRopeDim, config.full_head_dim);
  u32(key::kRopeDimSliding, config.sliding_head_dim);
  f32(key::kRopeTheta, config.full_rope_theta);
  f32(key::kRopeThetaSliding, config.sliding_rope_theta);
  f32(key::kSoftCap, config.soft_cap);  // 0 = none; readers take an absent key for 30
  if (config.n_experts > 0) {
    u32(key::kExperts, config.n_experts);
    u32(key::kExpertsUsed, config.n_experts_used);
    u32(key::kExpertWidth, config.d_expert);
  }
}

void write_metadata(const Checkpoint& checkpoint, GgufMetadata& out) {
  out.set_string("general.architecture", "gemma4");
  out.set_string("general.type", "model");
  out.set_string("general.name", model_name(checkpoint));
  write_config(read_config(checkpoint), out);
}

std::vector<float> rope_freq_divisors(const Config& config) {
  std::vector<float> divisors = config.rope_divisors;
  for (float& divisor : divisors) {
    if (std::isinf(divisor)) divisor = 1e30F;
  }
  return divisors;
}

std::vector<ComputedTensor> computed_tensors(const Checkpoint& checkpoint) {
  if (checkpoint.find(key::kRopeFreqs) != nullptr) return {};
  return {{key::kRopeFreqs, rope_freq_divisors(read_config(checkpoint))}};
}

}  // namespace synod::gemma4
