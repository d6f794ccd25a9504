// POST /v1/chat/completions
#include "server/chat.h"
#include "server/openai.h"

namespace synod::server {
namespace {

ToolCall read_call(const Fields& call) {
  ToolCall result;
  result.id = call.text("id").value_or("");
  const auto function = call.object("function");
  if (!function) bad_field(call.path("function"), "expected an object with name and arguments, got none");
  result.name = function->require_text("name");
  check_function_name(result.name, function->path("name"));
  const Json* arguments = function->find("arguments");
  if (arguments != nullptr) {
    if (!arguments->is_string() && !arguments->is_object()) {
      bad_field(function->path("arguments"), "expected text of a JSON object, got {}", shown(*arguments));
    }
    result.arguments = arguments->is_string() ? arguments->get<std::string>() : dump(*arguments);
    // Checked here, because only here the field's name is known.
    if (result.arguments.find_first_not_of(" \t\r\n") == std::string::npos) result.arguments = "";
    if (!result.arguments.empty() && !is_json_object(result.arguments)) {
      bad_field(function->path("arguments"), "expected text of a JSON object, got {}", shown(*arguments));
    }
  }
  return result;
}

void read_assistant(const Fields& message, ChatMessage& out) {
  out.reasoning = message.text("reasoning_content").value_or(message.text("reasoning").value_or(""));
  if (const Json* calls = message.array("tool_calls", 1024)) {
    for (size_t i = 0; i < calls->size(); ++i) {
      out.tool_calls.push_back(read_call(Fields((*calls)[i], message.path("tool_calls", i))));
    }
  }
  if (const auto legacy = message.object("function_call")) {
    out.tool_calls.push_back({"", legacy->require_text("name"), legacy->text("arguments").value_or("")});
    if (!out.tool_calls.back().arguments.empty() && !is_json_object(out.tool_calls.back().arguments)) {
      bad_field(legacy->path("arguments"), "expected text of a JSON object");
    }
  }
  message.refuse_if_set("audio", "audio is not supported");
}

void read_legacy_functions(const Fields& fields, ChatRequest& out) {
  const Json* functions = fields.array("functions", kMaxTools);
  if (functions == nullptr) return;
  if (fields.has("tools")) fields.refuse("functions", "expected one of tools and functions, got both");
  out.is_legacy = true;
  out.is_parallel = false;
  for (size_t i = 0; i < functions->size(); ++i) {
    const Fields function((*functions)[i], fields.path("functions", i));
    out.dialogue.tools.push_back(read_function(function, "parameters", out));
  }
  if (const Json* choice = fields.find("function_call")) {
    if (choice->is_string()) {
      const auto word = fields.one_of("function_call", {"auto", "none"});
      out.dialogue.tool_choice = *word == "none" ? ToolChoice::kNone : ToolChoice::kAuto;
    } else {
      out.dialogue.tool_choice = ToolChoice::kNamed;
      out.dialogue.tool_choice_name = Fields(*choice, fields.path("function_call")).require_text("name");
    }
  }
  check_tools(out, fields.path("function_call"));
}

}  // namespace

bool is_json_object(std::string_view text) {
  try {
    return parse_json(text).is_object();
  } catch (const ApiError&) {
    return false;
  }
}

ChatMessage read_openai_message(const Fields& message) {
  ChatMessage out;
  out.role = message.require_text("role");
  message.one_of("role", {"system", "developer", "user", "assistant", "tool", "function"});
  const Json* content = message.find("content");
  if (content != nullptr) read_content(*content, message.path("content"), out);
  if (out.role == "assistant") read_assistant(message, out);
  if (out.role == "function") out.role = "tool";
  if (out.role == "tool") {
    out.tool_call_id = message.text("tool_call_id").value_or("");
    out.name = message.text("name").value_or(message.text("tool_name").value_or(""));
  }
  const bool may_be_empty = out.role == "assistant" && (!out.tool_calls.empty() || !out.reasoning.empty());
  if (content == nullptr && !may_be_empty) {
    bad_field(message.path("content"), "expected a string or an array of parts, got none");
  }
  return out;
}

std::vector<ChatMessage> read_openai_messages(const Fields& fields) {
  const Json& list = fields.require_array("messages", kMaxMessages);
  if (list.empty()) bad_field(fields.path("messages"), "expected at least one message, got none");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    messages.push_back(read_openai_message(Fields(list[i], fields.path("messages", i))));
  }
  return messages;
}

