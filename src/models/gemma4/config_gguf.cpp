// The same configuration from GGUF keys, and those keys from a configuration.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "models/gemma4/config.h"
#include "models/gemma4/gguf_keys.h"
#include "quant/codec.h"

namespace synod::gemma4 {
namespace {

// Files hold 1e30 where a pair does not rotate.
constexpr float kInfiniteDivisor = 1e20F;

class Keys {
 public:
  explicit Keys(const Checkpoint& checkpoint)
      : metadata_(checkpoint.gguf()), source_(checkpoint.path().string()) {}

  int64_t get_int(std::string_view key) const { return metadata_.get_int(full(key)); }
  int64_t find_int(std::string_view key, int64_t fallback) const {
    return metadata_.find_int(full(key)).value_or(fallback);
  }
  float find_float(std::string_view key, double fallback) const {
    return static_cast<float>(metadata_.find_float(full(key)).value_or(fallback));
  }
  // A scalar means the same for all layers.
  std::vector<int64_t> per_layer(std::string_view key, int64_t n_layers) const {
    const auto values = metadata_.find_ints(full(key));
    if (!values) bad_file("{}: {} is missing", source_, full(key));
    return spread(key, *values, n_layers);
  }
  std::vector<bool> sliding_pattern(int64_t n_layers) const {
    const auto values = metadata_.find_bools(full(key::kSlidingPattern));
    return values ? spread(key::kSlidingPattern, *values, n_layers) : default_sliding_pattern(n_layers);
  }
  void require_equal(std::string_view key, int64_t expected) const {
    const int64_t got = find_int(key, expected);
    if (got != expected) bad_file("{}: {}: expected {}, got {}", source_, full(key), expected, got);
  }
  static std::string full(std::string_view key) { return full_key(key); }
  const std::string& source() const { return source_; }

 private:
  template <typename T>
  std::vector<T> spread(std::string_view key, const std::vector<T>& values, int64_t n_layers) const {
    const auto n = static_cast<size_t>(n_layers);
    if (values.size() == n) return values;
    if (values.size() == 1) return std::vector<T>(n, values[0]);
    bad_file("{}: {}: expected one value or {}, one per layer, got {}", source_, full(key), n, values.size());
  }

  const GgufMetadata& metadata_;
  std::string source_;
};

int64_t rows_of(const Checkpoint& checkpoint, const char* name) {
  const Tensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) bad_file("{}: tensor {} is missing", checkpoint.path().string(), name);
  if (tensor->rank != 2) {
    bad_file("{}: tensor {}: expected 2 dimensions, got {}", checkpoint.path().string(), name, tensor->rank);
  }
  return tensor->dim(0);
}

std::vector<float> read_divisors(const Checkpoint& checkpoint, int64_t head_dim) {
  const Tensor* tensor = checkpoint.find(key::kRopeFreqs);
  if (tensor == nullptr) return proportional_divisors(head_dim, 0.25, 1.0);
  if (tensor->rank != 1 || tensor->dim(0) != head_dim / 2 || tensor->type != DType::kF32) {
    bad_file("{}: tensor {}: expected f32 [{}], got {} {}", checkpoint.path().string(), key::kRopeFreqs,
             head_dim / 2, name(tensor->type), shape_string(*tensor));
  }
  std::vector<float> divisors(static_cast<size_t>(head_dim / 2));
  decode(tensor->type, tensor->data, head_dim / 2, divisors.data());
  for (float& divisor : divisors) {
    if (!(divisor > 0.0F)) {
      bad_file("{}: tensor {}: expected values above 0, got {}", checkpoint.path().string(), key::kRopeFreqs,
               divisor);
    }
    if (divisor >= kInfiniteDivisor) divisor = std::numeric_limits<float>::infinity();
  }
  return divisors;
}

// Values are the raw key projection where no value projection is stored: a property of all full layers
// together, so that a file which lost one matrix is not read as another model.
bool has_k_eq_v(const Checkpoint& checkpoint, const Config& config) {
  for (int64_t i = 0; i < config.n_layers(); ++i) {
    if (config.layer(i).sliding || !config.layer(i).owns_kv) continue;
    if (checkpoint.find(fmt::format("blk.{}.attn_v.weight", i)) != nullptr) return false;
  }
  return true;
}

void read_layers(const Keys& keys, const Checkpoint& checkpoint, Config& config) {
  const int64_t n_layers = keys.get_int(key::kLayers);
  if (n_layers < 1 || n_layers > 4096) {
    bad_file("{}: {}: expected 1 to 4096, got {}", keys.source(), Keys::full(key::kLayers), n_layers);
  }
  const std::vector<bool> sliding = keys.sliding_pattern(n_layers);
  const std::vector<int64_t> d_ff = keys.per_layer(key::kFeedForward, n_layers);
  const std::vector<int64_t> n_kv_heads = keys.per_layer(key::kKvHeads, n_layers);
  config.n_kv_shared_layers = keys.find_int(key::kSharedKvLayers, 0);
  config.layers.resize(static_cast<size_t>(n_layers));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    layer.sliding = sliding[i];
    layer.d_ff = d_ff[i];
    layer.n_kv_heads = n_kv_heads[i];
    layer.head_dim = layer.sliding ? config.sliding_head_dim : config.full_head_dim;
  }
  assign_donors(config, keys.source());
  const bool k_eq_v = has_k_eq_v(checkpoint, config);
  for (LayerConfig& layer : config.layers) layer.k_eq_v = k_eq_v && !layer.sliding && layer.owns_kv;
}

