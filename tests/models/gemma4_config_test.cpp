// Configurations: the published sizes, what a loader must refuse, and dry runs of the real dimensions.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/gemma4/config.h"
#include "models/gemma4/gemma4.h"
#include "models/run_model.h"
#include "wrap/dry_run.h"

namespace synod::gemma4 {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kData = fs::path(SYNOD_SOURCE_DIR) / "tests/data";

std::string published_text(const std::string& size) {
  return read_text_file(kData / "configs" / ("gemma4-" + size + ".json"));
}
json published(const std::string& size) { return parse_json(published_text(size), size); }
Config config_of(const json& root) { return config_from_json(root, "config.json"); }

struct Size {
  const char* name;
  int64_t n_layers, n_sliding_owners, n_full_owners, sliding_donor, full_donor;
  double bf16_gb, bf16_read_gb;  // size of the published file, read per decoded token; 10^9 bytes
  int64_t sliding_kv, full_kv;   // cached values per token, all layers
};
const Size kSizes[] = {
    {"e2b", 35, 12, 3, 13, 14, 9.26, 4.559, 6144, 3072},
    {"e4b", 42, 20, 4, 22, 23, 14.92, 9.288, 20480, 8192},
    {"12b", 48, 40, 8, 46, 47, 23.81, 23.81, 163840, 8192},
    {"26b-a4b", 30, 25, 5, 28, 29, 50.46, 7.644, 102400, 10240},
    {"31b", 60, 50, 10, 58, 59, 61.39, 61.39, 409600, 40960},
};

TEST(Gemma4Config, PublishedSizesHaveTheirLayersAndDonors) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.name);
    const Config config = config_of(published(size.name));
    ASSERT_EQ(config.n_layers(), size.n_layers);
    int64_t owners[2] = {0, 0};
    for (int64_t i = 0; i < config.n_layers(); ++i) {
      const LayerConfig& layer = config.layer(i);
      EXPECT_EQ(layer.head_dim, layer.sliding ? 256 : 512);
      EXPECT_EQ(layer.donor, layer.owns_kv ? i : layer.sliding ? size.sliding_donor : size.full_donor);
      if (layer.owns_kv) ++owners[layer.sliding ? 1 : 0];
    }
    EXPECT_EQ(owners[1], size.n_sliding_owners);
    EXPECT_EQ(owners[0], size.n_full_owners);
    EXPECT_EQ(config.soft_cap, 30.0F);
    EXPECT_TRUE(config.tied_head);
  }
}

TEST(Gemma4Config, FieldsThatDependOnTheLayer) {
  const Config e2b = config_of(published("e2b"));
  EXPECT_EQ(e2b.layer(14).d_ff, 6144);
  EXPECT_EQ(e2b.layer(15).d_ff, 12288);
  EXPECT_EQ(e2b.layer(4).n_kv_heads, 1);
  EXPECT_FALSE(e2b.layer(4).k_eq_v);
  EXPECT_EQ(config_of(published("e4b")).layer(41).d_ff, 10240);

  const Config moe = config_of(published("26b-a4b"));
  EXPECT_EQ(moe.layer(4).n_kv_heads, 8);
  EXPECT_EQ(moe.layer(5).n_kv_heads, 2);
  EXPECT_TRUE(moe.layer(5).k_eq_v);
  EXPECT_FALSE(moe.layer(4).k_eq_v);
  EXPECT_EQ(moe.n_experts, 128);
}

TEST(Gemma4Config, RopeFrequenciesHaveTheReferenceValues) {
  const Config config = config_of(published("26b-a4b"));
  const auto sliding = rope_frequencies(256, config.sliding_rope_theta, {});
  EXPECT_EQ(sliding[0], 1.0F);
  EXPECT_NEAR(sliding[1], 0.930572F, 5e-7F);
  EXPECT_NEAR(sliding[127], 1.074608e-4F, 5e-11F);
  const auto full = rope_frequencies(512, config.full_rope_theta, config.rope_divisors);
  ASSERT_EQ(full.size(), 256U);
  EXPECT_NEAR(full[1], 0.947464F, 5e-7F);
  EXPECT_NEAR(full[63], 0.0333762F, 5e-8F);
  for (size_t i = 64; i < 256; ++i) ASSERT_EQ(full[i], 0.0F);
}

TEST(Gemma4Config, AFactorDividesTheFrequenciesOfFullLayers) {
  json root = published("12b");
  root["text_config"]["rope_parameters"]["full_attention"]["factor"] = 8.0;
  const Config config = config_of(root);
  const auto plain = rope_frequencies(512, 1e6F, {});
  const auto scaled = rope_frequencies(512, config.full_rope_theta, config.rope_divisors);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(scaled[i], plain[i] / 8.0F);
  EXPECT_EQ(scaled[64], 0.0F);
}

