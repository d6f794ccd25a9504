// Every mix against what llama.cpp's quantizer chooses, tensor by tensor, for published shapes.
#include "convert/mixes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/buffer.h"
#include "base/error.h"
#include "convert/tensor_source.h"
#include "models/model.h"

namespace synod {
namespace {

const std::string kData = SYNOD_SOURCE_DIR "/tests/data/";

std::vector<MixTensor> tensors_of(const std::string& config) {
  const std::string text = read_text_file(kData + "configs/" + config + ".json");
  const Architecture& a = *architectures()[config.starts_with("gemma4") ? 0 : 1];
  return planned_tensors(a.config_specs(text));
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t at = 0, next;
  while ((next = text.find(separator, at)) != std::string::npos) {
    parts.push_back(text.substr(at, next - at));
    at = next + separator.size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

// One line of the table: the type of a matrix by its name without layer and ".weight".
struct Expected {
  std::string model, mix;
  bool with_importance = false;
  std::string rest;
  std::map<std::string, std::pair<std::string, std::map<int64_t, std::string>>> named;

  std::string type_of(const std::string& name) const {
    std::string short_name = name.substr(0, name.size() - std::string(".weight").size());
    const int64_t layer = layer_of_tensor(name);
    if (layer >= 0) short_name = short_name.substr(short_name.find('.', 4) + 1);
    const auto it = named.find(short_name);
    if (it == named.end()) return rest;
    const auto exception = it->second.second.find(layer);
    return exception == it->second.second.end() ? it->second.first : exception->second;
  }
};

Expected parse_line(const std::string& line) {
  Expected e;
  const size_t colon = line.find(": ");
  const auto head = split(line.substr(0, colon), " ");
  e.model = head[0];
  e.mix = head[1];
  if (const size_t plus = e.mix.find('+'); plus != std::string::npos) {
    e.with_importance = true;
    e.mix.resize(plus);
  }
  const auto parts = split(line.substr(colon + 2), "; ");
  e.rest = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto sides = split(parts[i], " = ");
    const auto types = split(sides[1], " ");
    std::map<int64_t, std::string> exceptions;
    for (size_t t = 1; t < types.size(); ++t) {
      const auto at = split(types[t], "@");
      for (const std::string& layer : split(at[1], ",")) exceptions[std::stoll(layer)] = at[0];
    }
    for (const std::string& name : split(sides[0], " ")) e.named[name] = {types[0], exceptions};
  }
  return e;
}

TEST(Mixes, ChooseWhatLlamaCppChoosesForEveryTensor) {
  std::ifstream in(kData + "quantize/mix_types.txt");
  std::map<std::string, std::vector<MixTensor>> models;
  std::set<std::string> with_own_line;  // where importance data changes the choice
  std::vector<Expected> table;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) continue;
    table.push_back(parse_line(line));
    const Expected& e = table.back();
    if (e.with_importance) with_own_line.insert(e.model + " " + e.mix);
    if (!models.contains(e.model)) models[e.model] = tensors_of(e.model);
  }
  ASSERT_GE(table.size(), 60U);
  std::set<std::string> tested;
  for (const Expected& e : table) {
    const bool same_without = !with_own_line.contains(e.model + " " + e.mix);
    for (const bool importance : {false, true}) {
      if (importance != e.with_importance && !same_without) continue;
      const std::vector<MixTensor>& tensors = models[e.model];
      const TypePlan plan =
          plan_types(mix_or_throw(e.mix), tensors, {.has_importance = importance, .quantize_all = true});
      int64_t n = 0;
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (!plan.types[i]) continue;
        ++n;
        ASSERT_EQ(name(*plan.types[i]), e.type_of(tensors[i].name))
            << e.model << " " << e.mix << " importance " << importance << ": " << tensors[i].name;
      }
      EXPECT_GT(n, e.model == "deepseek4-flash" ? 550 : 200);
      tested.insert(e.mix);
    }
  }
  // Everything that is not plain and not our own is in the table.
  for (const Mix& mix : mixes()) {
    const bool ours = mix.name.starts_with("synod_") || mix.name == "mxfp4_bf16";
    EXPECT_EQ(tested.contains(std::string(mix.name)), !ours && is_block_type(mix.base)) << mix.name;
  }
}

TEST(Mixes, KeepRoutersHyperConnectionsNormsTablesAndSinksAsStored) {
  for (const char* config :
       {"deepseek4-flash", "deepseek4-pro", "gemma4-26b-a4b", "gemma4-e2b", "gemma4-31b"}) {
    const std::vector<MixTensor> tensors = tensors_of(config);
    for (const Mix& mix : mixes()) {
      const TypePlan plan = plan_types(mix, tensors, {.has_importance = true});
      for (size_t i = 0; i < tensors.size(); ++i) {
        const std::string& name = tensors[i].name;
        bool kept = !name.ends_with("weight");
        for (const char* part : {"norm", "ffn_gate_inp", "hc_", "_ape", "sinks", "tid2eid", "rope_freqs",
                                 "per_layer_model_proj", "layer_output_scale"}) {
          kept = kept || name.find(part) != std::string::npos;
        }
        ASSERT_EQ(!plan.types[i].has_value(), kept) << config << " " << mix.name << " " << name;
      }
    }
  }
}

