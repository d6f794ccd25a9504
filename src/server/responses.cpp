// POST /v1/responses. Nothing is stored: a conversation is sent whole with each request.
#include "server/chat.h"
#include "server/openai.h"

namespace synod::server {
namespace {

std::string output_text(const Json& output, const std::string& path) {
  return output.is_string() ? output.get<std::string>() : content_text(output, path);
}

// One item of "input": a message, a call of ours, its result, or our reasoning.
void read_item(const Fields& item, ChatRequest& out) {
  const std::string type = item.text("type").value_or("message");
  std::vector<ChatMessage>& messages = out.messages;
  // A call and the reasoning before it belong to one turn of the assistant.
  const auto assistant_turn = [&]() -> ChatMessage& {
    if (messages.empty() || messages.back().role != "assistant") messages.push_back({"assistant", "", ""});
    return messages.back();
  };
  if (type == "message") {
    ChatMessage message;
    message.role = item.require_text("role");
    item.one_of("role", {"system", "developer", "user", "assistant"});
    const Json* content = item.find("content");
    if (content == nullptr)
      bad_field(item.path("content"), "expected a string or an array of parts, got none");
    read_content(*content, item.path("content"), message);
    const bool joins_reasoning = message.role == "assistant" && !messages.empty() &&
                                 messages.back().role == "assistant" && messages.back().content.empty() &&
                                 messages.back().parts.empty() && messages.back().tool_calls.empty();
    if (joins_reasoning) message.reasoning = messages.back().reasoning;
    if (joins_reasoning) messages.pop_back();
    messages.push_back(std::move(message));
  } else if (type == "function_call") {
    ToolCall call{item.require_text("call_id"), item.require_text("name"),
                  item.text("arguments").value_or("")};
    check_function_name(call.name, item.path("name"));
    if (!call.arguments.empty() && !is_json_object(call.arguments)) {
      bad_field(item.path("arguments"), "expected text of a JSON object, got {}",
                shown(Json(call.arguments)));
    }
    assistant_turn().tool_calls.push_back(std::move(call));
  } else if (type == "function_call_output") {
    ChatMessage result;
    result.role = "tool";
    result.tool_call_id = item.require_text("call_id");
    const Json* output = item.find("output");
    if (output == nullptr) bad_field(item.path("output"), "expected a string, got none");
    result.content = output_text(*output, item.path("output"));
    messages.push_back(std::move(result));
  } else if (type == "reasoning") {
    std::string reasoning;
    for (const char* key : {"content", "summary"}) {
      const Json* parts = item.array(key);
      if (parts == nullptr || !reasoning.empty()) continue;
      for (size_t i = 0; i < parts->size(); ++i) {
        reasoning += Fields((*parts)[i], item.path(key, i)).text("text").value_or("");
      }
    }
    messages.push_back({"assistant", "", reasoning});
  } else {
    bad_field(item.path("type"), "items of type {} are not supported", shown(Json(type)));
  }
}

void read_input(const Fields& fields, ChatRequest& out) {
  const Json* input = fields.find("input");
  if (input == nullptr) bad_field("input", "expected a string or an array of items, got none");
  if (input->is_string()) {
    out.messages.push_back({"user", input->get<std::string>(), ""});
    return;
  }
  const Json& items = fields.require_array("input", kMaxMessages);
  if (items.empty()) bad_field("input", "expected at least one item, got none");
  for (size_t i = 0; i < items.size(); ++i) read_item(Fields(items[i], fields.path("input", i)), out);
}

class ResponsesFormat final : public ReplyFormat {
 public:
  ResponsesFormat(const ChatRequest& request, const Json& body) : parameters_(request.parameters) {
    // Clients read these back from the response.
    for (const char* key :
         {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature",
          "text", "tool_choice", "tools", "top_p", "truncation", "user"}) {
      const auto it = body.find(key);
      echo_[key] = it == body.end() ? default_of(key) : *it;
    }
  }

  std::string begin(const Completion& c) override {
    // One statement each: the events count themselves.
    std::string out = event("response.created", {{"response", snapshot(c, "in_progress")}});
    return out + event("response.in_progress", {{"response", snapshot(c, "in_progress")}});
  }

  std::string delta(const Completion& c, const Delta& d) override {
    const Choice& choice = c.choices[0];
    switch (d.kind) {
      case Delta::Kind::kContent: {
        std::string out = open_message(choice);
        text_ += d.text;
        Json data = {
            {"item_id", item_id_}, {"output_index", index_}, {"content_index", 0}, {"delta", d.text}};
        data["logprobs"] = logprobs(d.logprobs);
        return out + event("response.output_text.delta", std::move(data));
      }
      case Delta::Kind::kReasoning: {
        std::string out = open_reasoning(choice);
        text_ += d.text;
        return out + event("response.reasoning_text.delta", {{"item_id", item_id_},
                                                             {"output_index", index_},
                                                             {"content_index", 0},
                                                             {"delta", d.text}});
      }
      case Delta::Kind::kCallBegin: {
        std::string out = close(choice);
        item_ = Item::kCall;
        item_id_ = random_id("fc_");
        call_ = d.call;
        return out + event("response.output_item.added",
                           {{"output_index", index_},
                            {"item", call_item(choice.calls[d.call], "in_progress", "")}});
      }
      case Delta::Kind::kCallArguments:
        text_ += d.text;
        return event("response.function_call_arguments.delta",
                     {{"item_id", item_id_}, {"output_index", index_}, {"delta", d.text}});
      case Delta::Kind::kCallEnd:
        return close(choice);
    }
    return "";
  }

