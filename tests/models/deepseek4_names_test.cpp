// Names of DeepSeek-V4's tensors in every kind of file: the same weights under other names give the same
// model, and damaged files are refused by name.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint.h"
#include "models/deepseek4/config.h"
#include "models/deepseek4/deepseek4.h"
#include "models/deepseek4/specs.h"
#include "models/run_model.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

const std::filesystem::path kCheckpoints = SYNOD_SOURCE_DIR "/tests/data/checkpoints";

// A checkpoint with its model, which views its bytes.
struct Loaded {
  explicit Loaded(const std::filesystem::path& path)
      : checkpoint(Checkpoint::open(path)), model(deepseek4::architecture().load(checkpoint, {})) {}
  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
};

std::vector<float> run_logits(const Model& model) {
  const testing::Expected expected =
      testing::load_expected(kCheckpoints / "deepseek4-tiny" / "expected.safetensors");
  RefBackend be;
  return testing::run_model(model, be, std::span(expected.ids).first(40), {}, false).logits;
}

// A checkpoint folder that a test may rewrite: tensors by name, with owned bytes where they are new.
class EditedCheckpoint {
 public:
  explicit EditedCheckpoint(const std::string& name)
      : source_(kCheckpoints / name),
        file_(SafetensorsFile::open(source_ / "model.safetensors")),
        folder_(std::filesystem::temp_directory_path() /
                ("synod-deepseek4-edited-" + std::to_string(::getpid()))) {
    for (const Tensor& tensor : file_.tensors()) tensors.emplace(std::string(tensor.name), tensor);
  }
  ~EditedCheckpoint() { std::filesystem::remove_all(folder_); }

  std::map<std::string, Tensor> tensors;
  std::vector<std::byte>& bytes(int64_t n) { return owned_.emplace_back(static_cast<size_t>(n)); }

  void rename(const std::function<std::string(const std::string&)>& name) {
    std::map<std::string, Tensor> result;
    for (const auto& [old, tensor] : tensors) result.emplace(name(old), tensor);
    tensors = std::move(result);
  }

