#include "server/parameters.h"

#include <charconv>
#include <cmath>
#include <random>

namespace synod::server {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr double kMaxBias = 1000.0;

int32_t vocabulary_id(const Json& value, const std::string& path, const RequestLimits& limits) {
  const int64_t vocabulary = limits.tokenizer.vocab_size();
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= vocabulary ||
      (value.is_number_unsigned() && value.get<uint64_t>() >= static_cast<uint64_t>(vocabulary))) {
    bad_field(path, "expected a token id from 0 to {}, got {}", vocabulary - 1, shown(value));
  }
  return value.get<int32_t>();
}

float bias_value(const Json& value, const std::string& path) {
  if (value.is_boolean() && !value.get<bool>()) return -std::numeric_limits<float>::infinity();
  const double bias = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(std::abs(bias) <= kMaxBias)) {
    bad_field(path, "expected a number from {} to {}, or false, got {}", -kMaxBias, kMaxBias, shown(value));
  }
  return static_cast<float>(bias);
}

// OpenAI's object {"id": bias}, or llama.cpp's array of [id or text, bias or false].
void read_logit_bias(const Fields& fields, const RequestLimits& limits, SamplerOptions& out) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (bias->is_object()) {
    for (const auto& [key, value] : bias->items()) {
      const std::string path = fields.path("logit_bias") + "." + key;
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size()) id = -1;
      out.logit_bias.push_back({vocabulary_id(Json(id), path, limits), bias_value(value, path)});
    }
    return;
  }
  if (!bias->is_array()) bad_field(fields.path("logit_bias"), "expected an object, got {}", shown(*bias));
  for (size_t i = 0; i < bias->size(); ++i) {
    const std::string path = fields.path("logit_bias", i);
    const Json& entry = (*bias)[i];
    if (!entry.is_array() || entry.size() != 2)
      bad_field(path, "expected [token, bias], got {}", shown(entry));
    const float value = bias_value(entry[1], path + "[1]");
    if (entry[0].is_string()) {
      for (const int32_t id : limits.tokenizer.encode(entry[0].get<std::string>())) {
        out.logit_bias.push_back({id, value});
      }
    } else {
      out.logit_bias.push_back({vocabulary_id(entry[0], path + "[0]", limits), value});
    }
  }
}

void refuse_missing_samplers(const Fields& fields) {
  constexpr std::string_view kWhy = "this sampler is not available here; leave it out or turn it off";
  for (const char* key : {"dry_multiplier", "xtc_probability", "mirostat", "dynatemp_range"}) {
    fields.refuse_if_set(key, kWhy);
  }
  if (const auto sigma = fields.number("top_n_sigma", -1e9, 1e9); sigma && *sigma > 0) {
    fields.refuse("top_n_sigma", kWhy);
  }
  fields.refuse_if_set("samplers", "the order of the samplers is fixed");
}