TEST(Mixes, OursGiveWhatTheirNamesSay) {
  const auto types = [](const char* mix, const char* config) {
    const std::vector<MixTensor> tensors = tensors_of(config);
    const TypePlan plan = plan_types(mix_or_throw(mix), tensors, {.has_importance = true});
    std::map<std::string, DType> by_name;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (plan.types[i]) by_name[tensors[i].name] = *plan.types[i];
    }
    return by_name;
  };
  auto v4 = types("synod_v4_q2", "deepseek4-flash");
  EXPECT_EQ(v4["blk.7.ffn_gate_exps.weight"], DType::kIQ2_XXS);
  EXPECT_EQ(v4["blk.7.ffn_up_exps.weight"], DType::kIQ2_XXS);
  EXPECT_EQ(v4["blk.7.ffn_down_exps.weight"], DType::kQ2_K);
  EXPECT_EQ(v4["blk.7.attn_q_b.weight"], DType::kQ4_K);
  EXPECT_EQ(v4["output.weight"], DType::kQ6_K);
  auto g4 = types("synod_g4_q4", "gemma4-26b-a4b");
  EXPECT_EQ(g4["blk.7.ffn_gate_up_exps.weight"], DType::kQ4_K);
  EXPECT_EQ(g4["blk.7.ffn_down_exps.weight"], DType::kQ5_0) << "704 is no multiple of 256";
  EXPECT_EQ(g4["blk.7.attn_q.weight"], DType::kQ4_K);
  EXPECT_EQ(g4["blk.6.attn_v.weight"], DType::kQ5_K);
  EXPECT_EQ(g4["token_embd.weight"], DType::kQ5_K) << "it is the head";
}

TEST(Mixes, FallBackToSmallerBlocksAndThenTo16Bits) {
  EXPECT_EQ(fitting_type(DType::kQ4_K, 704), DType::kQ5_0);
  EXPECT_EQ(fitting_type(DType::kQ5_K, 2112), DType::kQ5_1);
  EXPECT_EQ(fitting_type(DType::kQ6_K, 2112), DType::kQ8_0);
  EXPECT_EQ(fitting_type(DType::kQ2_K, 96), DType::kQ4_0);
  EXPECT_EQ(fitting_type(DType::kIQ2_XXS, 96), DType::kIQ4_NL);
  EXPECT_EQ(fitting_type(DType::kQ4_K, 2048), DType::kQ4_K);
  EXPECT_EQ(fitting_type(DType::kQ4_K, 40), DType::kF16);
  EXPECT_EQ(fitting_type(DType::kQ8_0, 40), DType::kF16);
  EXPECT_EQ(fitting_type(DType::kBF16, 7), DType::kBF16);
}

TEST(Mixes, NamesAreFoundInAnyCaseAndUnknownOnesListTheRest) {
  EXPECT_EQ(find_mix("Q4_K_M")->name, "q4_k_m");
  EXPECT_EQ(find_mix("q4_K")->name, "q4_k_m");
  EXPECT_EQ(find_mix("q9"), nullptr);
  try {
    mix_or_throw("q9");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kUsage);
    EXPECT_NE(std::string(error.what()).find("synod_v4_q2"), std::string::npos);
  }
}

std::vector<MixTensor> small_model() {
  return {{"token_embd.weight", {512, 256}},
          {"output.weight", {512, 256}},
          {"blk.0.attn_q.weight", {256, 256}},
          {"blk.0.ffn_gate_inp.weight", {8, 256}},
          {"blk.0.ffn_gate_tid2eid.weight", {512, 2}, false},
          {"blk.0.ffn_norm.weight", {256}}};
}

TEST(Mixes, OverridesDecideInOrderAndUnusedOnesAreReported) {
  MixOptions options;
  for (const char* text : {"attn_q=q8_0", "attn_.*=q2_k", "nothing=q4_0", "ffn_gate_inp=bf16"}) {
    options.overrides.push_back(parse_type_override(text));
  }
  const TypePlan plan = plan_types(mix_or_throw("q4_k_m"), small_model(), options);
  EXPECT_EQ(plan.types[2], DType::kQ8_0);
  EXPECT_EQ(plan.types[3], DType::kBF16) << "plain floats are allowed everywhere";
  EXPECT_EQ(plan.types[4], std::nullopt);
  EXPECT_EQ(plan.types[5], std::nullopt);
  EXPECT_EQ(plan.unmatched, std::vector<std::string>{"nothing=q4_0"});

  options.overrides = {parse_type_override("ffn_gate_inp=q4_0")};
  const TypePlan refused = plan_types(mix_or_throw("q4_k_m"), small_model(), options);
  EXPECT_EQ(refused.types[3], std::nullopt);
  ASSERT_EQ(refused.notes.size(), 1U);
  EXPECT_NE(refused.notes[0].find("ffn_gate_inp"), std::string::npos);
}

TEST(Mixes, OptionsForOutputEmbeddingAndPureAreKept) {
  const TypePlan plan =
      plan_types(mix_or_throw("q4_k_m"), small_model(), {.output = DType::kQ8_0, .embedding = DType::kQ2_K});
  EXPECT_EQ(plan.types[0], DType::kQ2_K);
  EXPECT_EQ(plan.types[1], DType::kQ8_0);
  EXPECT_EQ(plan_types(mix_or_throw("q4_k_m"), small_model(), {.keep_output = true}).types[1], std::nullopt);
  EXPECT_EQ(plan_types(mix_or_throw("q4_k_m"), small_model(), {.pure = true}).types[1], DType::kQ4_K);
}

TEST(Mixes, BadOverridesAreUsageErrors) {
  for (const char* text :
       {"attn_q", "=q8_0", "attn_q=", "attn_q=q9", "(=q8_0", "attn_q=q8_k", "attn_q=i32"}) {
    try {
      parse_type_override(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kUsage) << text;
    }
  }
}

}  // namespace
}  // namespace synod