void read_stream(const Fields& fields, Parameters& out) {
  out.stream = fields.boolean("stream").value_or(false);
  if (const auto options = fields.object("stream_options")) {
    out.include_usage = options->boolean("include_usage").value_or(false);
    options->boolean("include_obfuscation");
  }
}

ChatRequest read_openai_chat(const Json& body, const RequestLimits& limits) {
  const Fields fields(body);
  ChatRequest out;
  Parameters& p = out.parameters;
  out.model = fields.text("model").value_or("");
  out.messages = read_openai_messages(fields);
  read_tools(fields, false, out);
  read_legacy_functions(fields, out);
  read_sampling(fields, limits, kMaxTemperature, p);
  read_local_extras(fields, limits, p);
  read_stop(fields, "stop", p);
  read_stream(fields, p);
  if (const auto n = fields.integer("max_tokens", 1, kMaxTokensLimit)) p.max_tokens = *n;
  if (const auto n = fields.integer("max_completion_tokens", 1, kMaxTokensLimit)) p.max_tokens = *n;
  p.n = fields.integer("n", 1, limits.max_choices).value_or(1);
  const bool wants_logprobs = fields.boolean("logprobs").value_or(false);
  p.logprobs = p.logprobs || wants_logprobs;
  if (const auto n = fields.integer("top_logprobs", 0, 20)) {
    if (*n > 0 && !wants_logprobs) fields.refuse("top_logprobs", "needs \"logprobs\": true");
    p.top_logprobs = *n;
  }
  if (const auto format = fields.object("response_format")) read_format(*format, false, p);
  if (const Json* modalities = fields.array("modalities", 8)) {
    for (const Json& word : *modalities) {
      if (word != "text") fields.refuse("modalities", "only text is supported");
    }
  }
  fields.refuse_if_set("audio", "audio is not supported");
  fields.refuse_if_set("web_search_options", "web search is not supported");
  out.dialogue.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  out.dialogue.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  if (out.dialogue.continue_final_message && out.messages.back().role != "assistant") {
    fields.refuse("continue_final_message", "the last message must be the assistant's");
  }
  return out;
}

namespace {

class OpenAiChatFormat final : public ReplyFormat {
 public:
  explicit OpenAiChatFormat(const ChatRequest& request)
      : parameters_(request.parameters), is_legacy_(request.is_legacy) {}

  std::string begin(const Completion& c) override {
    std::string out;
    for (size_t i = 0; i < c.choices.size(); ++i) {
      out += chunk(c, static_cast<int64_t>(i), {{"role", "assistant"}, {"content", ""}});
    }
    return out;
  }

  std::string progress(const Completion& c, const PrefillEvent& event) override {
    Json data = head(c, "chat.completion.chunk");
    data["choices"] = Json::array();
    data["prompt_progress"] = {{"total", event.total},
                               {"cache", c.usage.cached_tokens},
                               {"processed", event.done},
                               {"time_ms", c.timings.prompt_seconds * 1e3}};
    return sse(data);
  }

  std::string delta(const Completion& c, const Delta& d) override {
    const CompletedCall* call = nullptr;
    if (d.kind != Delta::Kind::kContent && d.kind != Delta::Kind::kReasoning) {
      call = &c.choices[static_cast<size_t>(d.choice)].calls[d.call];
    }
    switch (d.kind) {
      case Delta::Kind::kContent:
        return chunk(c, d.choice, {{"content", d.text}}, {}, d.logprobs);
      case Delta::Kind::kReasoning:
        return chunk(c, d.choice, {{"reasoning_content", d.text}});
      case Delta::Kind::kCallBegin:
        if (is_legacy_)
          return chunk(c, d.choice, {{"function_call", {{"name", call->name}, {"arguments", ""}}}});
        return chunk(
            c, d.choice,
            {{"tool_calls", Json::array({{{"index", d.call},
                                          {"id", call->id},
                                          {"type", "function"},
                                          {"function", {{"name", call->name}, {"arguments", ""}}}}})}});
      case Delta::Kind::kCallArguments:
        if (is_legacy_) return chunk(c, d.choice, {{"function_call", {{"arguments", d.text}}}});
        return chunk(
            c, d.choice,
            {{"tool_calls", Json::array({{{"index", d.call}, {"function", {{"arguments", d.text}}}}})}});
      case Delta::Kind::kCallEnd:
        return "";
    }
    return "";
  }