void read_structured_outputs(const Fields& object, std::string_view prefix, Parameters& out) {
  const auto key = [&](std::string_view name) { return std::string(prefix) + std::string(name); };
  const auto set = [&](std::string_view name, ResponseFormat::Kind kind) {
    out.format.kind = kind;
    out.format.field = object.path(key(name));
  };
  if (const Json* schema = object.find(key("json"))) {
    set("json", ResponseFormat::Kind::kJsonSchema);
    out.format.source = schema->is_string() ? schema->get<std::string>() : dump(*schema);
  }
  if (const Json* choices = object.array(key("choice"), 10'000)) {
    set("choice", ResponseFormat::Kind::kChoice);
    out.format.choices.clear();
    for (size_t i = 0; i < choices->size(); ++i) {
      if (!(*choices)[i].is_string()) {
        bad_field(object.path(key("choice"), i), "expected a string, got {}", shown((*choices)[i]));
      }
      out.format.choices.push_back((*choices)[i].get<std::string>());
    }
    if (out.format.choices.empty())
      bad_field(object.path(key("choice")), "expected at least one string, got none");
  }
  if (auto grammar = object.text(key("grammar")); grammar && !grammar->empty()) {
    set("grammar", ResponseFormat::Kind::kGrammar);
    out.format.source = std::move(*grammar);
  }
  if (object.boolean(key("json_object")).value_or(false))
    set("json_object", ResponseFormat::Kind::kJsonObject);
  object.refuse_if_set(key("regex"), "regular expressions are not supported; use a grammar or a JSON schema");
}

void read_constraints(const Fields& fields, Parameters& out) {
  read_structured_outputs(fields, "guided_", out);
  if (const auto outputs = fields.object("structured_outputs")) read_structured_outputs(*outputs, "", out);
  if (const Json* schema = fields.find("json_schema")) {
    out.format.kind = ResponseFormat::Kind::kJsonSchema;
    out.format.field = fields.path("json_schema");
    out.format.source = schema->is_string() ? schema->get<std::string>() : dump(*schema);
  }
  if (auto grammar = fields.text("grammar"); grammar && !grammar->empty()) {
    if (fields.has("json_schema"))
      fields.refuse("grammar", "expected one of grammar and json_schema, got both");
    out.format.kind = ResponseFormat::Kind::kGrammar;
    out.format.field = fields.path("grammar");
    out.format.source = std::move(*grammar);
  }
}

void read_reasoning(const Fields& fields, Parameters& out) {
  if (const auto effort = fields.text("reasoning_effort")) {
    fields.one_of("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
    set_effort(*effort, out);
  }
  if (const auto format =
          fields.one_of("reasoning_format", {"none", "auto", "deepseek", "deepseek-legacy"})) {
    out.reasoning_format = *format == "none" ? ReasoningFormat::kInline : ReasoningFormat::kSeparate;
  }
  if (const auto budget = fields.integer("reasoning_budget", -1, kMaxTokensLimit)) {
    out.reasoning_budget = *budget;
    if (*budget == 0) out.thinking = false;
  }
  if (const auto thinking = fields.object("thinking")) {
    const auto type = thinking->one_of("type", {"enabled", "disabled", "adaptive"});
    if (type) out.thinking = *type != "disabled";
    if (const auto budget = thinking->integer("budget_tokens", 0, kMaxTokensLimit))
      out.reasoning_budget = *budget;
  }
  if (const auto arguments = fields.object("chat_template_kwargs")) {
    out.template_arguments = arguments->json();
    for (const char* key : {"enable_thinking", "thinking"}) {
      if (const auto on = arguments->boolean(key)) out.thinking = *on;
    }
    if (const auto effort = arguments->text("reasoning_effort")) set_effort(*effort, out);
  }
}

}  // namespace

uint64_t random_seed() {
  thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

void set_effort(const std::string& effort, Parameters& out) {
  out.reasoning_effort = effort;
  out.thinking = effort != "none" && effort != "minimal";
}

void read_sampling(const Fields& fields, const RequestLimits& limits, double max_temperature,
                   Parameters& out) {
  SamplerOptions& s = out.sampling;
  s = limits.sampling;
  out.tokenizer = &limits.tokenizer;
  const auto real = [&](const char* key, float& value, double low, double high) {
    if (const auto given = fields.number(key, low, high)) value = static_cast<float>(*given);
  };
  real("temperature", s.temperature, 0.0, max_temperature);
  if (const auto p = fields.number("top_p", 0.0, 1.0)) {
    // 0 means "the most likely token" to clients; the sampler's range is open there.
    s.top_p = *p > 0.0 ? std::max(static_cast<float>(*p), std::numeric_limits<float>::min()) : 1e-9F;
  }
  real("frequency_penalty", s.frequency_penalty, -2.0, 2.0);
  real("presence_penalty", s.presence_penalty, -2.0, 2.0);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), kMaxInt64);
  s.seed = seed && *seed != -1 ? static_cast<uint64_t>(*seed) : random_seed();
  read_logit_bias(fields, limits, s);
}