  std::string choice_end(const Completion&, int64_t) override { return ""; }

  std::string end(const Completion& c, int64_t) override {
    std::string out = close(c.choices[0]);
    const bool is_cut = c.choices[0].reason == FinishReason::kLength;
    Json response = snapshot(c, is_cut ? "incomplete" : "completed");
    response["output"] = output_;
    finish(c, response);
    return out +
           event(is_cut ? "response.incomplete" : "response.completed", {{"response", std::move(response)}});
  }

  std::string error(const ApiError& failure, std::string_view request_id) override {
    const Json inner = error_json(failure, ErrorStyle::kOpenAi, request_id)["error"];
    std::string out =
        event("response.failed", {{"response",
                                   {{"object", "response"},
                                    {"status", "failed"},
                                    {"error", {{"code", "server_error"}, {"message", failure.what()}}}}}});
    return out + event("error",
                       {{"code", inner["code"]}, {"message", inner["message"]}, {"param", inner["param"]}});
  }

  std::string body(const Completion& c) override {
    const Choice& choice = c.choices[0];
    Json output = Json::array();
    if (!choice.reasoning.empty()) output.push_back(reasoning_item(random_id("rs_"), choice.reasoning));
    if (!choice.content.empty() || !choice.has_calls()) {
      output.push_back(message_item(random_id("msg_"), "completed", choice.content, choice.logprobs));
    }
    for (const CompletedCall& call : choice.calls) {
      if (call.is_error) continue;
      item_id_ = random_id("fc_");
      output.push_back(call_item(call, "completed", call.arguments));
    }
    Json response = snapshot(c, choice.reason == FinishReason::kLength ? "incomplete" : "completed");
    response["output"] = std::move(output);
    finish(c, response);
    return dump(response);
  }

 private:
  enum class Item { kNone, kMessage, kReasoning, kCall };

  static Json default_of(std::string_view key) {
    if (key == "metadata") return Json::object();
    if (key == "tools") return Json::array();
    if (key == "tool_choice") return "auto";
    if (key == "parallel_tool_calls") return true;
    if (key == "text") return {{"format", {{"type", "text"}}}};
    if (key == "truncation") return "disabled";
    if (key == "reasoning") return {{"effort", nullptr}, {"summary", nullptr}};
    return nullptr;
  }