  std::filesystem::path write() {
    std::filesystem::create_directories(folder_);
    std::filesystem::copy_file(source_ / "config.json", folder_ / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    std::vector<Tensor> list;
    for (const auto& [name, tensor] : tensors) list.push_back(tensor.named(name));
    write_safetensors(folder_ / "model.safetensors", list);
    return folder_;
  }

 private:
  std::filesystem::path source_;
  SafetensorsFile file_;
  std::filesystem::path folder_;
  std::list<std::vector<std::byte>> owned_;
};

// [first; second; ...] of equal shape, stacked along a new outermost dimension, or along the rows.
Tensor stacked(EditedCheckpoint& edited, std::span<const Tensor> parts, std::vector<int64_t> shape) {
  std::vector<std::byte>& bytes = edited.bytes(static_cast<int64_t>(parts.size()) * parts[0].bytes());
  auto* out = bytes.data();
  for (const Tensor& part : parts) {
    std::memcpy(out, part.data, static_cast<size_t>(part.bytes()));
    out += part.bytes();
  }
  return Tensor::contiguous(bytes.data(), parts[0].type, shape);
}

using Rules = std::vector<std::pair<std::string, std::string>>;

// Applies every rule in turn; "^" at its start means at the start of the name only.
std::string renamed(std::string name, const Rules& rules) {
  for (const auto& [pattern, replacement] : rules) {
    const bool at_start = pattern.starts_with('^');
    const std::string text = at_start ? pattern.substr(1) : pattern;
    const size_t found = name.find(text);
    if (found == std::string::npos || (at_start && found != 0)) continue;
    name.replace(found, text.size(), replacement);
  }
  return name;
}

std::string transformers_name(const std::string& name) {
  static const Rules kRules = {{"^embed.", "model.embed_tokens."},
                               {"^norm.", "model.norm."},
                               {"^head.", "lm_head."},
                               {"^hc_head_", "model.hc_head.hc_"},
                               {"^layers.", "model.layers."},
                               {".hc_attn_", ".attn_hc."},
                               {".hc_ffn_", ".ffn_hc."},
                               {".attn_norm.", ".input_layernorm."},
                               {".ffn_norm.", ".post_attention_layernorm."},
                               {".attn.", ".self_attn."},
                               {".indexer.weights_proj", ".compressor.indexer.scorer.weights_proj"},
                               {".self_attn.indexer.compressor.", ".self_attn.compressor.indexer."},
                               {".self_attn.indexer.", ".self_attn.compressor.indexer."},
                               {".wkv.", ".kv_proj."},
                               {".wgate.", ".gate_proj."},
                               {".ape", ".position_bias"},
                               {".compressor.norm.", ".compressor.kv_norm."},
                               {".compressor.indexer.norm.", ".compressor.indexer.kv_norm."},
                               {".wq_a.", ".q_a_proj."},
                               {".wq_b.", ".q_b_proj."},
                               {".q_norm.", ".q_a_norm."},
                               {".attn_sink", ".sinks"},
                               {".wo_a.", ".o_a_proj."},
                               {".wo_b.", ".o_b_proj."},
                               {".ffn.gate.bias", ".mlp.gate.e_score_correction_bias"},
                               {".ffn.", ".mlp."},
                               {".shared_experts.w1", ".shared_experts.gate_proj"},
                               {".shared_experts.w2", ".shared_experts.down_proj"},
                               {".shared_experts.w3", ".shared_experts.up_proj"}};
  return renamed(name, kRules);
}

std::string saved_name(const std::string& name) {
  if (name == "head.weight") return name;
  static const Rules kRules = {
      {"^embed.", "embed_tokens."}, {"^hc_head_", "hc_head.hc_"}, {".attn.kv_norm.", ".attn.norm."}};
  return "model." + renamed(name, kRules);
}

// Experts as transformers fuses them: gate_up_proj [E, 2 I, d], down_proj [E, d, I].
void fuse_experts(EditedCheckpoint& edited, int64_t n_layers, int64_t n_experts) {
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<Tensor> gate_up, down;
    for (int64_t e = 0; e < n_experts; ++e) {
      for (const char* part : {"w1", "w3", "w2"}) {
        const std::string name = mlp + std::to_string(e) + "." + part + ".weight";
        (part[1] == '2' ? down : gate_up).push_back(edited.tensors.at(name));
        edited.tensors.erase(name);
      }
    }
    const int64_t wide = gate_up[0].dim(0), d = gate_up[0].dim(1);
    edited.tensors[mlp + "gate_up_proj"] = stacked(edited, gate_up, {n_experts, 2 * wide, d});
    edited.tensors[mlp + "down_proj"] = stacked(edited, down, {n_experts, d, wide});
  }
}

TEST(Deepseek4Names, EveryDialectGivesTheSameModel) {
  const Loaded loaded(kCheckpoints / "deepseek4-tiny");
  const std::vector<float> want = run_logits(*loaded.model);
  {
    EditedCheckpoint edited("deepseek4-tiny");
    edited.rename(transformers_name);
    fuse_experts(edited, 5, 8);
    const Loaded other(edited.write());
    EXPECT_NE(other.model->weights().dialect(), loaded.model->weights().dialect());
    EXPECT_EQ(run_logits(*other.model), want);
  }
  EditedCheckpoint edited("deepseek4-tiny");
  edited.rename(saved_name);
  const Loaded other(edited.write());
  EXPECT_EQ(run_logits(*other.model), want);
}

