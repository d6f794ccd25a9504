#include "models/deepseek4/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <string_view>

#include "base/error.h"

namespace synod::deepseek4 {
namespace {

// Far above every published size, and small enough that no product of two overflows.
constexpr int64_t kMaxWidth = int64_t{1} << 24;
constexpr int64_t kMaxProduct = int64_t{1} << 31;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxStreams = 64;
constexpr int64_t kMaxIterations = 1000;

struct Checker {
  const std::string& file;

  void range(std::string_view key, int64_t value, int64_t low, int64_t high) const {
    if (value < low || value > high) {
      bad_file("{}: {}: expected a value from {} to {}, got {}", file, key, low, high, value);
    }
  }
  void width(std::string_view key, int64_t value) const { range(key, value, 1, kMaxWidth); }
  void product(std::string_view keys, int64_t a, int64_t b) const {
    if (a > kMaxProduct / b)
      bad_file("{}: {}: expected at most {}, got {} * {}", file, keys, kMaxProduct, a, b);
  }
  void real(std::string_view key, float value, float low, float high) const {
    if (!(value >= low && value <= high)) {
      bad_file("{}: {}: expected a value from {:g} to {:g}, got {:g}", file, key, low, high, value);
    }
  }
};

void check_sizes(const Config& c, const Checker& check) {
  check.width("vocab_size", c.vocab_size);
  check.width("hidden_size", c.d_model);
  check.range("num_hidden_layers", c.n_layers, 1, kMaxLayers);
  check.range("max_position_embeddings", c.context_length, 1, INT32_MAX);
  check.range("hc_mult", c.n_streams, 1, kMaxStreams);
  check.range("hc_sinkhorn_iters", c.sinkhorn_iterations, 1, kMaxIterations);
  check.width("num_attention_heads", c.n_heads);
  check.width("head_dim", c.head_dim);
  check.width("q_lora_rank", c.q_rank);
  check.width("o_groups", c.n_output_groups);
  check.width("o_lora_rank", c.output_rank);
  check.width("sliding_window", c.window);
  check.width("n_routed_experts", c.n_experts);
  check.range("num_experts_per_tok", c.n_experts_used, 1, c.n_experts);
  check.range("n_shared_experts", c.n_shared_experts, 1, 64);
  check.width("moe_intermediate_size", c.d_expert);
  check.range("num_hash_layers", c.n_hash_layers, 0, c.n_layers);
  check.product("num_attention_heads * head_dim", c.n_heads, c.head_dim);
  check.product("o_groups * o_lora_rank", c.n_output_groups, c.output_rank);
  check.product("hc_mult * hidden_size", c.n_streams, c.d_model);
  if (c.n_heads % c.n_output_groups != 0) {
    bad_file("{}: o_groups: expected a divisor of {} heads, got {}", check.file, c.n_heads,
             c.n_output_groups);
  }
}

void check_rope(const Config& c, const Checker& check) {
  if (c.rope_dim < 2 || c.rope_dim % 2 != 0 || c.rope_dim > c.head_dim) {
    bad_file("{}: qk_rope_head_dim: expected an even value from 2 to head_dim ({}), got {}", check.file,
             c.head_dim, c.rope_dim);
  }
  check.real("rope_theta", c.rope_theta, 1.0F, 1e12F);
  check.real("compress_rope_theta", c.compress_rope_theta, 1.0F, 1e12F);
  if (!c.yarn.enabled) return;
  // The frequency border divides by the logarithm of the base.
  check.real("compress_rope_theta", c.compress_rope_theta, 1.001F, 1e12F);
  check.real("rope_scaling.factor", c.yarn.factor, 1.0F, 1e6F);
  check.range("rope_scaling.original_max_position_embeddings", c.yarn.original_context, 1, INT32_MAX);
  check.real("rope_scaling.beta_fast", c.yarn.beta_fast, 1e-6F, 1e6F);
  check.real("rope_scaling.beta_slow", c.yarn.beta_slow, 1e-6F, 1e6F);
}

void check_schedule(const Config& c, const Checker& check) {
  SYNOD_ASSERT(static_cast<int64_t>(c.ratios.size()) == c.n_layers);
  SYNOD_ASSERT(static_cast<int64_t>(c.expert_clamp.size()) == c.n_layers);
  SYNOD_ASSERT(static_cast<int64_t>(c.shared_clamp.size()) == c.n_layers);
  for (size_t layer = 0; layer < c.ratios.size(); ++layer) {
    const int64_t ratio = c.ratios[layer];
    if (ratio != kRatioNone && ratio != kRatioSparse && ratio != kRatioHeavy) {
      bad_file("{}: compress_ratios[{}]: expected 0, 4 or 128, got {}", check.file, layer, ratio);
    }
    check.real("swiglu_limit", c.expert_clamp[layer], -1e30F, 1e30F);
    check.real("swiglu_limit", c.shared_clamp[layer], -1e30F, 1e30F);
  }
  if (!c.has_ratio(kRatioSparse)) return;
  check.width("index_n_heads", c.n_index_heads);
  check.width("index_topk", c.index_top_k);
  check.range("index_head_dim", c.index_dim, c.rope_dim, kMaxWidth);
  check.product("index_n_heads * index_head_dim", c.n_index_heads, c.index_dim);
}

std::vector<double> plain_freqs(double theta, int64_t rope_dim) {
  std::vector<double> freqs(static_cast<size_t>(rope_dim / 2));
  for (size_t i = 0; i < freqs.size(); ++i) {
    freqs[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim));
  }
  return freqs;
}

// The pair (as a real number) that turns `turns` times over the original context.
double yarn_border(const Config& c, double turns) {
  const double wavelengths = static_cast<double>(c.yarn.original_context) / (2.0 * std::numbers::pi * turns);
  const double log_theta = std::log(static_cast<double>(c.compress_rope_theta));
  return static_cast<double>(c.rope_dim) * std::log(wavelengths) / (2.0 * log_theta);
}

}  // namespace

