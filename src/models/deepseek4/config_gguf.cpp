// Configuration from GGUF keys.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "models/deepseek4/config.h"
#include "models/deepseek4/gguf_keys.h"

namespace synod::deepseek4 {
namespace {

constexpr int64_t kMaxBlocks = 4096;

class Reader {
 public:
  explicit Reader(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), keys_(checkpoint.gguf()), file_(checkpoint.path().string()) {}

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const GgufMetadata& keys() const { return keys_; }
  const std::string& file() const { return file_; }

  int64_t get_int(std::string_view name) const { return keys_.get_int(full_key(name)); }
  float get_float(std::string_view name) const { return static_cast<float>(keys_.get_float(full_key(name))); }
  std::optional<int64_t> find_int(std::string_view name) const { return keys_.find_int(full_key(name)); }
  std::optional<float> find_float(std::string_view name) const {
    const auto value = keys_.find_float(full_key(name));
    return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
  }

  // A key that may be absent but must not differ.
  template <typename T>
  void only(std::string_view name, const std::optional<T>& value, const T& expected) const {
    if (value && *value != expected)
      bad_file("{}: {}: expected {}, got {}", file_, full_key(name), expected, *value);
  }

 private:
  const Checkpoint& checkpoint_;
  const GgufMetadata& keys_;
  std::string file_;
};

// Files with a draft block inside count it in block_count; the counter nextn_predict_layers does not tell.
int64_t decoder_layers(const Reader& in) {
  const int64_t n_blocks = in.get_int(kBlockCount);
  if (n_blocks < 1 || n_blocks > kMaxBlocks) {
    bad_file("{}: {}: expected a value from 1 to {}, got {}", in.file(), full_key(kBlockCount), kMaxBlocks,
             n_blocks);
  }
  const bool has_draft =
      in.checkpoint().find(fmt::format("blk.{}.nextn.eh_proj.weight", n_blocks - 1)) != nullptr;
  return has_draft ? n_blocks - 1 : n_blocks;
}

// Rows of the embedding, which files without a vocabulary size imply.
int64_t read_vocab_size(const Reader& in) {
  if (const auto size = in.find_int(kVocabSize)) return *size;
  const Tensor* table = in.checkpoint().find("token_embd.weight");
  if (table == nullptr || table->rank != 2) {
    bad_file("{}: neither the key {} nor a matrix token_embd.weight", in.file(), full_key(kVocabSize));
  }
  return table->dim(0);
}

void check_fixed(const Reader& in) {
  const int64_t gating = in.get_int(kExpertGating);
  in.only<int64_t>(kExpertGating, gating, kGatingSqrtSoftplus);
  in.only<int64_t>(kHeadCountKv, in.find_int(kHeadCountKv), 1);
  in.only<int64_t>(kExpertGroupCount, in.find_int(kExpertGroupCount), 0);
  in.only<bool>(kExpertWeightsNorm, in.keys().find_bool(full_key(kExpertWeightsNorm)), true);
  in.only<float>(kYarnExtFactor, in.find_float(kYarnExtFactor), -1.0F);
  in.only<float>(kYarnAttnFactor, in.find_float(kYarnAttnFactor), 1.0F);
}

std::vector<int64_t> read_ratios(const Reader& in, int64_t n_layers) {
  auto ratios = in.keys().find_ints(full_key(kCompressRatios));
  if (!ratios) bad_file("{}: the key {} is missing", in.file(), full_key(kCompressRatios));
  if (static_cast<int64_t>(ratios->size()) < n_layers) {
    bad_file("{}: {}: expected at least {} entries, got {}", in.file(), full_key(kCompressRatios), n_layers,
             ratios->size());
  }
  ratios->resize(static_cast<size_t>(n_layers));
  return *ratios;
}

// One limit per layer, or one for all.
std::optional<std::vector<float>> read_clamp(const Reader& in, std::string_view name, int64_t n_layers) {
  const auto values = in.keys().find_floats(full_key(name));
  if (!values) return std::nullopt;
  if (values->size() == 1) {
    return std::vector<float>(static_cast<size_t>(n_layers), static_cast<float>(values->front()));
  }
  if (static_cast<int64_t>(values->size()) < n_layers) {
    bad_file("{}: {}: expected {} entries (or 1), got {}", in.file(), full_key(name), n_layers,
             values->size());
  }
  return std::vector<float>(values->begin(), values->begin() + n_layers);
}

Yarn read_yarn(const Reader& in) {
  Yarn yarn{.enabled = true, .factor = 16.0F, .original_context = 65536};
  const auto type = in.keys().find_string(full_key(kScalingType));
  if (!type) {
    // Conversions that lost these keys exist; all released checkpoints share the values.
    log_warning(
        "{}: the key {} is missing; using YaRN with factor 16 over 65536 tokens, as all released checkpoints",
        in.file(), full_key(kScalingType));
    return yarn;
  }
  if (*type == "none") return {};
  if (*type != "yarn")
    bad_file("{}: {}: expected yarn or none, got {}", in.file(), full_key(kScalingType), *type);
  yarn.factor = in.get_float(kScalingFactor);
  yarn.original_context = in.get_int(kScalingContext);
  yarn.beta_fast = in.find_float(kYarnBetaFast).value_or(yarn.beta_fast);
  yarn.beta_slow = in.find_float(kYarnBetaSlow).value_or(yarn.beta_slow);
  return yarn;
}

void read_attention(const Reader& in, Config& c) {
  c.n_heads = in.get_int(kHeadCount);
  c.head_dim = in.get_int(kKeyLength);
  in.only<int64_t>(kValueLength, in.find_int(kValueLength), c.head_dim);
  c.rope_dim = in.get_int(kRopeDim);
  c.q_rank = in.get_int(kQueryRank);
  c.n_output_groups = in.get_int(kOutputGroups);
  c.output_rank = in.get_int(kOutputRank);
  c.window = in.get_int(kWindow);
  c.ratios = read_ratios(in, c.n_layers);
  c.rope_theta = in.get_float(kRopeBase);
  c.compress_rope_theta = in.get_float(kCompressRopeBase);
  c.yarn = read_yarn(in);
  const bool indexed = c.has_ratio(kRatioSparse);
  c.n_index_heads = indexed ? in.get_int(kIndexHeads) : in.find_int(kIndexHeads).value_or(0);
  c.index_dim = indexed ? in.get_int(kIndexDim) : in.find_int(kIndexDim).value_or(0);
  c.index_top_k = indexed ? in.get_int(kIndexTopK) : in.find_int(kIndexTopK).value_or(0);
}

void read_experts(const Reader& in, Config& c) {
  c.n_experts = in.get_int(kExpertCount);
  c.n_experts_used = in.get_int(kExpertUsed);
  c.n_shared_experts = in.get_int(kExpertShared);
  c.d_expert = in.get_int(kExpertWidth);
  c.route_scale = in.get_float(kExpertWeightsScale);
  c.n_hash_layers = in.get_int(kHashLayers);
  const auto clamp = read_clamp(in, kExpertClamp, c.n_layers);
  if (!clamp) bad_file("{}: the key {} is missing", in.file(), full_key(kExpertClamp));
  c.expert_clamp = *clamp;
  c.shared_clamp = read_clamp(in, kSharedClamp, c.n_layers).value_or(*clamp);
}

}  // namespace

Config Config::from_gguf(const Checkpoint& checkpoint) {
  const Reader in(checkpoint);
  check_fixed(in);
  Config c;
  c.n_layers = decoder_layers(in);
  if (c.n_layers < 1) bad_file("{}: {}: the only block is a draft block", in.file(), full_key(kBlockCount));
  c.vocab_size = read_vocab_size(in);
  c.d_model = in.get_int(kEmbeddingLength);
  c.context_length = in.get_int(kContextLength);
  c.n_streams = in.get_int(kStreams);
  c.sinkhorn_iterations = in.get_int(kSinkhornIterations);
  c.hc_eps = in.get_float(kStreamsEps);
  c.rms_norm_eps = in.get_float(kRmsEps);
  read_attention(in, c);
  read_experts(in, c);
  c.validate(in.file());
  // After validate: both factors are in range.
  in.only<int64_t>(kEmbeddingLengthOut, in.find_int(kEmbeddingLengthOut), c.n_streams * c.d_model);
  return c;
}

}  // namespace synod::deepseek4
