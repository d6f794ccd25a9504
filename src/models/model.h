// A model: what it keeps per sequence and one forward call, written once for all backends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "kv/cache_spec.h"
#include "kv/kv_cache.h"
#include "models/dialogue.h"
#include "models/weights.h"
#include "ops/backend.h"
#include "ops/batch.h"
#include "ops/fusion.h"

namespace synod {

enum class Profile {
  kM,  // pure mathematics: equals Hugging Face transformers
  kQ,  // DeepSeek-V4: the rounding points of the authors' program
};

struct ModelOptions {
  Profile profile = Profile::kM;
  FusionMode fusion = FusionMode::kAuto;
  int64_t fusion_budget_bytes = 0;
};

struct ModelInfo {
  std::string architecture;  // GGUF's general.architecture
  std::string name;
  int64_t n_layers = 0, d_model = 0, vocab_size = 0;
  int64_t n_experts = 0, n_experts_used = 0;  // 0 without experts
  int64_t context_length = 0;                 // tokens the model was made for
  std::vector<std::string> layer_kinds;       // per layer: "sliding", "full"; "window", "csa", "hca"
};

// What a forward call should produce. Outputs are caller-owned.
struct ForwardRequest {
  Tensor rows;    // i32 [n_rows] token rows whose logits are wanted; absent = every row of the batch
  Tensor logits;  // f32 [n_rows, vocab_size], or absent
  Tensor greedy;  // i32 [n_rows], or absent: arg-max without soft cap and without copying logits
  // Called with the embedding output (0), the output of each layer (1 ... n_layers - 1), and the state after
  // the final norm (n_layers). The tensor is valid during the call only.
  std::function<void(int64_t index, const Tensor& hidden)> tap;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  virtual const CacheSpec& cache_spec() const = 0;
  virtual const Weights& weights() const = 0;
  virtual const FusionPlan& fusion() const = 0;
  virtual std::unique_ptr<Dialogue> dialogue() const = 0;

  // Runs the batch's new tokens through all layers; writes their cache rows through `kv` (pages reserved by
  // the caller, who commits after require_ok). Issues ops only; reads no device data on the host.
  virtual void forward(const BatchView& batch, const KvView& kv, Backend& be,
                       const ForwardRequest& request) const = 0;
  // Forward calls of one kind with equal shapes, without a tap, issue the same ops, which name no memory of
  // the host but constants, batch, page tables and request (ops/step_replay.h). None: no promise.
  virtual std::optional<uint64_t> step_kind(const BatchView&) const { return std::nullopt; }
};

// A small f32 tensor that GGUF files carry but other containers imply (rope_freqs.weight).
struct ComputedTensor {
  std::string name;
  std::vector<float> values;
};

// An architecture: everything that depends on the family. One line in the registry (registry.cpp).
struct Architecture {
  std::string_view name;                         // GGUF's general.architecture
  std::vector<std::string_view> hf_model_types;  // config.json's model_type (top or text_config)
  // Reads and validates the configuration, binds the weights. Throws kBadFile.
  std::unique_ptr<Model> (*load)(const Checkpoint& checkpoint, const ModelOptions& options);
  // The same from a config.json text alone, with planned weights of `type` (dry runs).
  std::unique_ptr<Model> (*plan)(const std::string& config_json, DType type, const ModelOptions& options);
  // Roles and GGUF metadata for conversion. Keys of the tokenizer are written by the converter.
  std::vector<WeightSpec> (*specs)(const Checkpoint& checkpoint);
  std::vector<WeightSpec> (*config_specs)(const std::string& config_json);  // from a config.json text alone
  DialectInfo (*dialects)(const Checkpoint& checkpoint);
  void (*write_metadata)(const Checkpoint& checkpoint, GgufMetadata& out);
  // Empty where there are none.
  std::vector<ComputedTensor> (*computed_tensors)(const Checkpoint& checkpoint);
  std::unique_ptr<Dialogue> (*dialogue)();
};

// general.name of a GGUF file, else the name of the file or folder.
std::string model_name(const Checkpoint& checkpoint);

// Throws kBadFile naming the architecture found and those supported.
const Architecture& find_architecture(const Checkpoint& checkpoint);
std::span<const Architecture* const> architectures();

std::unique_ptr<Model> load_model(const Checkpoint& checkpoint, const ModelOptions& options);

// Tokenizer of a checkpoint: GGUF metadata or tokenizer.json. Throws kBadFile; kNotFound when there is none.
Tokenizer load_tokenizer(const Checkpoint& checkpoint);
// Adds the tokenizer.ggml.* keys, stop ids and chat template of `checkpoint` to `out`.
void write_tokenizer_metadata(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                              std::string_view architecture, GgufMetadata& out);
// Stop ids: dialogue's, tokenizer's eos, generation_config / config eos_token_id lists, GGUF eos/eot/eom ids.
std::vector<int32_t> stop_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                              const Dialogue& dialogue);
// Ids that must never be chosen: generation_config's suppress_tokens, GGUF's tokenizer.ggml.suppress_tokens.
std::vector<int32_t> suppressed_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer);

}  // namespace synod