bool Config::has_ratio(int64_t ratio) const {
  return std::find(ratios.begin(), ratios.end(), ratio) != ratios.end();
}

Config Config::from(const Checkpoint& checkpoint) {
  if (checkpoint.container() == Checkpoint::Container::kGguf) return from_gguf(checkpoint);
  const std::filesystem::path& path = checkpoint.path();
  const bool is_file = path.extension() == ".safetensors";
  return from_json(checkpoint.config(), ((is_file ? path.parent_path() : path) / "config.json").string());
}

std::vector<float> Config::window_freqs() const {
  const std::vector<double> freqs = plain_freqs(rope_theta, rope_dim);
  return {freqs.begin(), freqs.end()};
}

std::vector<float> Config::compressed_freqs() const {
  std::vector<double> freqs = plain_freqs(compress_rope_theta, rope_dim);
  if (yarn.enabled) {
    const double low = std::max(0.0, std::floor(yarn_border(*this, yarn.beta_fast)));
    double high = std::min(static_cast<double>(rope_dim - 1), std::ceil(yarn_border(*this, yarn.beta_slow)));
    if (low == high) high += 0.001;
    for (size_t i = 0; i < freqs.size(); ++i) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      freqs[i] = freqs[i] * (1.0 - ramp) + freqs[i] / static_cast<double>(yarn.factor) * ramp;
    }
  }
  return {freqs.begin(), freqs.end()};
}

void Config::validate(const std::string& file) const {
  const Checker check{file};
  check_sizes(*this, check);
  check_rope(*this, check);
  check_schedule(*this, check);
  check.real("hc_eps", hc_eps, 0.0F, 1.0F);
  check.real("rms_norm_eps", rms_norm_eps, 0.0F, 1.0F);
  check.real("routed_scaling_factor", route_scale, 1e-6F, 1e6F);
}

}  // namespace synod::deepseek4