void read_head_dims(const Keys& keys, Config& config) {
  config.full_head_dim = keys.get_int(key::kKeyLength);
  config.sliding_head_dim = keys.find_int(key::kKeyLengthSliding, config.full_head_dim);
  keys.require_equal(key::kValueLength, config.full_head_dim);
  keys.require_equal(key::kValueLengthSliding, config.sliding_head_dim);
  keys.require_equal(key::kRopeDim, config.full_head_dim);
  keys.require_equal(key::kRopeDimSliding, config.sliding_head_dim);
}

int64_t read_heads(const Keys& keys, int64_t n_layers) {
  const std::vector<int64_t> heads = keys.per_layer(key::kHeads, n_layers);
  for (const int64_t n : heads) {
    if (n != heads[0])
      bad_file("{}: {}: layers with different head counts", keys.source(), Keys::full(key::kHeads));
  }
  return heads[0];
}

}  // namespace

std::string full_key(std::string_view key) { return fmt::format("gemma4.{}", key); }

Config config_from_gguf(const Checkpoint& checkpoint) {
  const Keys keys(checkpoint);
  Config config;
  config.d_model = keys.get_int(key::kWidth);
  config.context_length = keys.find_int(key::kContext, 131072);
  config.window = keys.find_int(key::kWindow, 512);
  config.vocab_size = rows_of(checkpoint, "token_embd.weight");
  keys.require_equal(key::kVocabulary, config.vocab_size);
  config.tied_head = checkpoint.find("output.weight") == nullptr;
  config.d_ple = keys.find_int(key::kPerLayerInput, 0);
  if (config.d_ple > 0) config.ple_vocab_size = rows_of(checkpoint, "per_layer_token_embd.weight");
  config.rms_eps = keys.find_float(key::kRmsEpsilon, 1e-6);
  // Some converters leave the key out; the published models all have 30.
  config.soft_cap = keys.find_float(key::kSoftCap, 30.0);
  config.full_rope_theta = keys.find_float(key::kRopeTheta, 1e6);
  config.sliding_rope_theta = keys.find_float(key::kRopeThetaSliding, 1e4);
  config.n_experts = keys.find_int(key::kExperts, 0);
  if (config.n_experts != 0) {
    config.n_experts_used = keys.get_int(key::kExpertsUsed);
    config.d_expert = keys.get_int(key::kExpertWidth);
  }
  read_head_dims(keys, config);
  read_layers(keys, checkpoint, config);
  config.n_heads = read_heads(keys, config.n_layers());
  validate(config, keys.source());
  config.rope_divisors = read_divisors(checkpoint, config.full_head_dim);
  return config;
}

}  // namespace synod::gemma4