void read_local_extras(const Fields& fields, const RequestLimits& limits, Parameters& out) {
  SamplerOptions& s = out.sampling;
  const auto real = [&](const char* key, float& value, double low, double high) {
    if (const auto given = fields.number(key, low, high)) value = static_cast<float>(*given);
  };
  if (const auto k = fields.integer("top_k", -1, kMaxTokensLimit)) s.top_k = std::max<int64_t>(0, *k);
  if (const auto p = fields.number("min_p", 0.0, 1.0)) s.min_p = std::min(static_cast<float>(*p), 0.999999F);
  if (const auto p = fields.number("typical_p", 0.0, 1.0); p && *p > 0.0)
    s.typical_p = static_cast<float>(*p);
  real("repetition_penalty", s.repetition_penalty, 0.01, 100.0);
  real("repeat_penalty", s.repetition_penalty, 0.01, 100.0);
  if (const auto last = fields.integer("repeat_last_n", -1, kMaxTokensLimit)) s.repeat_last_n = *last;
  refuse_missing_samplers(fields);

  out.ignore_eos = fields.boolean("ignore_eos").value_or(out.ignore_eos);
  out.min_tokens = fields.integer("min_tokens", 0, kMaxTokensLimit).value_or(out.min_tokens);
  if (const Json* ids = fields.array("stop_token_ids", 1024)) {
    for (size_t i = 0; i < ids->size(); ++i) {
      out.stop_ids.push_back(vocabulary_id((*ids)[i], fields.path("stop_token_ids", i), limits));
    }
  }
  if (const auto n = fields.integer("n_probs", 0, 128); n && *n > 0) {
    out.logprobs = true;
    out.top_logprobs = *n;
  }
  fields.integer("n_keep", -1, kMaxTokensLimit);  // nothing is ever shifted out of the context
  if (const auto slot = fields.integer("id_slot", -1, limits.max_choices - 1); slot && *slot >= 0) {
    out.slot = *slot;
  }
  out.cache_prompt = fields.boolean("cache_prompt").value_or(out.cache_prompt);
  out.return_tokens =
      fields.boolean("return_tokens").value_or(false) || fields.boolean("return_token_ids").value_or(false);
  out.timings_per_token = fields.boolean("timings_per_token").value_or(false);
  out.return_progress = fields.boolean("return_progress").value_or(false);
  read_constraints(fields, out);
  read_reasoning(fields, out);
}

void read_stop(const Fields& fields, std::string_view key, Parameters& out) {
  const Json* stop = fields.find(key);
  if (stop == nullptr) return;
  constexpr size_t kMaxStops = 16;
  constexpr size_t kMaxStopBytes = 4096;
  const auto add = [&](const Json& value, const std::string& path) {
    if (!value.is_string()) bad_field(path, "expected a string, got {}", shown(value));
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) bad_field(path, "expected a string that is not empty, got \"\"");
    if (text.size() > kMaxStopBytes)
      bad_field(path, "expected at most {} bytes, got {}", kMaxStopBytes, text.size());
    out.stop.push_back(text);
  };
  if (!stop->is_array()) return add(*stop, fields.path(key));
  if (stop->size() > kMaxStops)
    bad_field(fields.path(key), "expected at most {} strings, got {}", kMaxStops, stop->size());
  for (size_t i = 0; i < stop->size(); ++i) add((*stop)[i], fields.path(key, i));
}

void read_format(const Fields& format, bool is_flat, Parameters& out) {
  const auto type = format.one_of("type", {"text", "json_object", "json_schema"});
  if (!type) bad_field(format.path("type"), "expected text, json_object or json_schema, got none");
  if (*type == "text") return;
  out.format.kind = ResponseFormat::Kind::kJsonObject;
  out.format.field = format.where();
  const auto take_schema = [&](const Fields& holder) {
    const auto schema = holder.object("schema");
    if (!schema) return false;
    out.format.kind = ResponseFormat::Kind::kJsonSchema;
    out.format.field = holder.path("schema");
    out.format.source = dump(schema->json());
    return true;
  };
  if (*type == "json_object") {
    take_schema(format);  // llama.cpp's and others' extension
    return;
  }
  if (is_flat) {
    if (!take_schema(format)) bad_field(format.path("schema"), "expected a JSON schema, got none");
    return;
  }
  const auto inner = format.object("json_schema");
  if (!inner) bad_field(format.path("json_schema"), "expected an object with name and schema, got none");
  inner->text("name");
  inner->boolean("strict");
  // Without a schema any object is right.
  take_schema(*inner);
}

}  // namespace synod::server
