// POST /v1/completions and llama.cpp's POST /completion: text or ids in, their continuation out.
#include <span>

#include "server/openai.h"

namespace synod::server {
namespace {

std::vector<int32_t> ids_of(const Json& list, const std::string& path, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  const int64_t vocabulary = tokenizer.vocab_size();
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& value = list[i];
    if (!value.is_number_integer() || value < 0 || value >= vocabulary) {
      bad_field(fmt::format("{}[{}]", path, i), "expected a token id from 0 to {}, got {}", vocabulary - 1,
                shown(value));
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

void add_prompt(const Json& prompt, const std::string& path, const RequestLimits& limits, TextRequest& out) {
  if (prompt.is_string()) {
    out.texts.push_back(prompt.get<std::string>());
    out.prompts.push_back(raw_prompt_ids(limits.tokenizer, out.texts.back()));
  } else {
    out.prompts.push_back(ids_of(prompt, path, limits.tokenizer));
    out.texts.push_back(limits.tokenizer.decode(out.prompts.back(), /*keep_special=*/false));
  }
  if (out.prompts.back().empty()) bad_field(path, "expected at least one token, got none");
}

// A string, an array of strings, an array of ids, or an array of arrays of ids.
void read_prompts(const Fields& fields, const RequestLimits& limits, TextRequest& out) {
  const Json* prompt = fields.find("prompt");
  const std::string path = fields.path("prompt");
  if (prompt == nullptr) bad_field(path, "expected a string or an array, got none");
  if (prompt->is_string()) return add_prompt(*prompt, path, limits, out);
  if (!prompt->is_array() || prompt->empty()) {
    bad_field(path, "expected a string or an array of strings or token ids, got {}", shown(*prompt));
  }
  if ((*prompt)[0].is_number()) return add_prompt(*prompt, path, limits, out);
  constexpr size_t kMaxPrompts = 64;
  if (prompt->size() > kMaxPrompts)
    bad_field(path, "expected at most {} prompts, got {}", kMaxPrompts, prompt->size());
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& item = (*prompt)[i];
    if (!item.is_string() && !item.is_array()) {
      bad_field(fields.path("prompt", i), "expected a string or an array of token ids, got {}", shown(item));
    }
    add_prompt(item, fields.path("prompt", i), limits, out);
  }
}

std::string finish_word(const Choice& choice) {
  return choice.reason == FinishReason::kLength ? "length" : "stop";
}

class OpenAiCompletionFormat final : public ReplyFormat {
 public:
  explicit OpenAiCompletionFormat(const TextRequest& request)
      : parameters_(request.parameters), echo_(request.echo ? request.texts : std::vector<std::string>()) {
    offsets_.resize(request.prompts.size() * static_cast<size_t>(parameters_.n), 0);
  }

  std::string begin(const Completion& c) override {
    std::string out;
    for (size_t i = 0; i < c.choices.size() && !echo_.empty(); ++i) out += chunk(c, i, echo_of(i), "", {});
    return out;
  }
  std::string delta(const Completion& c, const Delta& d) override {
    return chunk(c, static_cast<size_t>(d.choice), d.text, "", d.logprobs);
  }
  std::string choice_end(const Completion& c, int64_t choice) override {
    const auto index = static_cast<size_t>(choice);
    return chunk(c, index, "", finish_word(c.choices[index]), {});
  }
  std::string end(const Completion& c, int64_t last_choice) override {
    std::string out = choice_end(c, last_choice);
    if (parameters_.include_usage) {
      Json data = head(c);
      data["choices"] = Json::array();
      data["usage"] = usage_json(c.usage);
      data["timings"] = timings_json(c);
      out += sse(data);
    }
    return out + "data: [DONE]\n\n";
  }
  std::string error(const ApiError& failure, std::string_view request_id) override {
    return sse(error_json(failure, ErrorStyle::kOpenAi, request_id));
  }
  std::string body(const Completion& c) override {
    Json data = head(c);
    data["choices"] = Json::array();
    for (size_t i = 0; i < c.choices.size(); ++i) {
      const Choice& choice = c.choices[i];
      data["choices"].push_back({{"text", echo_of(i) + choice.content},
                                 {"index", i},
                                 {"logprobs", parameters_.logprobs ? logprobs(choice.logprobs, i) : Json()},
                                 {"finish_reason", finish_word(choice)}});
      if (parameters_.return_tokens) data["choices"].back()["token_ids"] = choice.ids;
    }
    data["usage"] = usage_json(c.usage);
    data["timings"] = timings_json(c);
    return dump(data);
  }

 private:
  std::string echo_of(size_t choice) const {
    return echo_.empty() ? "" : echo_[choice / static_cast<size_t>(parameters_.n)];
  }

  static Json head(const Completion& c) {
    return {{"id", c.id},
            {"object", "text_completion"},
            {"created", c.created},
            {"model", c.model},
            {"system_fingerprint", "synod"}};
  }

  std::string chunk(const Completion& c, size_t choice, const std::string& text, const std::string& reason,
                    const std::vector<TokenInfo>& tokens) {
    Json data = head(c);
    data["choices"] = Json::array({{{"text", text},
                                    {"index", choice},
                                    {"logprobs", tokens.empty() ? Json() : logprobs(tokens, choice)},
                                    {"finish_reason", reason.empty() ? Json() : Json(reason)}}});
    if (!reason.empty() && parameters_.return_tokens) data["choices"][0]["token_ids"] = c.choices[choice].ids;
    if (parameters_.include_usage) data["usage"] = nullptr;
    if (parameters_.timings_per_token) data["timings"] = timings_json(c);
    return sse(data);
  }

  Json logprobs(const std::vector<TokenInfo>& tokens, size_t choice) {
    Json words = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (const TokenInfo& token : tokens) {
      words.push_back(token.bytes);
      values.push_back(token.logprob);
      offsets.push_back(offsets_[choice]);
      offsets_[choice] += static_cast<int64_t>(token.bytes.size());
      Json top = Json::object();
      for (const TokenLogprob& other : token.top_logprobs) {
        // Bytes that are no character of their own all show as U+FFFD and must not share a key.
        std::string key = parameters_.tokenizer->decode(std::span(&other.id, 1));
        if (top.contains(key)) key = fmt::format("id:{}", other.id);
        top[key] = other.logprob;
      }
      tops.push_back(std::move(top));
    }
    return {{"tokens", std::move(words)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
  }

  Parameters parameters_;
  std::vector<std::string> echo_;
  std::vector<int64_t> offsets_;  // bytes of text that logprobs were given for, by choice
};

class NativeCompletionFormat final : public ReplyFormat {
 public:
  explicit NativeCompletionFormat(const TextRequest& request)
      : parameters_(request.parameters), prompt_(request.texts.at(0)) {}

  std::string progress(const Completion& c, const PrefillEvent& event) override {
    return sse(Json{{"index", 0},
                    {"content", ""},
                    {"stop", false},
                    {"prompt_progress",
                     {{"total", event.total},
                      {"cache", c.usage.cached_tokens},
                      {"processed", event.done},
                      {"time_ms", c.timings.prompt_seconds * 1e3}}}});
  }
  std::string delta(const Completion& c, const Delta& d) override {
    Json data = {{"index", d.choice}, {"content", d.text}, {"stop", false}, {"tokens", Json::array()}};
    data["tokens_predicted"] = c.choices[static_cast<size_t>(d.choice)].n_tokens;
    data["tokens_evaluated"] = c.usage.prompt_tokens;
    if (!d.logprobs.empty()) data["completion_probabilities"] = probabilities(d.logprobs);
    if (parameters_.timings_per_token) data["timings"] = timings_json(c);
    return sse(data);
  }
  std::string choice_end(const Completion& c, int64_t choice) override { return sse(whole(c, choice, true)); }
  std::string end(const Completion& c, int64_t last_choice) override {
    return sse(whole(c, last_choice, true));
  }
  std::string error(const ApiError& failure, std::string_view request_id) override {
    return sse(error_json(failure, ErrorStyle::kOpenAi, request_id));
  }
  std::string body(const Completion& c) override {
    if (c.choices.size() == 1) return dump(whole(c, 0, false));
    Json list = Json::array();
    for (size_t i = 0; i < c.choices.size(); ++i) list.push_back(whole(c, static_cast<int64_t>(i), false));
    return dump(list);
  }

 private:
  Json whole(const Completion& c, int64_t index, bool is_stream) const {
    const Choice& choice = c.choices[static_cast<size_t>(index)];
    const char* stop_type = choice.reason == FinishReason::kLength ? "limit"
                            : choice.stop_string.empty()           ? "eos"
                                                                   : "word";
    Json data = {{"index", index},
                 {"content", is_stream ? "" : choice.content},
                 {"tokens", parameters_.return_tokens ? Json(choice.ids) : Json::array()},
                 {"id_slot", c.slot},
                 {"stop", true},
                 {"model", c.model},
                 {"tokens_predicted", choice.n_tokens},
                 {"tokens_evaluated", c.usage.prompt_tokens},
                 {"prompt", prompt_},
                 {"has_new_line", choice.content.find('\n') != std::string::npos},
                 {"truncated", false},
                 {"stop_type", stop_type},
                 {"stopping_word", choice.stop_string},
                 {"tokens_cached", c.usage.cached_tokens},
                 {"timings", timings_json(c)}};
    if (parameters_.logprobs && !is_stream) data["completion_probabilities"] = probabilities(choice.logprobs);
    return data;
  }

  Json probabilities(const std::vector<TokenInfo>& tokens) const {
    Json list = Json::array();
    for (const TokenInfo& token : tokens) list.push_back(logprob_json(token, *parameters_.tokenizer));
    return list;
  }

  Parameters parameters_;
  std::string prompt_;
};

}  // namespace

std::vector<int32_t> raw_prompt_ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.encode(text, /*parse_special=*/true);
  const auto bos = tokenizer.data().bos;
  if (bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  return ids;
}

TextRequest read_openai_completion(const Json& body, const RequestLimits& limits) {
  const Fields fields(body);
  TextRequest out;
  Parameters& p = out.parameters;
  out.model = fields.text("model").value_or("");
  read_prompts(fields, limits, out);
  read_sampling(fields, limits, kMaxTemperature, p);
  read_local_extras(fields, limits, p);
  read_stop(fields, "stop", p);
  read_stream(fields, p);
  constexpr int64_t kDefaultTokens = 16;  // OpenAI's
  p.max_tokens = fields.integer("max_tokens", 0, kMaxTokensLimit).value_or(kDefaultTokens);
  p.n = fields.integer("n", 1, limits.max_choices).value_or(1);
  if (const auto best = fields.integer("best_of", 1, limits.max_choices); best && *best > p.n) {
    fields.refuse("best_of", "ranking more candidates than n is not supported");
  }
  if (const auto n = fields.integer("logprobs", 0, 20)) {
    p.logprobs = true;
    p.top_logprobs = *n;
  }
  out.echo = fields.boolean("echo").value_or(false);
  if (out.echo && p.logprobs) fields.refuse("echo", "logprobs of the prompt are not available");
  fields.refuse_if_set("suffix", "this model has no format for filling in the middle");
  if (const auto format = fields.object("response_format")) read_format(*format, false, p);
  return out;
}

std::unique_ptr<ReplyFormat> openai_completion_format(const TextRequest& request) {
  return std::make_unique<OpenAiCompletionFormat>(request);
}

TextRequest read_native_completion(const Json& body, const RequestLimits& limits) {
  const Fields fields(body);
  TextRequest out;
  Parameters& p = out.parameters;
  out.model = fields.text("model").value_or("");
  read_prompts(fields, limits, out);
  if (out.prompts.size() != 1)
    fields.refuse("prompt", "expected one prompt; several are taken by /v1/completions");
  read_sampling(fields, limits, kMaxLocalTemperature, p);
  read_local_extras(fields, limits, p);
  read_stop(fields, "stop", p);
  p.stream = fields.boolean("stream").value_or(false);
  p.max_tokens = fields.integer("n_predict", -1, kMaxTokensLimit)
                     .value_or(fields.integer("max_tokens", -1, kMaxTokensLimit).value_or(-1));
  p.n = fields.integer("n", 1, limits.max_choices).value_or(1);
  return out;
}

std::unique_ptr<ReplyFormat> native_completion_format(const TextRequest& request) {
  return std::make_unique<NativeCompletionFormat>(request);
}

}  // namespace synod::server