  std::string choice_end(const Completion& c, int64_t choice) override {
    return chunk(c, choice, Json::object(), finish_reason(c.choices[static_cast<size_t>(choice)]));
  }

  std::string end(const Completion& c, int64_t last_choice) override {
    Json data = chunk_json(c, last_choice, Json::object(),
                           finish_reason(c.choices[static_cast<size_t>(last_choice)]));
    if (!parameters_.include_usage) data["timings"] = timings_json(c);
    std::string out = sse(data);
    if (parameters_.include_usage) {
      Json usage = head(c, "chat.completion.chunk");
      usage["choices"] = Json::array();
      usage["usage"] = usage_json(c.usage);
      usage["timings"] = timings_json(c);
      out += sse(usage);
    }
    return out + "data: [DONE]\n\n";
  }

  std::string error(const ApiError& failure, std::string_view request_id) override {
    return sse(error_json(failure, ErrorStyle::kOpenAi, request_id));
  }

  std::string body(const Completion& c) override {
    Json data = head(c, "chat.completion");
    data["choices"] = Json::array();
    for (size_t i = 0; i < c.choices.size(); ++i) data["choices"].push_back(whole_choice(c.choices[i], i));
    data["usage"] = usage_json(c.usage);
    data["timings"] = timings_json(c);
    return dump(data);
  }

 private:
  std::string finish_reason(const Choice& choice) const {
    if (choice.reason == FinishReason::kLength) return "length";
    if (choice.has_calls()) return is_legacy_ ? "function_call" : "tool_calls";
    return "stop";
  }

  static Json head(const Completion& c, std::string_view object) {
    return {{"id", c.id},
            {"object", object},
            {"created", c.created},
            {"model", c.model},
            {"system_fingerprint", "synod"}};
  }

  Json chunk_json(const Completion& c, int64_t choice, Json delta, const std::string& reason,
                  const std::vector<TokenInfo>& logprobs = {}) const {
    Json data = head(c, "chat.completion.chunk");
    data["choices"] = Json::array({{{"index", choice},
                                    {"delta", std::move(delta)},
                                    {"logprobs", logprobs.empty() ? Json() : chat_logprobs(logprobs)},
                                    {"finish_reason", reason.empty() ? Json() : Json(reason)}}});
    if (!reason.empty() && parameters_.return_tokens) {
      data["choices"][0]["token_ids"] = c.choices[static_cast<size_t>(choice)].ids;
    }
    if (parameters_.include_usage) data["usage"] = nullptr;
    if (parameters_.timings_per_token) data["timings"] = timings_json(c);
    return data;
  }

  std::string chunk(const Completion& c, int64_t choice, Json delta, const std::string& reason = "",
                    const std::vector<TokenInfo>& logprobs = {}) const {
    return sse(chunk_json(c, choice, std::move(delta), reason, logprobs));
  }

  Json chat_logprobs(const std::vector<TokenInfo>& tokens) const {
    Json content = Json::array();
    for (const TokenInfo& token : tokens) content.push_back(logprob_json(token, *parameters_.tokenizer));
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  Json whole_choice(const Choice& choice, size_t index) const {
    Json message = {{"role", "assistant"}};
    Json calls = Json::array();
    for (const CompletedCall& call : choice.calls) {
      if (call.is_error) continue;
      calls.push_back({{"id", call.id},
                       {"type", "function"},
                       {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    message["content"] = choice.content.empty() && !calls.empty() ? Json() : Json(choice.content);
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    message["refusal"] = nullptr;
    if (!calls.empty()) {
      if (is_legacy_) {
        message["function_call"] = calls[0]["function"];
      } else {
        message["tool_calls"] = std::move(calls);
      }
    }
    Json result = {{"index", index},
                   {"message", std::move(message)},
                   {"logprobs", parameters_.logprobs ? chat_logprobs(choice.logprobs) : Json()},
                   {"finish_reason", finish_reason(choice)}};
    if (parameters_.return_tokens) result["token_ids"] = choice.ids;
    return result;
  }

  Parameters parameters_;
  bool is_legacy_;
};

}  // namespace

std::unique_ptr<ReplyFormat> openai_chat_format(const ChatRequest& request) {
  return std::make_unique<OpenAiChatFormat>(request);
}

}  // namespace synod::server
