#include "server/ollama.h"

#include <ctime>

namespace synod::server {
namespace {

// "options": {"temperature": ..., "num_predict": ..., ...}. What concerns loading (num_ctx, num_gpu, ...) is
// fixed when the server starts and ignored.
void read_options(const Fields& fields, const RequestLimits& limits, Parameters& out) {
  static const Json kEmpty = Json::object();
  const auto given = fields.object("options");
  const Fields options = given ? *given : Fields(kEmpty, fields.path("options"));
  read_sampling(options, limits, kMaxLocalTemperature, out);
  read_local_extras(options, limits, out);
  read_stop(options, "stop", out);
  if (const auto n = options.integer("num_predict", -2, kMaxTokensLimit); n && *n >= 0) out.max_tokens = *n;
}

void read_common(const Fields& fields, const RequestLimits& limits, Parameters& out) {
  read_options(fields, limits, out);
  out.stream = fields.boolean("stream").value_or(true);
  out.thinking.reset();
  if (const Json* think = fields.find("think")) {
    if (think->is_boolean()) {
      out.thinking = think->get<bool>();
    } else {
      set_effort(*fields.one_of("think", {"low", "medium", "high", "max"}), out);
    }
  }
  if (const Json* format = fields.find("format")) {
    out.format.field = fields.path("format");
    if (format->is_object()) {
      out.format.kind = ResponseFormat::Kind::kJsonSchema;
      out.format.source = dump(*format);
    } else if (!format->is_string() || !format->get_ref<const std::string&>().empty()) {
      fields.one_of("format", {"json"});
      out.format.kind = ResponseFormat::Kind::kJsonObject;
    }
  }
  if (fields.boolean("logprobs").value_or(false)) out.logprobs = true;
  if (const auto n = fields.integer("top_logprobs", 0, 20)) out.top_logprobs = *n;
  if (const Json* keep = fields.find("keep_alive");
      keep != nullptr && !keep->is_number() && !keep->is_string()) {
    bad_field(fields.path("keep_alive"), "expected a duration, got {}", shown(*keep));
  }
}

ChatMessage read_message(const Fields& message) {
  message.refuse_if_set("images", "this model takes text only");
  ChatMessage out;
  out.role = message.require_text("role");
  message.one_of("role", {"system", "developer", "user", "assistant", "tool"});
  out.content = message.text("content").value_or("");
  if (out.role == "assistant") {
    out.reasoning = message.text("thinking").value_or("");
    if (const Json* calls = message.array("tool_calls", 1024)) {
      for (size_t i = 0; i < calls->size(); ++i) {
        const Fields call((*calls)[i], message.path("tool_calls", i));
        const auto function = call.object("function");
        if (!function)
          bad_field(call.path("function"), "expected an object with name and arguments, got none");
        ToolCall result{call.text("id").value_or(""), function->require_text("name"), ""};
        check_function_name(result.name, function->path("name"));
        if (const auto arguments = function->object("arguments")) result.arguments = dump(arguments->json());
        out.tool_calls.push_back(std::move(result));
      }
    }
  } else if (out.role == "tool") {
    out.name = message.text("tool_name").value_or(message.text("name").value_or(""));
    out.tool_call_id = message.text("tool_call_id").value_or("");
  }
  return out;
}

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

class OllamaFormat : public ReplyFormat {
 public:
  explicit OllamaFormat(const Parameters& parameters) : parameters_(parameters) {}

  std::string content_type() const override { return "application/x-ndjson"; }
  std::string keepalive() const override { return ""; }
  std::string delta(const Completion& c, const Delta& d) override {
    const Choice& choice = c.choices[0];
    switch (d.kind) {
      case Delta::Kind::kContent:
        return line(piece(c, d.text, "", nullptr, d.logprobs));
      case Delta::Kind::kReasoning:
        return line(piece(c, "", d.text, nullptr, {}));
      case Delta::Kind::kCallEnd:  // arguments are an object here, so a call is shown when it is whole
        if (choice.calls[d.call].is_error) return "";
        return line(piece(c, "", "", &choice.calls[d.call], {}));
      default:
        return "";
    }
  }
  std::string choice_end(const Completion&, int64_t) override { return ""; }
  std::string end(const Completion& c, int64_t) override {
    Json data = piece(c, "", "", nullptr, {});
    finish(c, data);
    return line(data);
  }
  std::string error(const ApiError& failure, std::string_view request_id) override {
    return line(error_json(failure, ErrorStyle::kOllama, request_id));
  }
  std::string body(const Completion& c) override {
    Json data = whole(c);
    finish(c, data);
    return dump(data);
  }

 protected:
  virtual Json piece(const Completion& c, const std::string& content, const std::string& thinking,
                     const CompletedCall* call, const std::vector<TokenInfo>& logprobs) const = 0;
  virtual Json whole(const Completion& c) const = 0;

  static Json head(const Completion& c) {
    return {{"model", c.model}, {"created_at", iso_time(unix_seconds())}};
  }
  Json logprob_list(const std::vector<TokenInfo>& tokens) const {
    Json list = Json::array();
    for (const TokenInfo& token : tokens) list.push_back(logprob_json(token, *parameters_.tokenizer));
    return list;
  }
  static Json call_json(const CompletedCall& call, size_t index) {
    Json arguments = Json::object();
    if (!call.arguments.empty()) arguments = parse_json(call.arguments);
    return {{"id", call.id},
            {"function", {{"index", index}, {"name", call.name}, {"arguments", std::move(arguments)}}}};
  }

  Parameters parameters_;