  std::string event(std::string_view type, Json data) {
    Json whole = {{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : data.items()) whole[key] = std::move(value);
    return sse(type, whole);
  }

  Json snapshot(const Completion& c, std::string_view status) const {
    Json response = {{"id", c.id},
                     {"object", "response"},
                     {"created_at", c.created},
                     {"status", status},
                     {"background", false},
                     {"error", nullptr},
                     {"model", c.model},
                     {"incomplete_details", nullptr},
                     {"output", Json::array()},
                     {"usage", nullptr},
                     {"store", false},
                     {"previous_response_id", nullptr},
                     {"service_tier", "default"}};
    for (const auto& [key, value] : echo_.items()) response[key] = value;
    return response;
  }

  static void finish(const Completion& c, Json& response) {
    if (c.choices[0].reason == FinishReason::kLength) {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    response["usage"] = {{"input_tokens", c.usage.prompt_tokens},
                         {"input_tokens_details", {{"cached_tokens", c.usage.cached_tokens}}},
                         {"output_tokens", c.usage.completion_tokens},
                         {"output_tokens_details", {{"reasoning_tokens", c.usage.reasoning_tokens}}},
                         {"total_tokens", c.usage.prompt_tokens + c.usage.completion_tokens}};
    response["timings"] = timings_json(c);
  }

  Json logprobs(const std::vector<TokenInfo>& tokens) const {
    Json list = Json::array();
    for (const TokenInfo& token : tokens) list.push_back(logprob_json(token, *parameters_.tokenizer));
    return list;
  }
  Json text_part(const std::string& text, const std::vector<TokenInfo>& tokens) const {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", logprobs(tokens)}};
  }
  Json message_item(const std::string& id, std::string_view status, const std::string& text,
                    const std::vector<TokenInfo>& tokens) const {
    return {{"id", id},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", Json::array({text_part(text, tokens)})}};
  }
  static Json reasoning_item(const std::string& id, const std::string& text) {
    return {{"id", id},
            {"type", "reasoning"},
            {"summary", Json::array()},
            {"content", Json::array({{{"type", "reasoning_text"}, {"text", text}}})}};
  }
  Json call_item(const CompletedCall& call, std::string_view status, const std::string& arguments) const {
    return {{"id", item_id_},     {"type", "function_call"}, {"status", status},
            {"call_id", call.id}, {"name", call.name},       {"arguments", arguments}};
  }

  std::string open_message(const Choice& choice) {
    if (item_ == Item::kMessage) return "";
    std::string out = close(choice);
    item_ = Item::kMessage;
    item_id_ = random_id("msg_");
    Json item = message_item(item_id_, "in_progress", "", {});
    item["content"] = Json::array();
    out += event("response.output_item.added", {{"output_index", index_}, {"item", std::move(item)}});
    return out + event("response.content_part.added", {{"item_id", item_id_},
                                                       {"output_index", index_},
                                                       {"content_index", 0},
                                                       {"part", text_part("", {})}});
  }

  std::string open_reasoning(const Choice& choice) {
    if (item_ == Item::kReasoning) return "";
    std::string out = close(choice);
    item_ = Item::kReasoning;
    item_id_ = random_id("rs_");
    Json item = reasoning_item(item_id_, "");
    item["content"] = Json::array();
    out += event("response.output_item.added", {{"output_index", index_}, {"item", std::move(item)}});
    return out + event("response.content_part.added", {{"item_id", item_id_},
                                                       {"output_index", index_},
                                                       {"content_index", 0},
                                                       {"part", {{"type", "reasoning_text"}, {"text", ""}}}});
  }

  // Ends the open item.
  std::string close(const Choice& choice) {
    std::string out;
    Json item;
    const Json place = {{"item_id", item_id_}, {"output_index", index_}};
    const auto at = [&](Json data) {
      Json whole = place;
      for (auto& [key, value] : data.items()) whole[key] = std::move(value);
      return whole;
    };
    switch (item_) {
      case Item::kNone:
        return "";
      case Item::kMessage:
        out += event("response.output_text.done",
                     at({{"content_index", 0}, {"text", text_}, {"logprobs", Json::array()}}));
        out +=
            event("response.content_part.done", at({{"content_index", 0}, {"part", text_part(text_, {})}}));
        item = message_item(item_id_, "completed", text_, {});
        break;
      case Item::kReasoning:
        out += event("response.reasoning_text.done", at({{"content_index", 0}, {"text", text_}}));
        out += event("response.content_part.done",
                     at({{"content_index", 0}, {"part", {{"type", "reasoning_text"}, {"text", text_}}}}));
        item = reasoning_item(item_id_, text_);
        break;
      case Item::kCall:
        out += event("response.function_call_arguments.done",
                     at({{"name", choice.calls[call_].name}, {"arguments", text_}}));
        item =
            call_item(choice.calls[call_], choice.calls[call_].is_error ? "incomplete" : "completed", text_);
        break;
    }
    out += event("response.output_item.done", {{"output_index", index_}, {"item", item}});
    output_.push_back(std::move(item));
    item_ = Item::kNone;
    text_.clear();
    ++index_;
    return out;
  }

  Parameters parameters_;
  Json echo_ = Json::object();
  Json output_ = Json::array();  // finished items
  Item item_ = Item::kNone;
  std::string item_id_;
  std::string text_;  // of the open item
  size_t call_ = 0;
  int64_t index_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace

ChatRequest read_responses(const Json& body, const RequestLimits& limits) {
  const Fields fields(body);
  ChatRequest out;
  Parameters& p = out.parameters;
  out.model = fields.text("model").value_or("");
  if (auto instructions = fields.text("instructions"); instructions && !instructions->empty()) {
    out.messages.push_back({"system", std::move(*instructions), ""});
  }
  read_input(fields, out);
  read_tools(fields, /*is_flat=*/true, out);
  read_sampling(fields, limits, kMaxTemperature, p);
  read_local_extras(fields, limits, p);
  read_stream(fields, p);
  if (const auto n = fields.integer("max_output_tokens", 1, kMaxTokensLimit)) p.max_tokens = *n;
  if (const auto n = fields.integer("top_logprobs", 0, 20); n && *n > 0) {
    p.logprobs = true;
    p.top_logprobs = *n;
  }
  if (const auto reasoning = fields.object("reasoning")) {
    const auto effort =
        reasoning->one_of("effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
    if (effort) set_effort(*effort, p);
  }
  if (const auto text = fields.object("text")) {
    if (const auto format = text->object("format")) read_format(*format, /*is_flat=*/true, p);
  }
  if (const Json* include = fields.array("include", 64)) {
    for (const Json& word : *include) p.logprobs = p.logprobs || word == "message.output_text.logprobs";
  }
  fields.refuse_if_set("background", "responses are not stored; call without background");
  fields.refuse_if_set("previous_response_id", "responses are not stored; send the whole conversation");
  fields.refuse_if_set("conversation", "conversations are not stored; send the whole conversation");
  fields.refuse_if_set("prompt", "stored prompts are not supported");
  fields.refuse_if_set("context_management", "the context is not edited by the server");
  const auto truncation = fields.one_of("truncation", {"auto", "disabled"});
  if (truncation == "auto")
    fields.refuse("truncation", "the server does not drop messages; only disabled is supported");
  return out;
}

std::unique_ptr<ReplyFormat> responses_format(const ChatRequest& request, const Json& body) {
  return std::make_unique<ResponsesFormat>(request, body);
}

}  // namespace synod::server