TEST(Deepseek4Names, RolesAreTheNamesOfGgufFiles) {
  const Loaded loaded(kCheckpoints / "deepseek4-tiny");
  const deepseek4::Config config = deepseek4::Config::from(loaded.checkpoint);
  std::map<std::string, std::set<std::string>> roles;  // by block
  for (const WeightSpec& spec : deepseek4::weight_specs(config)) {
    const bool in_block = spec.role.starts_with("blk.");
    const size_t split = in_block ? spec.role.find('.', 4) + 1 : 0;
    roles[spec.role.substr(0, split)].insert(spec.role.substr(split));
  }
  EXPECT_EQ(roles[""], (std::set<std::string>{"token_embd.weight", "output_norm.weight", "output.weight",
                                              "output_hc_fn.weight", "output_hc_base.weight",
                                              "output_hc_scale.weight"}));
  const std::set<std::string> every = {
      "hc_attn_fn.weight",     "hc_attn_base.weight",  "hc_attn_scale.weight", "hc_ffn_fn.weight",
      "hc_ffn_base.weight",    "hc_ffn_scale.weight",  "attn_norm.weight",     "ffn_norm.weight",
      "attn_q_a.weight",       "attn_q_a_norm.weight", "attn_q_b.weight",      "attn_kv.weight",
      "attn_kv_a_norm.weight", "attn_sinks.weight",    "attn_output_a.weight", "attn_output_b.weight",
      "ffn_gate_inp.weight",   "ffn_gate_exps.weight", "ffn_up_exps.weight",   "ffn_down_exps.weight",
      "ffn_gate_shexp.weight", "ffn_up_shexp.weight",  "ffn_down_shexp.weight"};
  const std::set<std::string> compressed = {"attn_compressor_kv.weight", "attn_compressor_gate.weight",
                                            "attn_compressor_ape.weight", "attn_compressor_norm.weight"};
  const std::set<std::string> indexed = {"indexer.attn_q_b.weight",       "indexer.proj.weight",
                                         "indexer_compressor_kv.weight",  "indexer_compressor_gate.weight",
                                         "indexer_compressor_ape.weight", "indexer_compressor_norm.weight"};
  std::set<std::string> window = every, sparse = every, heavy = every;
  window.insert("ffn_gate_tid2eid.weight");
  heavy.insert(compressed.begin(), compressed.end());
  heavy.insert("exp_probs_b.bias");
  sparse = heavy;
  sparse.insert(indexed.begin(), indexed.end());
  EXPECT_EQ(roles["blk.1."], window);
  EXPECT_EQ(roles["blk.2."], sparse);
  EXPECT_EQ(roles["blk.3."], heavy);
}

TEST(Deepseek4Names, WhatDecidesChoicesIsNeverQuantized) {
  const Loaded loaded(kCheckpoints / "deepseek4-tiny");
  for (const WeightSpec& spec : deepseek4::weight_specs(deepseek4::Config::from(loaded.checkpoint))) {
    if (spec.kind != WeightSpec::Kind::kMatrix && spec.kind != WeightSpec::Kind::kExperts) continue;
    bool keeps = false;
    for (const char* part : {"hc_", "gate_inp", "compressor", "indexer.proj"}) {
      keeps = keeps || spec.role.find(part) != std::string::npos;
    }
    EXPECT_EQ(spec.quantizable, !keeps) << spec.role;
  }
}

TEST(Deepseek4Names, DraftTensorsDoNotDisturb) {
  EditedCheckpoint edited("deepseek4-tiny");
  edited.tensors["mtp.0.e_proj.weight"] = edited.tensors.at("layers.0.attn.wq_a.weight");
  const Loaded loaded(edited.write());
  EXPECT_EQ(loaded.model->info().n_layers, 5);
}

void expect_load_fails(EditedCheckpoint& edited, const std::string& named) {
  try {
    const Loaded loaded(edited.write());
    ADD_FAILURE() << "loaded a checkpoint that is wrong in " << named;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(Deepseek4Names, DamagedCheckpointsAreRefusedByName) {
  {
    EditedCheckpoint edited("deepseek4-tiny");
    edited.tensors.erase("layers.3.attn.compressor.ape");
    expect_load_fails(edited, "layers.3.attn.compressor.ape");
  }
  {
    EditedCheckpoint edited("deepseek4-tiny");
    edited.tensors["layers.3.attn.indexer.wq_b.weight"] =
        edited.tensors.at("layers.2.attn.indexer.wq_b.weight");
    expect_load_fails(edited, "layers.3.attn.indexer.wq_b.weight");
  }
  {
    EditedCheckpoint edited("deepseek4-tiny");
    edited.tensors["layers.2.attn_norm.weight"] = edited.tensors.at("layers.2.attn.kv_norm.weight");
    expect_load_fails(edited, "layers.2.attn_norm.weight");
  }
  for (const int64_t bad : {int64_t{8}, int64_t{-1}}) {
    EditedCheckpoint edited("deepseek4-tiny");
    Tensor& table = edited.tensors.at("layers.1.ffn.gate.tid2eid");
    std::vector<std::byte>& bytes = edited.bytes(table.bytes());
    std::memcpy(bytes.data(), table.data, bytes.size());
    std::memcpy(bytes.data() + 8 * 777, &bad, sizeof(bad));
    table.data = bytes.data();
    expect_load_fails(edited, "tid2eid");
  }
  {
    EditedCheckpoint edited("deepseek4-official");
    edited.tensors.erase("layers.0.attn.wq_a.scale");
    expect_load_fails(edited, "layers.0.attn.wq_a");
  }
}

}  // namespace
}  // namespace synod