// The three spellings of one geometry, with and without text_config.
TEST(Gemma4Config, PerLayerEntriesReplaceOrRepeatTheGlobalFields) {
  const json root = published("26b-a4b");
  const Config expected = config_of(root);
  json both = root;
  for (int layer = 5; layer < 30; layer += 6) {
    both["text_config"]["per_layer_config"][std::to_string(layer)] = {{"head_dim", 512},
                                                                      {"num_key_value_heads", 2}};
  }
  EXPECT_TRUE(config_of(both) == expected);
  json only = both;
  only["text_config"].erase("global_head_dim");
  only["text_config"]["num_global_key_value_heads"] = nullptr;
  EXPECT_TRUE(config_of(only) == expected);
  EXPECT_TRUE(config_of(only["text_config"]) == expected);

  json contradiction = both;
  contradiction["text_config"]["per_layer_config"]["11"]["head_dim"] = 256;
  EXPECT_THROW(config_of(contradiction), Error);
}

TEST(Gemma4Config, AbsentFieldsGetTheirDefaults) {
  json root = published("26b-a4b");
  json& text = root["text_config"];
  for (const char* key : {"layer_types", "global_head_dim", "rope_parameters", "final_logit_softcapping",
                          "hidden_activation", "tie_word_embeddings", "attention_bias"}) {
    text.erase(key);
  }
  Config expected = config_of(published("26b-a4b"));
  expected.soft_cap = 0.0F;
  EXPECT_TRUE(config_of(root) == expected);
  text["sliding_window"] = nullptr;
  EXPECT_EQ(config_of(root).window, 512);
  // The last layer is full whatever the count.
  text["num_hidden_layers"] = 8;
  EXPECT_FALSE(config_of(root).layer(7).sliding);
  EXPECT_TRUE(config_of(root).layer(6).sliding);
}

// Nothing may be derived from the layer's number when the kinds are listed.
TEST(Gemma4Config, FullLayersMayStandAnywhere) {
  json root = published("e2b");
  json& types = root["text_config"]["layer_types"];
  for (json& type : types) type = "sliding_attention";
  types[2] = types[7] = types[34] = "full_attention";
  const Config config = config_of(root);
  EXPECT_EQ(config.layer(34).donor, 7);
  EXPECT_EQ(config.layer(20).donor, 14);
  EXPECT_EQ(config.layer(2).head_dim, 512);
}

struct BadCase {
  const char* size;
  const char* pointer;  // into text_config
  json value;
  const char* message;  // that must appear
};