 private:
  static std::string line(const Json& data) { return dump(data) + "\n"; }
  static void finish(const Completion& c, Json& data) {
    const Timings& t = c.timings;
    data["done"] = true;
    data["done_reason"] = c.choices[0].reason == FinishReason::kLength ? "length" : "stop";
    data["total_duration"] = nanoseconds(t.queued_seconds + t.prompt_seconds + t.decode_seconds);
    data["load_duration"] = nanoseconds(t.queued_seconds);
    data["prompt_eval_count"] = c.usage.prompt_tokens;
    data["prompt_eval_duration"] = nanoseconds(t.prompt_seconds);
    data["eval_count"] = c.usage.completion_tokens;
    data["eval_duration"] = nanoseconds(t.decode_seconds);
  }
};

class OllamaChatFormat final : public OllamaFormat {
 public:
  using OllamaFormat::OllamaFormat;

 private:
  Json piece(const Completion& c, const std::string& content, const std::string& thinking,
             const CompletedCall* call, const std::vector<TokenInfo>& logprobs) const override {
    Json message = {{"role", "assistant"}, {"content", content}};
    if (!thinking.empty()) message["thinking"] = thinking;
    if (call != nullptr) {
      const auto index = static_cast<size_t>(call - c.choices[0].calls.data());
      message["tool_calls"] = Json::array({call_json(*call, index)});
    }
    Json data = head(c);
    data["message"] = std::move(message);
    if (!logprobs.empty()) data["logprobs"] = logprob_list(logprobs);
    data["done"] = false;
    return data;
  }
  Json whole(const Completion& c) const override {
    const Choice& choice = c.choices[0];
    Json message = {{"role", "assistant"}, {"content", choice.content}};
    if (!choice.reasoning.empty()) message["thinking"] = choice.reasoning;
    if (choice.has_calls()) {
      Json calls = Json::array();
      for (const CompletedCall& call : choice.calls) {
        if (!call.is_error) calls.push_back(call_json(call, calls.size()));
      }
      message["tool_calls"] = std::move(calls);
    }
    Json data = head(c);
    data["message"] = std::move(message);
    if (parameters_.logprobs) data["logprobs"] = logprob_list(choice.logprobs);
    return data;
  }
};

class OllamaGenerateFormat final : public OllamaFormat {
 public:
  using OllamaFormat::OllamaFormat;

 private:
  Json piece(const Completion& c, const std::string& content, const std::string& thinking,
             const CompletedCall*, const std::vector<TokenInfo>& logprobs) const override {
    Json data = head(c);
    data["response"] = content;
    if (!thinking.empty()) data["thinking"] = thinking;
    if (!logprobs.empty()) data["logprobs"] = logprob_list(logprobs);
    data["done"] = false;
    return data;
  }
  Json whole(const Completion& c) const override {
    Json data = head(c);
    data["response"] = c.choices[0].content;
    if (!c.choices[0].reasoning.empty()) data["thinking"] = c.choices[0].reasoning;
    if (parameters_.logprobs) data["logprobs"] = logprob_list(c.choices[0].logprobs);
    return data;
  }
};

}  // namespace

std::string iso_time(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  const size_t n = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, n};
}

std::string ollama_loaded(const std::string& model, bool is_chat) {
  Json data = {{"model", model}, {"created_at", iso_time(unix_seconds())}};
  if (is_chat) {
    data["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    data["response"] = "";
  }
  data["done_reason"] = "load";
  data["done"] = true;
  return dump(data) + "\n";
}

ChatRequest read_ollama_chat(const Json& body, const RequestLimits& limits) {
  const Fields fields(body);
  ChatRequest out;
  out.model = fields.require_text("model");
  if (const Json* messages = fields.array("messages", kMaxMessages)) {
    for (size_t i = 0; i < messages->size(); ++i) {
      out.messages.push_back(read_message(Fields((*messages)[i], fields.path("messages", i))));
    }
  }
  read_tools(fields, /*is_flat=*/false, out);
  read_common(fields, limits, out.parameters);
  return out;
}

std::unique_ptr<ReplyFormat> ollama_chat_format(const ChatRequest& request) {
  return std::make_unique<OllamaChatFormat>(request.parameters);
}

OllamaGenerate read_ollama_generate(const Json& body, const RequestLimits& limits) {
  const Fields fields(body);
  OllamaGenerate out;
  out.is_raw = fields.boolean("raw").value_or(false);
  out.chat.model = out.text.model = fields.require_text("model");
  const std::string prompt = fields.text("prompt").value_or("");
  const std::string system = fields.text("system").value_or("");
  out.is_empty = prompt.empty();
  fields.refuse_if_set("suffix", "this model has no format for filling in the middle");
  fields.refuse_if_set("images", "this model takes text only");
  fields.refuse_if_set("template", "the dialogue format is the model's own");
  fields.refuse_if_set("context", "send the whole conversation; equal beginnings are cached");
  read_common(fields, limits, out.is_raw ? out.text.parameters : out.chat.parameters);
  if (out.is_raw) {
    out.text.texts.push_back(prompt);
    out.text.prompts.push_back(raw_prompt_ids(limits.tokenizer, prompt));
  } else {
    if (!system.empty()) out.chat.messages.push_back({"system", system, ""});
    out.chat.messages.push_back({"user", prompt, ""});
  }
  return out;
}

std::unique_ptr<ReplyFormat> ollama_generate_format(const OllamaGenerate& request) {
  return std::make_unique<OllamaGenerateFormat>(request.is_raw ? request.text.parameters
                                                               : request.chat.parameters);
}

}  // namespace synod::server
