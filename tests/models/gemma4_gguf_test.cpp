// A GGUF file written from a checkpoint's roles and keys is the same model: same configuration, same logits.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/gemma4/config.h"
#include "models/gemma4/gemma4.h"
#include "models/gemma4/metadata.h"
#include "models/run_model.h"
#include "ref/ref_backend.h"

namespace synod::gemma4 {
namespace {

using namespace synod::testing;
namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kData = fs::path(SYNOD_SOURCE_DIR) / "tests/data";

struct Stored {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

void append_rows(const Matrix& matrix, std::vector<float>& out) {
  const size_t begin = out.size();
  out.resize(begin + static_cast<size_t>(matrix.n_out * matrix.n_in));
  for (int64_t r = 0; r < matrix.n_out; ++r) {
    decode_row(matrix, r, out.data() + begin + static_cast<size_t>(r * matrix.n_in));
  }
}

std::vector<Stored> decoded(const Checkpoint& checkpoint, const Weights& weights) {
  std::vector<Stored> tensors;
  for (const WeightSpec& spec : architecture().specs(checkpoint)) {
    if (!weights.has(spec.role)) continue;
    Stored& tensor = tensors.emplace_back(Stored{spec.role, spec.shape, {}});
    if (spec.kind == WeightSpec::Kind::kVector) append_values(weights.vector(spec.role), tensor.values);
    if (spec.kind == WeightSpec::Kind::kMatrix) append_rows(weights.matrix(spec.role), tensor.values);
    if (spec.kind == WeightSpec::Kind::kExperts) {
      for (const Matrix& expert : weights.experts(spec.role)) append_rows(expert, tensor.values);
    }
  }
  for (const ComputedTensor& computed : architecture().computed_tensors(checkpoint)) {
    tensors.push_back({computed.name, {static_cast<int64_t>(computed.values.size())}, computed.values});
  }
  return tensors;
}

// Gate and up of every expert as one tensor, as most files have them.
void fuse_experts(std::vector<Stored>& tensors) {
  for (size_t g = 0; g < tensors.size(); ++g) {
    const size_t at = tensors[g].name.find("ffn_gate_exps");
    if (at == std::string::npos) continue;
    std::string up_name = tensors[g].name;
    up_name.replace(at, 13, "ffn_up_exps");
    const auto up =
        std::find_if(tensors.begin(), tensors.end(), [&](const Stored& t) { return t.name == up_name; });
    ASSERT_NE(up, tensors.end());
    const auto n = tensors[g].values.size() / static_cast<size_t>(tensors[g].shape[0]);
    std::vector<float> both;
    for (size_t e = 0; e < static_cast<size_t>(tensors[g].shape[0]); ++e) {
      for (const Stored* t : {&tensors[g], &*up}) {
        both.insert(both.end(), t->values.begin() + static_cast<int64_t>(e * n),
                    t->values.begin() + static_cast<int64_t>((e + 1) * n));
      }
    }
    tensors[g].name.replace(at, 13, "ffn_gate_up_exps");
    tensors[g].shape[1] *= 2;
    tensors[g].values = std::move(both);
    tensors.erase(up);
  }
}

void write_file(const fs::path& path, const GgufMetadata& metadata, const std::vector<Stored>& tensors) {
  GgufWriter writer(path);
  for (const auto& [key, value] : metadata.entries()) writer.metadata().set(key, value);
  for (const Stored& tensor : tensors) writer.declare(tensor.name, DType::kF32, tensor.shape);
  for (const Stored& tensor : tensors) writer.write(std::as_bytes(std::span(tensor.values)));
  writer.finish();
}

class Gemma4Gguf : public ::testing::TestWithParam<const char*> {};

TEST_P(Gemma4Gguf, AFileFromTheRolesGivesTheSameLogits) {
  const fs::path folder = kData / "checkpoints" / GetParam();
  const Checkpoint original = Checkpoint::open(folder);
  const auto model = architecture().load(original, {});
  const Expected expected = load_expected(folder / "expected.safetensors");
  const auto ids = std::span(expected.ids).first(60);
  RefBackend be;
  const Output want = run_model(*model, be, ids, {}, false);

  GgufMetadata metadata;
  architecture().write_metadata(original, metadata);
  for (const bool fused : {false, true}) {
    std::vector<Stored> tensors = decoded(original, model->weights());
    if (fused) fuse_experts(tensors);
    const fs::path path = fs::path(::testing::TempDir()) / fmt::format("{}-{}.gguf", GetParam(), fused);
    write_file(path, metadata, tensors);
    const Checkpoint copy = Checkpoint::open(path);
    EXPECT_TRUE(read_config(copy) == read_config(original));
    EXPECT_EQ(rope_freq_divisors(copy), rope_freq_divisors(original));
    EXPECT_TRUE(architecture().computed_tensors(copy).empty());
    const auto loaded = architecture().load(copy, {});
    EXPECT_EQ(loaded->weights().dialect(), "GGUF");
    EXPECT_EQ(loaded->info().name, GetParam());
    const Output got = run_model(*loaded, be, ids, {}, false);
    EXPECT_TRUE(got.logits == want.logits)
        << "max difference " << max_abs_difference(got.logits, want.logits);
    fs::remove(path);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Gemma4Gguf,
                         ::testing::Values("gemma4-dense-tiny", "gemma4-moe-tiny", "gemma4-ple-tiny",
                                           "gemma4-mlx4", "gemma4-nvfp4"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Configurations of the real sizes, with a small vocabulary and only the tensors that configurations depend
// on.
class Gemma4Keys : public ::testing::TestWithParam<const char*> {
 protected:
  Gemma4Keys() {
    json root =
        parse_json(read_text_file(kData / "configs" / (std::string("gemma4-") + GetParam() + ".json")), "c");
    root["text_config"]["vocab_size"] = 16;
    root["text_config"]["vocab_size_per_layer_input"] = 8;
    config_ = config_from_json(root, "config.json");
    write_config(config_, metadata_);
    add("token_embd.weight", {16, config_.d_model});
    if (config_.d_ple > 0) add("per_layer_token_embd.weight", {8, config_.n_layers() * config_.d_ple});
    for (int64_t i = 0; i < config_.n_layers(); ++i) {
      if (config_.layer(i).owns_kv && !config_.layer(i).k_eq_v)
        add(fmt::format("blk.{}.attn_v.weight", i), {1, 1});
    }
  }
  ~Gemma4Keys() override { fs::remove(path()); }

  void add(std::string name, std::vector<int64_t> shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    tensors_.push_back({std::move(name), std::move(shape), std::vector<float>(static_cast<size_t>(n))});
  }
  void add_divisors() {
    const auto divisors = rope_freq_divisors(config_);
    tensors_.push_back({"rope_freqs.weight", {static_cast<int64_t>(divisors.size())}, divisors});
  }
  fs::path path() const {
    return fs::path(::testing::TempDir()) / fmt::format("gemma4-keys-{}.gguf", GetParam());
  }
  Config read() const {
    GgufMetadata all = metadata_;
    all.set_string("general.architecture", "gemma4");
    write_file(path(), all, tensors_);
    return read_config(Checkpoint::open(path()));
  }
  GgufMetadata without(std::initializer_list<std::string_view> keys) const {
    GgufMetadata rest;
    for (const auto& [key, value] : metadata_.entries()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) rest.set(key, value);
    }
    return rest;
  }

  Config config_;
  GgufMetadata metadata_;
  std::vector<Stored> tensors_;
};

TEST_P(Gemma4Keys, ReadBackTheSameConfiguration) {
  EXPECT_TRUE(read() == config_) << "rope_freqs.weight synthesised";
  add_divisors();
  EXPECT_TRUE(read() == config_);
  metadata_ =
      without({"gemma4.final_logit_softcapping", "gemma4.rope.freq_base_swa", "gemma4.rope.dimension_count"});
  EXPECT_TRUE(read() == config_) << "defaults of keys that converters leave out";
}

TEST_P(Gemma4Keys, ArraysAndScalarsMeanTheSame) {
  std::vector<uint32_t> d_ff, heads;
  for (const LayerConfig& layer : config_.layers) {
    d_ff.push_back(static_cast<uint32_t>(layer.d_ff));
    heads.push_back(static_cast<uint32_t>(config_.n_heads));
  }
  metadata_.set_u32s("gemma4.feed_forward_length", d_ff);
  metadata_.set_u32s("gemma4.attention.head_count", heads);
  EXPECT_TRUE(read() == config_);
  d_ff.pop_back();
  metadata_.set_u32s("gemma4.feed_forward_length", d_ff);
  EXPECT_THROW(read(), Error);
}

TEST_P(Gemma4Keys, RefusesContradictions) {
  const GgufMetadata good = metadata_;
  const auto refused = [&](const char* key, uint32_t value) {
    metadata_ = good;
    metadata_.set_u32(key, value);
    try {
      read();
      ADD_FAILURE() << key << " = " << value << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
    }
  };
  refused("gemma4.block_count", 0);
  refused("gemma4.block_count", 4000000000U);
  refused("gemma4.block_count", static_cast<uint32_t>(config_.n_layers()) + 1);
  refused("gemma4.attention.value_length", 64);
  refused("gemma4.rope.dimension_count", 64);
  refused("gemma4.vocab_size", 17);
  refused("gemma4.attention.head_count_kv", 3);
  refused("gemma4.attention.sliding_window", 0);
  refused("gemma4.attention.shared_kv_layers", static_cast<uint32_t>(config_.n_layers()));
  refused("gemma4.expert_count", 4000000000U);
  metadata_ = good;
  add("rope_freqs.weight", {7});
  EXPECT_THROW(read(), Error);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Gemma4Keys, ::testing::Values("e2b", "e4b", "12b", "26b-a4b", "31b"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace synod::gemma4