TEST(Gemma4Config, RefusesWhatItWouldMisread) {
  const BadCase cases[] = {
      {"12b", "/layer_types/3", "linear_attention", "layer_types"},
      {"12b", "/layer_types", json::array({"full_attention"}), "num_hidden_layers = 48"},
      {"12b", "/layer_types/47", "sliding_attention", "full_attention"},
      {"12b", "/num_attention_heads", 12, "12 attention heads"},
      {"12b", "/num_global_key_value_heads", 3, "3 key/value heads"},
      {"12b", "/num_key_value_heads", 0, "key/value heads"},
      {"12b", "/num_attention_heads", "16", "num_attention_heads: expected an integer"},
      {"12b", "/hidden_size", 0, "hidden size"},
      {"12b", "/hidden_size", -5, "hidden size"},
      {"12b", "/hidden_size", 18446744073709551615ULL, "hidden size"},
      {"12b", "/hidden_size", 3840.0, "hidden_size: expected an integer"},
      {"12b", "/hidden_size", nullptr, "hidden_size is missing"},
      {"12b", "/intermediate_size", 0, "intermediate_size"},
      {"12b", "/intermediate_size", 4611686018427387904, "intermediate_size"},
      {"12b", "/num_hidden_layers", 1000000000, "num_hidden_layers"},
      {"12b", "/num_hidden_layers", 0, "num_hidden_layers"},
      {"12b", "/head_dim", 255, "even"},
      {"12b", "/global_head_dim", 0, "head size of full layers"},
      {"12b", "/global_head_dim", 1LL << 60, "head size of full layers"},
      {"12b", "/vocab_size", 1LL << 40, "vocabulary"},
      {"12b", "/hidden_activation", "silu", "gelu_pytorch_tanh"},
      {"12b", "/attention_bias", true, "attention_bias"},
      {"12b", "/use_bidirectional_attention", "all", "use_bidirectional_attention"},
      {"12b", "/rope_parameters/full_attention/rope_type", "yarn", "rope_type"},
      {"12b", "/rope_parameters/sliding_attention/rope_type", "linear", "rope_type"},
      {"12b", "/rope_parameters/full_attention/partial_rotary_factor", 0.0, "partial_rotary_factor"},
      {"12b", "/rope_parameters/full_attention/partial_rotary_factor", 1.5, "partial_rotary_factor"},
      {"12b", "/rope_parameters/full_attention/factor", -1.0, "factor"},
      {"12b", "/rope_parameters/full_attention/rope_theta", 0, "rope theta"},
      {"12b", "/rope_parameters", 7, "rope_parameters: expected a JSON object"},
      {"12b", "/final_logit_softcapping", 0.0, "final_logit_softcapping"},
      {"12b", "/final_logit_softcapping", -30.0, "final_logit_softcapping"},
      {"12b", "/rms_norm_eps", 0.0, "epsilon"},
      {"12b", "/sliding_window", 0, "window"},
      {"12b", "/num_kv_shared_layers", 48, "share"},
      {"12b", "/num_kv_shared_layers", -1, "share"},
      {"e2b", "/num_kv_shared_layers", 32, "no full layer"},
      {"12b", "/per_layer_config", json{{"5", {{"head_dim", 256}}}}, "contradicts"},
      {"12b", "/per_layer_config", json{{"0", {{"head_dim", 128}}}}, "head_dim"},
      {"12b", "/per_layer_config", json{{"0", 3}}, "per_layer_config"},
      {"e2b", "/per_layer_config", json{{"20", {{"num_key_value_heads", 2}}}}, "shares the keys and values"},
      {"26b-a4b", "/top_k_experts", 129, "experts per token"},
      {"26b-a4b", "/top_k_experts", 0, "experts per token"},
      {"26b-a4b", "/num_experts", nullptr, "num_experts"},
      {"26b-a4b", "/moe_intermediate_size", 0, "expert width"},
      {"e2b", "/hidden_size_per_layer_input", -1, "per-layer"},
  };
  for (const BadCase& bad : cases) {
    json root = published(bad.size);
    root["text_config"][json::json_pointer(bad.pointer)] = bad.value;
    const std::string what = std::string(bad.pointer) + " = " + bad.value.dump();
    try {
      config_of(root);
      ADD_FAILURE() << what << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << what;
      EXPECT_NE(std::string(error.what()).find(bad.message), std::string::npos)
          << what << ": " << error.what();
      EXPECT_EQ(std::string(error.what()).find("config.json"), 0U) << error.what();
    }
  }
  EXPECT_THROW(config_of(json::array()), Error);
  EXPECT_THROW(config_of(json{{"text_config", 1}}), Error);
}

TEST(Gemma4Plan, DryRunsOfThePublishedSizesPass) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.name);
    const auto model = architecture().plan(published_text(size.name), DType::kBF16, {});
    const double gb = static_cast<double>(model->weights().bytes()) / 1e9;
    EXPECT_NEAR(gb, size.bf16_gb, 0.005 * size.bf16_gb);
    int64_t cached[2] = {0, 0};
    for (const RowGroup& group : model->cache_spec().groups) {
      cached[group.window > 0 ? 0 : 1] += group.row_dim * static_cast<int64_t>(group.layers.size());
      EXPECT_EQ(group.boundary_rows, group.window > 0 ? group.window - 1 : 0) << group.name;
    }
    EXPECT_EQ(cached[0], size.sliding_kv);
    EXPECT_EQ(cached[1], size.full_kv);

    DryRun be;
    testing::SequenceRunner runner(*model, be);
    runner.step(std::vector<int32_t>(700, 2), nullptr);
    const int64_t prefill = be.n_ops();
    const int64_t prefill_bytes = be.weight_bytes_read();
    runner.greedy(std::vector<int32_t>{2});
    EXPECT_EQ(be.n_ops(), 2 * prefill + 1);  // the same steps; GatherRows and ArgMax more, SoftCap less
    const double read_gb = static_cast<double>(be.weight_bytes_read() - prefill_bytes) / 1e9;
    EXPECT_NEAR(read_gb, size.bf16_read_gb, 0.01 * size.bf16_read_gb);
    std::printf("%-8s %.2f GB of weights, %.2f GB read per token, %ld ops of prefill, workspace %.1f MiB\n",
                size.name, gb, read_gb, static_cast<long>(prefill),
                static_cast<double>(be.workspace().peak_bytes()) / 1048576.0);
  }
}

}  // namespace
}  // namespace synod::gemma4
