// Configuration of DeepSeek-V4 from every kind of file, and dry runs of the published sizes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "formats/checkpoint.h"
#include "models/deepseek4/config.h"
#include "models/deepseek4/deepseek4.h"
#include "models/deepseek4/metadata.h"
#include "models/deepseek4/specs.h"
#include "models/run_model.h"
#include "wrap/dry_run.h"

namespace synod {
namespace {

using deepseek4::Config;
using nlohmann::json;

std::string config_text(const std::string& size) {
  return read_text_file(SYNOD_SOURCE_DIR "/tests/data/configs/deepseek4-" + size + ".json");
}
json published(const std::string& size) { return parse_json(config_text(size), "config.json"); }
Config read(const json& config) { return Config::from_json(config, "config.json"); }

// The same configuration as transformers spells it.
json transformers_spelling(json config) {
  json layer_types = json::array(), mlp_types = json::array();
  const int64_t n_layers = config["num_hidden_layers"];
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const int64_t ratio = config["compress_ratios"][static_cast<size_t>(layer)];
    layer_types.push_back(ratio == 0   ? "sliding_attention"
                          : ratio == 4 ? "compressed_sparse_attention"
                                       : "heavily_compressed_attention");
    mlp_types.push_back(layer < config["num_hash_layers"] ? "hash_moe" : "moe");
  }
  json yarn = config["rope_scaling"];
  yarn["rope_type"] = yarn["type"];
  yarn.erase("type");
  yarn["rope_theta"] = config["compress_rope_theta"];
  yarn["attention_factor"] = 1.0;
  config["layer_types"] = layer_types;
  config["mlp_layer_types"] = mlp_types;
  config["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  config["rope_parameters"] = {{"main", {{"rope_theta", 10000.0}, {"rope_type", "default"}}},
                               {"compress", yarn}};
  for (const char* key : {"compress_ratios", "num_hash_layers", "rope_scaling", "compress_rope_theta",
                          "topk_method", "quantization_config", "expert_dtype"}) {
    config.erase(key);
  }
  config["pad_token_id"] = nullptr;
  config["problem_type"] = nullptr;
  return config;
}

void expect_refused(const json& config, const std::string& named) {
  try {
    read(config);
    ADD_FAILURE() << "accepted a configuration that is wrong in " << named;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(Deepseek4Config, PublishedSizesHaveTheirSchedules) {
  const Config flash = read(published("flash")), pro = read(published("pro"));
  const auto count = [](const Config& c, int64_t ratio) {
    return std::count(c.ratios.begin(), c.ratios.end(), ratio);
  };
  EXPECT_EQ(flash.n_layers, 43);
  EXPECT_EQ(count(flash, 0), 2);
  EXPECT_EQ(count(flash, 4), 21);
  EXPECT_EQ(count(flash, 128), 20);
  EXPECT_EQ(pro.n_layers, 61);
  EXPECT_EQ(count(pro, 0), 0);
  EXPECT_EQ(count(pro, 4), 30);
  EXPECT_EQ(count(pro, 128), 31);
  EXPECT_EQ(pro.index_top_k, 1024);
  EXPECT_FLOAT_EQ(pro.route_scale, 2.5F);
}

TEST(Deepseek4Config, CompressedLayersRotateWithYarn) {
  const std::vector<float> freqs = read(published("flash")).compressed_freqs();
  ASSERT_EQ(freqs.size(), 32U);
  const std::vector<std::pair<size_t, double>> expected = {{0, 1.0},
                                                           {1, 6.876560219e-1},
                                                           {7, 7.271077167e-2},
                                                           {15, 3.635538584e-3},
                                                           {16, 2.265625000e-3},
                                                           {20, 2.969777783e-4},
                                                           {24, 1.953125000e-5},
                                                           {25, 5.372312671e-6},
                                                           {31, 5.680529037e-7}};
  for (const auto& [i, value] : expected) EXPECT_NEAR(static_cast<double>(freqs[i]) / value, 1.0, 2e-7) << i;
  const std::vector<float> window = read(published("flash")).window_freqs();
  EXPECT_NEAR(static_cast<double>(window[31]), std::pow(10000.0, -62.0 / 64.0), 1e-10);
}

TEST(Deepseek4Config, YarnBordersOfSmallSizes) {
  json config = published("flash");
  // Borders 1 and 4 of 8 pairs: pairs 0 and 1 keep their speed, from 4 on it is divided by the factor.
  config["qk_rope_head_dim"] = 16;
  config["rope_scaling"]["original_max_position_embeddings"] = 2048;
  const std::vector<float> freqs = read(config).compressed_freqs();
  const auto plain = [](double i) { return std::pow(160000.0, -2.0 * i / 16.0); };
  EXPECT_NEAR(static_cast<double>(freqs[1]) / plain(1), 1.0, 1e-6);
  EXPECT_NEAR(static_cast<double>(freqs[2]) / plain(2), 2.0 / 3 + 1.0 / 3 / 16, 1e-6);
  EXPECT_NEAR(static_cast<double>(freqs[4]) / plain(4), 1.0 / 16, 1e-6);
}

TEST(Deepseek4Config, BothSpellingsAgree) {
  for (const std::string size : {"flash", "pro"}) {
    const json config = published(size);
    EXPECT_EQ(read(transformers_spelling(config)), read(config)) << size;
    json both = transformers_spelling(config);
    both.update(config);
    EXPECT_EQ(read(both), read(config)) << size;
  }
}

TEST(Deepseek4Config, SpellingsThatDisagreeAreRefused) {
  const json config = published("flash");
  json both = transformers_spelling(config);
  both.update(config);
  const auto changed = [&](const char* pointer, const json& value) {
    json result = both;
    result[json::json_pointer(pointer)] = value;
    return result;
  };
  expect_refused(changed("/layer_types/2", "sliding_attention"), "layer_types[2]");
  expect_refused(changed("/compress_rates/compressed_sparse_attention", 128), "compress_ratios[2]");
  expect_refused(changed("/mlp_layer_types/3", "hash_moe"), "num_hash_layers");
  expect_refused(changed("/rope_parameters/main/rope_theta", 5000.0), "rope_parameters.main.rope_theta");
  expect_refused(changed("/rope_parameters/compress/rope_theta", 5000.0),
                 "rope_parameters.compress.rope_theta");
  expect_refused(changed("/rope_parameters/compress/factor", 4), "rope_parameters.compress");
}

TEST(Deepseek4Config, EntriesBeyondTheDecoderAreIgnored) {
  json config = published("flash");
  for (int i = 0; i < 3; ++i) config["compress_ratios"].push_back(0);
  EXPECT_EQ(read(config), read(published("flash")));
}

TEST(Deepseek4Config, WrongValuesAreRefusedByName) {
  const json config = published("flash");
  const std::vector<std::pair<std::string, json>> wrong = {{"compress_ratios", json::array({0, 0})},
                                                           {"num_hidden_layers", 0},
                                                           {"num_hidden_layers", 4000000000},
                                                           {"num_hidden_layers", "43"},
                                                           {"hidden_size", -1},
                                                           {"hidden_size", 4096.5},
                                                           {"hidden_size", int64_t{1} << 60},
                                                           {"vocab_size", nullptr},
                                                           {"hidden_act", "gelu"},
                                                           {"scoring_func", "sigmoid"},
                                                           {"topk_method", "greedy"},
                                                           {"norm_topk_prob", false},
                                                           {"tie_word_embeddings", true},
                                                           {"attention_bias", true},
                                                           {"model_type", "deepseek_v41"},
                                                           {"num_key_value_heads", 2},
                                                           {"qk_rope_head_dim", 63},
                                                           {"qk_rope_head_dim", 1024},
                                                           {"index_head_dim", 32},
                                                           {"index_topk", 0},
                                                           {"o_groups", 7},
                                                           {"o_groups", 0},
                                                           {"num_experts_per_tok", 257},
                                                           {"num_hash_layers", 44},
                                                           {"sliding_window", 0},
                                                           {"hc_sinkhorn_iters", 0},
                                                           {"hc_mult", 0},
                                                           {"rms_norm_eps", -1.0},
                                                           {"routed_scaling_factor", 0.0},
                                                           {"rope_theta", 0.0},
                                                           {"rope_scaling", 16}};
  for (const auto& [key, value] : wrong) {
    json changed = config;
    changed[key] = value;
    expect_refused(changed, key);
  }
  for (const char* key : {"hidden_size", "compress_ratios", "num_hash_layers", "swiglu_limit", "hc_eps",
                          "index_topk", "rope_theta", "compress_rope_theta"}) {
    json changed = config;
    changed.erase(key);
    expect_refused(changed, key);
  }
  const std::vector<std::pair<std::string, json>> nested = {
      {"/compress_ratios/5", 8},
      {"/rope_scaling/type", "linear"},
      {"/rope_scaling/factor", 0},
      {"/rope_scaling/attention_factor", 1.277},
      {"/rope_scaling/original_max_position_embeddings", 0}};
  for (const auto& [pointer, value] : nested) {
    json changed = config;
    changed[json::json_pointer(pointer)] = value;
    expect_refused(changed, pointer.substr(1, pointer.find('/', 1) - 1));
  }
  json mixed = transformers_spelling(config);
  mixed["mlp_layer_types"][1] = "moe";
  expect_refused(mixed, "mlp_layer_types");
  mixed = transformers_spelling(config);
  mixed["layer_types"].erase(0);
  expect_refused(mixed, "layer_types");
  expect_refused(json::array(), "top level");
}

// A GGUF file with these keys and one small tensor.
class Deepseek4Gguf : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("synod-deepseek4-" + std::to_string(::getpid()) + "-" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Config read_back(const Config& config, const std::function<void(GgufMetadata&)>& change = {},
                   const std::string& tensor = "token_embd.weight") {
    {
      GgufWriter writer(path_);
      write_config(config, writer.metadata());
      if (change) change(writer.metadata());
      writer.declare(tensor, DType::kF32, {2, 32});
      const std::vector<float> values(64, 1.0F);
      writer.write(std::as_bytes(std::span(values)));
      writer.finish();
    }
    return Config::from(Checkpoint::open(path_));
  }
  void expect_refused_gguf(const std::function<void(GgufMetadata&)>& change, const std::string& named) {
    try {
      read_back(read(published("flash")), change);
      ADD_FAILURE() << "accepted a file that is wrong in " << named;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  }

  std::filesystem::path path_;
};

TEST_F(Deepseek4Gguf, ReadsBackWhatWasWritten) {
  for (const std::string size : {"flash", "pro"}) {
    const Config config = read(published(size));
    EXPECT_EQ(read_back(config), config) << size;
  }
  json plain = published("flash");
  plain["rope_scaling"]["type"] = "default";
  EXPECT_EQ(read_back(read(plain)), read(plain));
}

TEST_F(Deepseek4Gguf, ADraftBlockIsRecognizedByItsTensor) {
  Config config = read(published("flash"));
  const auto one_more = [](GgufMetadata& m) {
    m.set_u32("deepseek4.block_count", 44);
    m.set_u32("deepseek4.nextn_predict_layers", 1);
    m.set_u32s("deepseek4.attention.compress_ratios", [] {
      std::vector<uint32_t> ratios = {0, 0};
      for (uint32_t layer = 2; layer < 43; ++layer) ratios.push_back(layer % 2 == 0 ? 4 : 128);
      ratios.push_back(0);
      return ratios;
    }());
    m.set_f32s("deepseek4.swiglu_clamp_exp", std::vector<float>(44, 10.0F));
    m.set_f32s("deepseek4.swiglu_clamp_shexp", std::vector<float>(44, 10.0F));
  };
  EXPECT_EQ(read_back(config, one_more, "blk.43.nextn.eh_proj.weight").n_layers, 43);
  EXPECT_EQ(read_back(config, one_more).n_layers, 44);
  // The counter alone says nothing.
  EXPECT_EQ(read_back(config, [](GgufMetadata& m) { m.set_u32("deepseek4.nextn_predict_layers", 1); }),
            config);
}

TEST_F(Deepseek4Gguf, LostYarnKeysMeanTheReleasedValues) {
  const Config config = read(published("flash"));
  GgufMetadata all;
  write_config(config, all);
  const auto without_scaling = [&](GgufMetadata& m) {
    m = GgufMetadata{};
    for (const auto& [key, value] : all.entries()) {
      if (key.find("rope.scaling") == std::string::npos) m.set(key, value);
    }
  };
  EXPECT_EQ(read_back(config, without_scaling), config);
}

TEST_F(Deepseek4Gguf, OneClampStandsForAllLayersAndForTheSharedExpert) {
  const Config config = read(published("flash"));
  GgufMetadata all;
  write_config(config, all);
  const auto one = [&](GgufMetadata& m) {
    m = GgufMetadata{};
    for (const auto& [key, value] : all.entries()) {
      if (key != "deepseek4.swiglu_clamp_shexp") m.set(key, value);
    }
    m.set_f32("deepseek4.swiglu_clamp_exp", 7.0F);
  };
  const Config got = read_back(config, one);
  EXPECT_EQ(got.expert_clamp, std::vector<float>(43, 7.0F));
  EXPECT_EQ(got.shared_clamp, std::vector<float>(43, 7.0F));
}

TEST_F(Deepseek4Gguf, WrongKeysAreRefusedByName) {
  const auto u32 = [](const char* key, uint32_t value) {
    return [key, value](GgufMetadata& m) { m.set_u32(key, value); };
  };
  expect_refused_gguf(u32("deepseek4.expert_gating_func", 2), "deepseek4.expert_gating_func");
  expect_refused_gguf(u32("deepseek4.expert_group_count", 8), "deepseek4.expert_group_count");
  expect_refused_gguf(u32("deepseek4.attention.head_count_kv", 2), "deepseek4.attention.head_count_kv");
  expect_refused_gguf(u32("deepseek4.attention.value_length", 128), "deepseek4.attention.value_length");
  expect_refused_gguf(u32("deepseek4.block_count", 0), "deepseek4.block_count");
  expect_refused_gguf(u32("deepseek4.block_count", 400), "deepseek4.attention.compress_ratios");
  expect_refused_gguf(u32("deepseek4.embedding_length_out", 4096), "deepseek4.embedding_length_out");
  expect_refused_gguf([](GgufMetadata& m) { m.set_f32("deepseek4.rope.scaling.yarn_attn_factor", 0.78F); },
                      "yarn_attn_factor");
  expect_refused_gguf([](GgufMetadata& m) { m.set_string("deepseek4.rope.scaling.type", "linear"); },
                      "deepseek4.rope.scaling.type");
  expect_refused_gguf(
      [](GgufMetadata& m) {
        m.set_u32s("deepseek4.attention.compress_ratios", std::vector<uint32_t>(43, 8));
      },
      "compress_ratios");
  expect_refused_gguf([](GgufMetadata& m) { m.set_bool("deepseek4.expert_weights_norm", false); },
                      "deepseek4.expert_weights_norm");
}

TEST(Deepseek4Specs, DraftTensorsAreSkipped) {
  const DialectInfo info = deepseek4::dialect_info(43);
  for (const char* name : {"mtp.0.e_proj.weight", "blk.43.nextn.eh_proj.weight", "blk.43.attn_q_a.weight"}) {
    ASSERT_NE(info.skip_reason(name), nullptr) << name;
    EXPECT_STREQ(info.skip_reason(name), "multi-token prediction (MTP) tensors");
  }
  for (const char* name : {"blk.42.attn_q_a.weight", "layers.3.attn.wq_a.weight", "blk.x", "output.weight"}) {
    EXPECT_EQ(info.skip_reason(name), nullptr) << name;
  }
}

// Shapes of every op and cache access at the published sizes, across block and window borders.
TEST(Deepseek4DryRun, PublishedSizesPassEveryShapeCheck) {
  struct Case {
    std::string size;
    double file_bytes, token_bytes;  // BF16
  };
  for (const Case& c : {Case{"flash", 568.7e9, 26.60e9}, Case{"pro", 3146e9, 97.87e9}}) {
    for (const Profile profile : {Profile::kM, Profile::kQ}) {
      const auto model =
          deepseek4::architecture().plan(config_text(c.size), DType::kBF16, {.profile = profile});
      DryRun dry;
      testing::SequenceRunner runner(*model, dry);
      const std::vector<int32_t> ids(4200, 0);
      for (const int64_t n : {1, 2, 1, 3, 120, 1, 1, 126, 1, 4200, 1}) {
        runner.step(std::span(ids).first(static_cast<size_t>(n)), nullptr);
      }
      EXPECT_EQ(runner.length(), 4457);
      EXPECT_GT(dry.n_ops(), 11 * 43 * 20);
      const auto bytes = static_cast<double>(model->weights().bytes());
      const auto per_token = static_cast<double>(model->weights().bytes_per_token(6));
      EXPECT_NEAR(bytes / c.file_bytes, 1.0, 0.01) << bytes;
      EXPECT_NEAR(per_token / c.token_bytes, 1.0, 0.02) << per_token;
      std::printf("%-6s %.1f GB, %.2f GB per token, %d ops per step\n", c.size.c_str(), bytes / 1e9,
                  per_token / 1e9, static_cast<int>(dry.n_ops() / 11));
    }
    for (const DType type : {DType::kQ4_K, DType::kQ8_0, DType::kMXFP4}) {
      const auto model = deepseek4::architecture().plan(config_text(c.size), type, {});
      DryRun dry;
      testing::SequenceRunner runner(*model, dry);
      runner.step(std::vector<int32_t>(5, 0), nullptr);
      EXPECT_GT(dry.n_ops(), 0);
    }
  }
}

TEST(Deepseek4DryRun, CacheHoldsWhatTheModelReadsAgain) {
  const auto model = deepseek4::architecture().plan(config_text("flash"), DType::kBF16, {});
  std::vector<std::string> names;
  double per_token = 0;
  for (const RowGroup& group : model->cache_spec().groups) {
    names.push_back(group.name);
    if (group.window == 0) {
      per_token += static_cast<double>(group.row_bytes) / static_cast<double>(group.tokens_per_row) *
                   static_cast<double>(group.layers.size());
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"window", "compressed 4", "index keys", "compressed 128",
                                             "compressor state 4", "index state", "compressor state 128"}));
  // 21 layers of (512 + 128) values per 4 tokens, 20 layers of 512 per 128.
  EXPECT_NEAR(per_token, 4.0 * (21 * 640 / 4.0 + 20 * 512 / 128.0), 1e-6);
}

}  // namespace
}  // namespace synod
