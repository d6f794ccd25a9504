#include "convert/mixes.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "quant/encode.h"

namespace synod {
namespace {

using enum MixWhere;
using enum MixGuard;

constexpr std::string_view kAttnV = "attn_v.weight", kAttnK = "attn_k.weight", kAttnQ = "attn_q.weight";
constexpr std::string_view kAttnOutput = "attn_output.weight";
constexpr std::string_view kFfnUp = "ffn_up", kFfnGate = "ffn_gate", kFfnDown = "ffn_down";

// Models with exactly 8 experts share keys and values among so many that these are kept finer.
constexpr MixRule kEight[] = {{kAttnV, kEverywhere, kEightExperts, DType::kQ8_0},
                              {kAttnK, kEverywhere, kEightExperts, DType::kQ8_0}};
constexpr MixRule kEightAndOutput[] = {{kAttnV, kEverywhere, kEightExperts, DType::kQ8_0},
                                       {kAttnK, kEverywhere, kEightExperts, DType::kQ8_0},
                                       {kAttnOutput, kEverywhere, kEightExperts, DType::kQ5_K}};
// The 1 and 2 bit mixes.
constexpr MixRule kLowBits[] = {{kAttnV, kEverywhere, kGqa4OrExperts4, DType::kQ4_K},
                                {kAttnK, kEverywhere, kEightExperts, DType::kQ4_K},
                                {kAttnOutput, kEverywhere, kEightExperts, DType::kQ5_K}};

constexpr MixRule kQ4_0[] = {{kFfnDown, kFirst8th, kImportance, DType::kQ4_1}};
constexpr MixRule kQ5_0[] = {{kFfnDown, kFirst8th, kImportance, DType::kQ5_1}};
constexpr MixRule kQ2_K[] = {{kAttnV, kEverywhere, kGqa4, DType::kQ4_K},
                             {kAttnV, kEverywhere, kNone, DType::kQ3_K},
                             {kFfnDown, kEverywhere, kNone, DType::kQ3_K},
                             {kAttnOutput, kEverywhere, kNone, DType::kQ3_K}};
constexpr MixRule kQ2_K_S[] = {{kAttnV, kEverywhere, kGqa4, DType::kQ4_K},
                               {kFfnDown, kFirst8th, kNone, DType::kQ4_K}};
constexpr MixRule kQ3_K_M[] = {{kAttnV, kFirst2, kNone, DType::kQ5_K},
                               {kAttnV, kEverywhere, kNone, DType::kQ4_K},
                               {kFfnDown, kFirst16th, kNone, DType::kQ5_K},
                               {kFfnDown, kEverywhere, kNone, DType::kQ4_K},
                               {kAttnOutput, kEverywhere, kNone, DType::kQ4_K}};
constexpr MixRule kQ3_K_L[] = {{kAttnV, kEverywhere, kNone, DType::kQ5_K},
                               {kFfnDown, kEverywhere, kNone, DType::kQ5_K},
                               {kAttnOutput, kEverywhere, kNotEightExperts, DType::kQ5_K}};
constexpr MixRule kQ4_K_S[] = {{kAttnV, kFirst4, kNone, DType::kQ5_K},
                               {kFfnDown, kFirst8th, kNone, DType::kQ5_K}};
constexpr MixRule kMostBits[] = {{kAttnV, kMoreBits, kNone, DType::kQ6_K},
                                 {kFfnDown, kMoreBits, kNone, DType::kQ6_K}};
constexpr MixRule kIQ4[] = {{kAttnV, kEverywhere, kGqa4, DType::kQ5_K},
                            {kFfnDown, kFirst8th, kNoImportance, DType::kQ5_K}};
constexpr MixRule kIQ3_M[] = {{kAttnV, kEverywhere, kNone, DType::kQ4_K},
                              {kFfnDown, kFirst8th, kNone, DType::kQ4_K},
                              {kFfnDown, kMoreBits, kEightExperts, DType::kQ4_K},
                              {kAttnOutput, kEverywhere, kNone, DType::kQ4_K}};
constexpr MixRule kIQ3_S[] = {{kAttnV, kEverywhere, kGqa4, DType::kQ4_K}};
constexpr MixRule kIQ3_XS[] = {{kAttnV, kEverywhere, kGqa4, DType::kQ4_K},
                               {kAttnK, kEverywhere, kNone, DType::kIQ3_XXS},
                               {kAttnQ, kEverywhere, kNone, DType::kIQ3_XXS},
                               {kFfnGate, kMiddle, kNone, DType::kIQ3_XXS},
                               {kFfnUp, kMiddle, kNone, DType::kIQ3_XXS}};
constexpr MixRule kIQ3_XXS[] = {
    {kAttnV, kEverywhere, kGqa4, DType::kQ4_K},         {kAttnV, kEverywhere, kNoImportance, DType::kIQ3_S},
    {kAttnK, kEverywhere, kNone, DType::kIQ2_S},        {kAttnQ, kEverywhere, kNone, DType::kIQ2_S},
    {kFfnDown, kFirst8th, kNoImportance, DType::kQ4_K}, {kFfnDown, kEverywhere, kNoImportance, DType::kQ3_K},
    {kAttnOutput, kEverywhere, kNone, DType::kIQ3_S}};
constexpr MixRule kIQ2_SM[] = {{kAttnV, kEverywhere, kNone, DType::kIQ3_S},
                               {kFfnDown, kFirst8thByCount, kNone, DType::kIQ3_S},
                               {kAttnOutput, kEverywhere, kNone, DType::kIQ3_S}};
constexpr MixRule kIQ2_X[] = {{kAttnV, kEverywhere, kNone, DType::kQ2_K},
                              {kFfnDown, kFirst8thByCount, kNone, DType::kQ2_K}};
constexpr MixRule kIQ1[] = {{kAttnV, kEverywhere, kNone, DType::kQ2_K},
                            {kFfnDown, kFirst8thByCount, kNone, DType::kQ2_K},
                            {kAttnOutput, kEverywhere, kNone, DType::kIQ2_XXS}};
constexpr MixRule kMXFP4[] = {{"", kEverywhere, kStacked, DType::kMXFP4}};

// DeepSeek-V4: per token, the six routed experts are read at 2 bits and everything else whole, so the rest
// decides the speed: 4.5 bits instead of the usual 8.5. What steers selection (compressors, index weights) is
// small and stays finer.
constexpr MixRule kSynodV4Q2[] = {{"ffn_gate_exps", kEverywhere, kNone, DType::kIQ2_XXS},
                                  {"ffn_up_exps", kEverywhere, kNone, DType::kIQ2_XXS},
                                  {"ffn_down_exps", kEverywhere, kNone, DType::kQ2_K},
                                  {"_compressor_", kEverywhere, kNone, DType::kQ8_0},
                                  {"indexer.proj", kEverywhere, kNone, DType::kQ8_0},
                                  {"attn_kv.weight", kEverywhere, kNone, DType::kQ6_K},
                                  {"ffn_down_shexp", kEverywhere, kNone, DType::kQ5_K}};
// Gemma 4: 8 of 128 experts and one dense feed-forward per layer; the usual mix spends 8.5 bits on half of
// the down projections only because 704 and 2112 are no multiples of 256.
constexpr MixRule kSynodG4Q4[] = {{"ffn_down_exps", kEverywhere, kNone, DType::kQ4_K},
                                  {"ffn_down.weight", kFirst8th, kNone, DType::kQ8_0},
                                  {kAttnV, kEverywhere, kNone, DType::kQ5_K},
                                  {kAttnK, kEverywhere, kNone, DType::kQ5_K}};

constexpr Mix plain(std::string_view name, uint32_t file_type, DType type, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .file_type = file_type,
          .base = type,
          .head = type,
          .embedding = type};
}

constexpr bool kNeedsImportance = true;

constexpr Mix kMixes[] = {
    plain("f32", 0, DType::kF32, "32-bit floats"),
    plain("f16", 1, DType::kF16, "16-bit floats with a 10-bit fraction"),
    plain("bf16", 32, DType::kBF16, "16-bit floats as most checkpoints have them"),
    {"q8_0",
     "8.5 bits, hardly distinguishable from 16",
     7,
     DType::kQ8_0,
     DType::kQ8_0,
     DType::kQ8_0,
     kEight,
     {}},
    {"q6_k", "6.6 bits", 18, DType::kQ6_K, DType::kQ6_K, DType::kQ6_K, kEight, {}},
    {"q5_k_m", "5.5 bits, sensitive tensors 6.6", 17, DType::kQ5_K, DType::kQ6_K, DType::kQ5_K, kEight,
     kMostBits},
    {"q5_k_s", "5.5 bits", 16, DType::kQ5_K, DType::kQ6_K, DType::kQ5_K, kEight, {}},
    {"q5_1", "6 bits, simple blocks", 9, DType::kQ5_1, DType::kQ6_K, DType::kQ5_1, kEight, {}},
    {"q5_0", "5.5 bits, simple blocks", 8, DType::kQ5_0, DType::kQ6_K, DType::kQ5_0, kEight, kQ5_0},
    {"q4_k_m", "4.5 bits, sensitive tensors 6.6: the usual choice", 15, DType::kQ4_K, DType::kQ6_K,
     DType::kQ4_K, kEightAndOutput, kMostBits},
    {"q4_k_s", "4.5 bits, few tensors 5.5", 14, DType::kQ4_K, DType::kQ6_K, DType::kQ4_K, kEightAndOutput,
     kQ4_K_S},
    {"synod_g4_q4",
     "Gemma 4 with experts: 4.5 bits, down projections 5.5, head 5.5",
     14,
     DType::kQ4_K,
     DType::kQ5_K,
     DType::kQ4_K,
     {},
     kSynodG4Q4},
    {"q4_1", "5 bits, simple blocks", 3, DType::kQ4_1, DType::kQ6_K, DType::kQ4_1, kEight, {}},
    {"q4_0", "4.5 bits, simple blocks", 2, DType::kQ4_0, DType::kQ6_K, DType::kQ4_0, kEight, kQ4_0},
    {"iq4_nl", "4.5 bits, uneven levels", 25, DType::kIQ4_NL, DType::kQ6_K, DType::kIQ4_NL, kEightAndOutput,
     kIQ4},
    {"iq4_xs", "4.25 bits, uneven levels", 30, DType::kIQ4_XS, DType::kQ6_K, DType::kIQ4_XS, kEightAndOutput,
     kIQ4},
    {"mxfp4_moe",
     "experts MXFP4 (exact for DeepSeek-V4's own FP4), the rest 8.5 bits",
     38,
     DType::kQ8_0,
     DType::kQ8_0,
     DType::kQ8_0,
     {},
     kMXFP4},
    {"mxfp4_bf16",
     "experts MXFP4, the rest bf16: DeepSeek-V4 as published, nothing lost",
     38,
     DType::kBF16,
     DType::kBF16,
     DType::kBF16,
     {},
     kMXFP4},
    {"q3_k_l", "3.4 bits, sensitive tensors 5.5", 13, DType::kQ3_K, DType::kQ6_K, DType::kQ3_K, kEight,
     kQ3_K_L},
    {"q3_k_m", "3.4 bits, sensitive tensors 4.5", 12, DType::kQ3_K, DType::kQ6_K, DType::kQ3_K,
     kEightAndOutput, kQ3_K_M},
    {"q3_k_s", "3.4 bits", 11, DType::kQ3_K, DType::kQ6_K, DType::kQ3_K, kEightAndOutput, {}},
    {"iq3_m", "3.4 bits from a codebook, sensitive tensors 4.5", 27, DType::kIQ3_S, DType::kQ6_K,
     DType::kIQ3_S, kEightAndOutput, kIQ3_M},
    {"iq3_s", "3.4 bits from a codebook", 26, DType::kIQ3_S, DType::kQ6_K, DType::kIQ3_S, kEightAndOutput,
     kIQ3_S},
    {"iq3_xs", "3.3 bits from a codebook", 22, DType::kIQ3_S, DType::kQ6_K, DType::kIQ3_S, kEightAndOutput,
     kIQ3_XS},
    {"iq3_xxs", "3.1 bits from a codebook", 23, DType::kIQ3_XXS, DType::kQ5_K, DType::kIQ3_S, kEightAndOutput,
     kIQ3_XXS},
    {"q2_k", "2.6 bits, sensitive tensors 3.4", 10, DType::kQ2_K, DType::kQ6_K, DType::kQ2_K, kEightAndOutput,
     kQ2_K},
    {"q2_k_s", "2.6 bits", 21, DType::kQ2_K, DType::kQ6_K, DType::kQ2_K, kEight, kQ2_K_S, kNeedsImportance},
    {"synod_v4_q2",
     "DeepSeek-V4: routed experts 2.1 and 2.6 bits, the rest 4.5 to 5, head 6.6",
     19,
     DType::kQ4_K,
     DType::kQ6_K,
     DType::kQ4_K,
     {},
     kSynodV4Q2,
     kNeedsImportance},
    {"iq2_m", "2.6 bits from a codebook", 29, DType::kIQ2_S, DType::kQ5_K, DType::kIQ3_S, kLowBits, kIQ2_SM},
    {"iq2_s", "2.4 bits from a codebook", 28, DType::kIQ2_XS, DType::kQ5_K, DType::kIQ3_S, kLowBits, kIQ2_SM},
    {"iq2_xs", "2.3 bits from a codebook", 20, DType::kIQ2_XS, DType::kQ5_K, DType::kQ2_K, kLowBits, kIQ2_X},
    {"iq2_xxs", "2.1 bits from a codebook", 19, DType::kIQ2_XXS, DType::kQ5_K, DType::kQ2_K, kLowBits,
     kIQ2_X},
    {"iq1_m", "1.75 bits from a codebook", 31, DType::kIQ1_M, DType::kQ5_K, DType::kQ2_K, kLowBits, kIQ1},
    {"iq1_s", "1.6 bits from a codebook", 24, DType::kIQ1_S, DType::kQ5_K, DType::kQ2_K, kLowBits, kIQ1},
    {"tq2_0",
     "2.1 bits, for weights of three values",
     37,
     DType::kTQ2_0,
     DType::kQ6_K,
     DType::kQ4_K,
     kEight,
     {}},
    {"tq1_0",
     "1.7 bits, for weights of three values",
     36,
     DType::kTQ1_0,
     DType::kQ6_K,
     DType::kQ4_K,
     kEight,
     {}},
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_output(std::string_view name) { return name == "output.weight"; }
bool is_embedding(std::string_view name) {
  return name == "token_embd.weight" || name == "per_layer_token_embd.weight";
}

int64_t rows_of(const MixTensor* tensor) {
  return tensor != nullptr && tensor->shape.size() >= 2 ? tensor->shape[tensor->shape.size() - 2] : 0;
}

// What rules ask about the whole model.
struct ModelFacts {
  int64_t n_layers = 0;
  int64_t n_experts = 1;
  int64_t gqa = 1;  // query heads per key-value head, layer 0
  bool has_output = false;
  int64_t n_attn_v = 0;

  static ModelFacts of(std::span<const MixTensor> tensors) {
    ModelFacts facts;
    const MixTensor* query = nullptr;
    const MixTensor* key = nullptr;
    for (const MixTensor& t : tensors) {
      facts.n_layers = std::max(facts.n_layers, layer_of_tensor(t.name) + 1);
      if (contains(t.name, "_exps.weight") && t.shape.size() == 3) {
        facts.n_experts = std::max(facts.n_experts, t.shape[0]);
      }
      if (contains(t.name, kAttnV)) ++facts.n_attn_v;
      if (is_output(t.name)) facts.has_output = true;
      if (t.name == "blk.0.attn_q.weight") query = &t;
      if (t.name == "blk.0.attn_k.weight") key = &t;
    }
    // Queries and keys of a layer have heads of one width.
    if (rows_of(key) > 0) facts.gqa = rows_of(query) / rows_of(key);
    return facts;
  }
};

bool more_bits(int64_t i, int64_t n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

class Planner {
 public:
  Planner(const Mix& mix, const ModelFacts& facts, const MixOptions& options)
      : mix_(mix), facts_(facts), options_(options) {}

  // To be called in the order of layers, and of names within a layer: counters depend on it.
  DType choose(const MixTensor& tensor) {
    if (is_output(tensor.name) || (!facts_.has_output && is_embedding(tensor.name))) {
      if (options_.output) return *options_.output;
      return tensor.shape.back() % info(mix_.base).block_values == 0 ? mix_.head : DType::kQ8_0;
    }
    if (is_embedding(tensor.name)) return mix_.embedding;
    DType type = mix_.base;
    for (const auto& rules : {mix_.shared, mix_.rules}) {
      const auto rule = std::ranges::find_if(rules, [&](const MixRule& r) { return holds(r, tensor); });
      if (rule == rules.end()) continue;
      type = rule->type;
      break;
    }
    if (int64_t* counter = counter_of(tensor.name)) ++*counter;
    return type;
  }

 private:
  int64_t* counter_of(std::string_view name) {
    if (contains(name, kAttnV)) return &attn_v_;
    if (contains(name, kFfnUp)) return &ffn_up_;
    if (contains(name, kFfnGate)) return &ffn_gate_;
    if (contains(name, kFfnDown)) return &ffn_down_;
    return nullptr;
  }

  bool holds(const MixRule& rule, const MixTensor& tensor) {
    if (!contains(tensor.name, rule.part) || !holds(rule.guard, tensor)) return false;
    const bool is_attn_v = contains(tensor.name, kAttnV);
    const int64_t* counter = counter_of(tensor.name);
    const int64_t counted = counter == nullptr ? 0 : *counter;
    const bool by_count = is_attn_v || (facts_.n_experts <= 1 && counter != nullptr);
    const int64_t i = by_count ? counted : layer_of_tensor(tensor.name);
    const int64_t n = is_attn_v ? facts_.n_attn_v : facts_.n_layers;
    switch (rule.where) {
      case kEverywhere:
        return true;
      case kFirst2:
        return i < 2;
      case kFirst4:
        return i < 4;
      case kFirst16th:
        return i < n / 16;
      case kFirst8th:
        return i < n / 8;
      case kFirst8thByCount:
        return counted < n / 8;
      case kMiddle:
        return i >= n / 8 && i < 7 * n / 8;
      case kMoreBits:
        return more_bits(i, n);
    }
    return false;
  }

  bool holds(MixGuard guard, const MixTensor& tensor) const {
    switch (guard) {
      case kNone:
        return true;
      case kStacked:
        return tensor.shape.size() == 3 && tensor.shape[0] > 1;
      case kGqa4:
        return facts_.gqa >= 4;
      case kGqa4OrExperts4:
        return facts_.gqa >= 4 || facts_.n_experts >= 4;
      case kEightExperts:
        return facts_.n_experts == 8;
      case kNotEightExperts:
        return facts_.n_experts != 8;
      case kImportance:
        return options_.has_importance;
      case kNoImportance:
        return !options_.has_importance;
    }
    return false;
  }

  const Mix& mix_;
  const ModelFacts& facts_;
  const MixOptions& options_;
  int64_t attn_v_ = 0, ffn_up_ = 0, ffn_gate_ = 0, ffn_down_ = 0;
};

}  // namespace

std::span<const Mix> mixes() { return kMixes; }

const Mix* find_mix(std::string_view name) {
  std::string key = lower(name);
  if (key == "q3_k" || key == "q4_k" || key == "q5_k") key += "_m";
  const auto it = std::ranges::find(kMixes, key, &Mix::name);
  return it == std::end(kMixes) ? nullptr : it;
}

const Mix& mix_or_throw(std::string_view name) {
  if (const Mix* mix = find_mix(name)) return *mix;
  std::string names;
  for (const Mix& m : kMixes) names.append(names.empty() ? "" : ", ").append(m.name);
  fail(Error::Kind::kUsage, "unknown type \"{}\": expected one of {}", name, names);
}

DType parse_stored_type(std::string_view name, std::string_view option) {
  const auto type = dtype_from_name(lower(name));
  if (type && can_encode_row(*type)) return *type;
  fail(Error::Kind::kUsage,
       "{}: \"{}\" is no type that can be written; examples: f32, f16, bf16, q8_0, q6_k, q4_k", option, name);
}

TypeOverride parse_type_override(const std::string& text) {
  const size_t at = text.rfind('=');
  if (at == std::string::npos || at == 0) {
    fail(Error::Kind::kUsage, "--tensor-type: expected REGEX=TYPE, got \"{}\"", text);
  }
  TypeOverride result{text, {}, parse_stored_type(text.substr(at + 1), "--tensor-type")};
  try {
    result.pattern = std::regex(text.substr(0, at));
  } catch (const std::regex_error& error) {
    fail(Error::Kind::kUsage, "--tensor-type: \"{}\" is no regular expression: {}", text.substr(0, at),
         error.what());
  }
  return result;
}

bool keeps_source_type(std::string_view name, std::span<const int64_t> shape, bool quantize_all) {
  // A matrix with one row is a vector.
  const auto above = std::ranges::find_if(shape, [](int64_t n) { return n > 1; });
  if (shape.empty() || above == shape.end() || above == shape.end() - 1) return true;
  if (!name.ends_with("weight")) return true;
  for (const std::string_view part :
       {"_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "per_layer_model_proj"}) {
    if (contains(name, part)) return true;
  }
  if (quantize_all) return false;
  for (const std::string_view part : {"hc_attn_", "hc_ffn_", "output_hc_", "_ape.weight", "attn_sinks"}) {
    if (contains(name, part)) return true;
  }
  return false;
}

int64_t layer_of_tensor(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  int64_t layer = -1;
  const auto [stop, error] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return error == std::errc{} && stop != name.data() + name.size() && *stop == '.' ? layer : -1;
}

DType fitting_type(DType wanted, int64_t n) {
  const auto fits = [n](DType type) { return n % info(type).block_values == 0; };
  if (fits(wanted)) return wanted;
  struct Fallback {
    DType from, to;
  };
  constexpr Fallback kFallbacks[] = {
      {DType::kIQ1_S, DType::kIQ4_NL},  {DType::kIQ1_M, DType::kIQ4_NL},  {DType::kIQ2_XXS, DType::kIQ4_NL},
      {DType::kIQ2_XS, DType::kIQ4_NL}, {DType::kIQ2_S, DType::kIQ4_NL},  {DType::kIQ3_XXS, DType::kIQ4_NL},
      {DType::kIQ3_S, DType::kIQ4_NL},  {DType::kIQ4_XS, DType::kIQ4_NL}, {DType::kQ2_0, DType::kQ4_0},
      {DType::kQ2_K, DType::kQ4_0},     {DType::kQ3_K, DType::kQ4_0},     {DType::kTQ1_0, DType::kQ4_0},
      {DType::kTQ2_0, DType::kQ4_0},    {DType::kQ4_K, DType::kQ5_0},     {DType::kQ5_K, DType::kQ5_1},
      {DType::kQ6_K, DType::kQ8_0},
  };
  const auto it = std::ranges::find(kFallbacks, wanted, &Fallback::from);
  return it != std::end(kFallbacks) && fits(it->to) ? it->to : DType::kF16;
}

TypePlan plan_types(const Mix& mix, std::span<const MixTensor> tensors, const MixOptions& options) {
  TypePlan plan;
  plan.types.resize(tensors.size());
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return std::pair(layer_of_tensor(tensors[a].name), std::string_view(tensors[a].name)) <
           std::pair(layer_of_tensor(tensors[b].name), std::string_view(tensors[b].name));
  });
  const ModelFacts facts = ModelFacts::of(tensors);
  Planner planner(mix, facts, options);
  std::vector<bool> matched(options.overrides.size());
  for (const size_t i : order) {
    const MixTensor& t = tensors[i];
    if (!t.is_float) continue;
    const TypeOverride* manual = nullptr;  // the first that fits
    for (size_t o = 0; o < options.overrides.size(); ++o) {
      if (!std::regex_search(t.name, options.overrides[o].pattern)) continue;
      matched[o] = true;
      if (manual == nullptr) manual = &options.overrides[o];
    }
    if (keeps_source_type(t.name, t.shape, options.quantize_all)) {
      const bool is_matrix = t.shape.size() >= 2;
      if (manual != nullptr && is_matrix && !is_block_type(manual->type)) {
        plan.types[i] = manual->type;
      } else if (manual != nullptr) {
        plan.notes.push_back(fmt::format("{}: kept as stored, not {}: it decides what is selected", t.name,
                                         name(manual->type)));
      }
      continue;
    }
    if (options.keep_output && is_output(t.name)) continue;
    DType type = mix.base;
    if (options.embedding && is_embedding(t.name)) {
      type = *options.embedding;
    } else if (options.output && is_output(t.name)) {
      type = *options.output;
    } else if (manual != nullptr) {
      type = manual->type;
    } else if (!options.pure) {
      type = planner.choose(t);
    }
    const DType fitting = fitting_type(type, t.shape.back());
    if (fitting != type) {
      plan.notes.push_back(fmt::format("{}: rows of {} values are no whole blocks of {}: {} instead", t.name,
                                       t.shape.back(), name(type), name(fitting)));
    }
    plan.types[i] = fitting;
  }
  for (size_t i = 0; i < matched.size(); ++i) {
    if (!matched[i]) plan.unmatched.push_back(options.overrides[i].text);
  }
  return plan;
}

}  // namespace synod
