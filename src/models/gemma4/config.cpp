#include "models/gemma4/config.h"

#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"

namespace synod::gemma4 {
namespace {

// Bounds that keep every product of two or three sizes far below 2^63.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxExperts = int64_t{1} << 16;
constexpr int64_t kMaxContext = int64_t{1} << 30;

void require_range(const std::string& source, std::string_view field, int64_t value, int64_t low,
                   int64_t high) {
  if (value < low || value > high) {
    bad_file("{}: {}: expected {} to {}, got {}", source, field, low, high, value);
  }
}

void require_positive(const std::string& source, std::string_view field, float value) {
  if (!std::isfinite(value) || value <= 0.0F) {
    bad_file("{}: {}: expected a finite number above 0, got {}", source, field, value);
  }
}

void validate_layer(const Config& config, int64_t index, const std::string& source) {
  const LayerConfig& layer = config.layer(index);
  const auto where = [&](std::string_view field) { return fmt::format("layer {}: {}", index, field); };
  require_range(source, where("key/value heads"), layer.n_kv_heads, 1, config.n_heads);
  if (config.n_heads % layer.n_kv_heads != 0) {
    bad_file("{}: layer {}: {} attention heads cannot be shared evenly by {} key/value heads", source, index,
             config.n_heads, layer.n_kv_heads);
  }
  require_range(source, where("feed-forward width (intermediate_size)"), layer.d_ff, 1, kMaxWidth);
  const LayerConfig& donor = config.layer(layer.donor);
  if (donor.n_kv_heads != layer.n_kv_heads) {
    bad_file("{}: layer {} shares the keys and values of layer {}, but has {} key/value heads instead of {}",
             source, index, layer.donor, layer.n_kv_heads, donor.n_kv_heads);
  }
}

void validate_head_dim(const std::string& source, std::string_view field, int64_t head_dim) {
  require_range(source, field, head_dim, 2, kMaxWidth);
  if (head_dim % 2 != 0) bad_file("{}: {}: expected an even number, got {}", source, field, head_dim);
}

void validate_experts(const Config& config, const std::string& source) {
  if (config.n_experts == 0) return;
  require_range(source, "number of experts", config.n_experts, 1, kMaxExperts);
  require_range(source, "experts per token", config.n_experts_used, 1, config.n_experts);
  require_range(source, "expert width", config.d_expert, 1, kMaxWidth);
}

}  // namespace

std::vector<bool> default_sliding_pattern(int64_t n_layers) {
  std::vector<bool> sliding(static_cast<size_t>(n_layers));
  for (size_t i = 0; i < sliding.size(); ++i) sliding[i] = (i + 1) % 6 != 0;
  if (!sliding.empty()) sliding.back() = false;
  return sliding;
}

void assign_donors(Config& config, const std::string& source) {
  const int64_t n_layers = config.n_layers();
  if (config.n_kv_shared_layers < 0 || config.n_kv_shared_layers >= n_layers) {
    bad_file("{}: number of layers that share keys and values: expected 0 to {}, got {}{}", source,
             n_layers - 1, config.n_kv_shared_layers,
             config.n_kv_shared_layers == n_layers ? " (draft models are not supported)" : "");
  }
  const int64_t first_shared = n_layers - config.n_kv_shared_layers;
  int64_t last_owner[2] = {-1, -1};  // of full and of sliding layers
  for (int64_t i = 0; i < n_layers; ++i) {
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layer.owns_kv = i < first_shared;
    if (layer.owns_kv) last_owner[layer.sliding ? 1 : 0] = i;
    layer.donor = last_owner[layer.sliding ? 1 : 0];
  }
  if (config.n_kv_shared_layers > 0 && (last_owner[0] < 0 || last_owner[1] < 0)) {
    bad_file("{}: {} layers share keys and values, but the first {} hold no {} layer to share from", source,
             config.n_kv_shared_layers, first_shared, last_owner[0] < 0 ? "full" : "sliding");
  }
}

void validate(const Config& config, const std::string& source) {
  require_range(source, "number of layers", config.n_layers(), 1, kMaxLayers);
  require_range(source, "hidden size", config.d_model, 1, kMaxWidth);
  require_range(source, "vocabulary size", config.vocab_size, 1, kMaxVocabulary);
  require_range(source, "context length", config.context_length, 1, kMaxContext);
  require_range(source, "attention heads", config.n_heads, 1, kMaxWidth);
  require_range(source, "sliding window", config.window, 1, kMaxContext);
  validate_head_dim(source, "head size of sliding layers", config.sliding_head_dim);
  validate_head_dim(source, "head size of full layers", config.full_head_dim);
  require_range(source, "per-layer embedding width", config.d_ple, 0, kMaxWidth);
  if (config.d_ple > 0) {
    require_range(source, "per-layer embedding vocabulary", config.ple_vocab_size, 1, kMaxVocabulary);
  }
  validate_experts(config, source);
  require_positive(source, "rms norm epsilon", config.rms_eps);
  require_positive(source, "rope theta of sliding layers", config.sliding_rope_theta);
  require_positive(source, "rope theta of full layers", config.full_rope_theta);
  if (!std::isfinite(config.soft_cap) || config.soft_cap < 0.0F) {
    bad_file("{}: final_logit_softcapping: expected none or a finite number above 0, got {}", source,
             config.soft_cap);
  }
  if (config.layers.back().sliding) {
    bad_file("{}: layer types: the last of {} layers must be a full_attention layer", source,
             config.n_layers());
  }
  for (int64_t i = 0; i < config.n_layers(); ++i) validate_layer(config, i, source);
}

std::vector<float> proportional_divisors(int64_t head_dim, double rotary_fraction, double factor) {
  std::vector<float> divisors(static_cast<size_t>(head_dim / 2), std::numeric_limits<float>::infinity());
  const auto n_rotating =
      static_cast<size_t>(std::floor(rotary_fraction * static_cast<double>(head_dim) / 2.0));
  for (size_t i = 0; i < std::min(n_rotating, divisors.size()); ++i) divisors[i] = static_cast<float>(factor);
  return divisors;
}

std::vector<float> rope_frequencies(int64_t head_dim, float theta, std::span<const float> divisors) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = 1.0F / std::pow(theta, exponent);
    frequencies[i] = divisors.empty() ? frequency : frequency / divisors[i];
  }
  return frequencies;
}

Config read_config(const Checkpoint& checkpoint) {
  if (checkpoint.container() == Checkpoint::Container::kGguf) return config_from_gguf(checkpoint);
  return config_from_json(checkpoint.config(), (checkpoint.path() / "config.json").string());
}

}  // namespace synod::gemma4
