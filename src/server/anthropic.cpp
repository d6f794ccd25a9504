// POST /v1/messages and /v1/messages/count_tokens
#include "server/chat.h"
#include "server/openai.h"

namespace synod::server {
namespace {

// The assistant's blocks: text, thinking, tool_use.
void read_assistant_block(const Fields& block, const std::string& type, ChatMessage& out) {
  if (type == "text") {
    out.parts.push_back({"text", block.require_text("text")});
  } else if (type == "thinking") {
    out.reasoning += block.require_text("thinking");
  } else if (type == "redacted_thinking") {
    return;
  } else if (type == "tool_use") {
    ToolCall call{block.text("id").value_or(""), block.require_text("name"), ""};
    check_function_name(call.name, block.path("name"));
    if (const auto input = block.object("input")) call.arguments = dump(input->json());
    out.tool_calls.push_back(std::move(call));
  } else {
    bad_field(block.path("type"), "expected text, thinking or tool_use, got {}", shown(Json(type)));
  }
}

ChatMessage tool_result(const Fields& block) {
  ChatMessage result;
  result.role = "tool";
  result.tool_call_id = block.require_text("tool_use_id");
  if (const Json* content = block.find("content")) {
    result.content = content_text(*content, block.path("content"));
  }
  // The formats have no mark for failure; the text says so where it does not already.
  if (block.boolean("is_error").value_or(false)) result.content = "Error: " + result.content;
  return result;
}

// One message of Anthropic's may hold results of tools and text: several of ours, in their order.
void read_message(const Fields& message, std::vector<ChatMessage>& out) {
  const std::string role = message.require_text("role");
  message.one_of("role", {"user", "assistant", "system"});
  const Json* content = message.find("content");
  if (content == nullptr)
    bad_field(message.path("content"), "expected a string or an array of blocks, got none");
  ChatMessage current;
  current.role = role;
  if (!content->is_array()) {
    read_content(*content, message.path("content"), current);
    out.push_back(std::move(current));
    return;
  }
  bool has_results = false;
  for (size_t i = 0; i < content->size(); ++i) {
    const Fields block((*content)[i], message.path("content", i));
    const std::string type = block.require_text("type");
    if (role == "assistant") {
      read_assistant_block(block, type, current);
    } else if (type == "tool_result") {
      if (!current.parts.empty()) out.push_back(std::exchange(current, {role, "", ""}));
      out.push_back(tool_result(block));
      has_results = true;
    } else if (type == "text") {
      current.parts.push_back({"text", block.require_text("text")});
    } else {
      bad_field(block.path("type"), "this model takes text and tool results, got {}", shown(Json(type)));
    }
  }
  if (!current.parts.empty() || !current.tool_calls.empty() || !has_results)
    out.push_back(std::move(current));
}

void read_anthropic_tools(const Fields& fields, ChatRequest& out) {
  DialogueOptions& d = out.dialogue;
  if (const Json* tools = fields.array("tools", kMaxTools)) {
    for (size_t i = 0; i < tools->size(); ++i) {
      const Fields tool((*tools)[i], fields.path("tools", i));
      const std::string type = tool.text("type").value_or("custom");
      if (type != "custom") {
        bad_field(tool.path("type"), "only tools of the client are supported, got {}", shown(Json(type)));
      }
      d.tools.push_back(read_function(tool, "input_schema", out));
    }
  }
  if (const auto choice = fields.object("tool_choice")) {
    const auto type = choice->one_of("type", {"auto", "any", "tool", "none"});
    if (!type) bad_field(choice->path("type"), "expected auto, any, tool or none, got none");
    d.tool_choice = *type == "auto"   ? ToolChoice::kAuto
                    : *type == "any"  ? ToolChoice::kRequired
                    : *type == "none" ? ToolChoice::kNone
                                      : ToolChoice::kNamed;
    if (d.tool_choice == ToolChoice::kNamed) d.tool_choice_name = choice->require_text("name");
    if (choice->boolean("disable_parallel_tool_use").value_or(false)) out.is_parallel = false;
  }
  check_tools(out, fields.path("tool_choice"));
}

class AnthropicFormat final : public ReplyFormat {
 public:
  explicit AnthropicFormat(const ChatRequest& request) : parameters_(request.parameters) {}

  std::string keepalive() const override { return sse("ping", Json{{"type", "ping"}}); }

  std::string begin(const Completion& c) override {
    Json message = head(c);
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage(c);
    message["usage"]["output_tokens"] = 0;
    return sse("message_start", {{"type", "message_start"}, {"message", std::move(message)}}) + keepalive();
  }

  std::string delta(const Completion& c, const Delta& d) override {
    switch (d.kind) {
      case Delta::Kind::kContent: {
        std::string out = open(Block::kText, {{"type", "text"}, {"text", ""}});
        return out + block_delta({{"type", "text_delta"}, {"text", d.text}});
      }
      case Delta::Kind::kReasoning: {
        std::string out = open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return out + block_delta({{"type", "thinking_delta"}, {"thinking", d.text}});
      }
      case Delta::Kind::kCallBegin: {
        const CompletedCall& call = c.choices[0].calls[d.call];
        return open(
            Block::kTool,
            {{"type", "tool_use"}, {"id", tool_id(call)}, {"name", call.name}, {"input", Json::object()}});
      }
      case Delta::Kind::kCallArguments:
        return block_delta({{"type", "input_json_delta"}, {"partial_json", d.text}});
      case Delta::Kind::kCallEnd:
        return close();
    }
    return "";
  }

  std::string choice_end(const Completion&, int64_t) override { return ""; }

  std::string end(const Completion& c, int64_t) override {
    const Choice& choice = c.choices[0];
    std::string out = close();
    return out +
           sse("message_delta",
               {{"type", "message_delta"},
                {"delta", {{"stop_reason", stop_reason(choice)}, {"stop_sequence", stop_sequence(choice)}}},
                {"usage", usage(c)}}) +
           sse("message_stop", {{"type", "message_stop"}});
  }

  std::string error(const ApiError& failure, std::string_view request_id) override {
    return sse("error", error_json(failure, ErrorStyle::kAnthropic, request_id));
  }

  std::string body(const Completion& c) override {
    const Choice& choice = c.choices[0];
    Json content = Json::array();
    if (!choice.reasoning.empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", choice.reasoning}, {"signature", kSignature}});
    }
    if (!choice.content.empty()) content.push_back({{"type", "text"}, {"text", choice.content}});
    for (const CompletedCall& call : choice.calls) {
      if (call.is_error) continue;
      Json input = call.arguments.empty() ? Json::object() : parse_json(call.arguments);
      content.push_back(
          {{"type", "tool_use"}, {"id", tool_id(call)}, {"name", call.name}, {"input", std::move(input)}});
    }
    Json data = head(c);
    data["content"] = std::move(content);
    data["stop_reason"] = stop_reason(choice);
    data["stop_sequence"] = stop_sequence(choice);
    data["usage"] = usage(c);
    data["timings"] = timings_json(c);
    return dump(data);
  }

 private:
  enum class Block { kNone, kText, kThinking, kTool };
  // Clients send thinking blocks back with their signature and insist that there is one.
  static constexpr const char* kSignature = "synod";

  static Json head(const Completion& c) {
    return {{"id", c.id}, {"type", "message"}, {"role", "assistant"}, {"model", c.model}};
  }
  static std::string tool_id(const CompletedCall& call) {
    return "toolu_" + call.id.substr(call.id.find('_') + 1);
  }
  static Json usage(const Completion& c) {
    // Cached tokens are counted apart here.
    return {{"input_tokens", c.usage.prompt_tokens - c.usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", c.usage.cached_tokens},
            {"output_tokens", c.usage.completion_tokens}};
  }
  static std::string stop_reason(const Choice& choice) {
    if (choice.reason == FinishReason::kLength) return "max_tokens";
    if (choice.has_calls()) return "tool_use";
    return choice.stop_string.empty() ? "end_turn" : "stop_sequence";
  }
  static Json stop_sequence(const Choice& choice) {
    return choice.stop_string.empty() ? Json() : Json(choice.stop_string);
  }

  std::string open(Block block, const Json& content) {
    if (block_ == block && block != Block::kTool) return "";
    std::string out = close();
    block_ = block;
    return out + sse("content_block_start",
                     {{"type", "content_block_start"}, {"index", index_}, {"content_block", content}});
  }
  std::string block_delta(const Json& delta) const {
    return sse("content_block_delta", {{"type", "content_block_delta"}, {"index", index_}, {"delta", delta}});
  }
  std::string close() {
    if (block_ == Block::kNone) return "";
    std::string out;
    if (block_ == Block::kThinking) {
      out = block_delta({{"type", "signature_delta"}, {"signature", kSignature}});
    }
    block_ = Block::kNone;
    return out + sse("content_block_stop", {{"type", "content_block_stop"}, {"index", index_++}});
  }

  Parameters parameters_;
  Block block_ = Block::kNone;
  int64_t index_ = 0;
};

}  // namespace

ChatRequest read_anthropic(const Json& body, const RequestLimits& limits, bool is_counting) {
  const Fields fields(body);
  ChatRequest out;
  Parameters& p = out.parameters;
  out.model = fields.text("model").value_or("");
  if (const Json* system = fields.find("system")) {
    ChatMessage message;
    message.role = "system";
    read_content(*system, "system", message);
    out.messages.push_back(std::move(message));
  }
  const Json& list = fields.require_array("messages", kMaxMessages);
  if (list.empty()) bad_field("messages", "expected at least one message, got none");
  for (size_t i = 0; i < list.size(); ++i)
    read_message(Fields(list[i], fields.path("messages", i)), out.messages);
  // A last message of the assistant is the beginning of the reply.
  if (out.messages.back().role == "assistant" && out.messages.back().tool_calls.empty()) {
    out.dialogue.continue_final_message = true;
  }
  read_anthropic_tools(fields, out);
  read_sampling(fields, limits, kMaxTemperature, p);
  read_local_extras(fields, limits, p);
  read_stop(fields, "stop_sequences", p);
  const auto max_tokens = fields.integer("max_tokens", 1, kMaxTokensLimit);
  if (!max_tokens && !is_counting) bad_field("max_tokens", "expected an integer of at least 1, got none");
  p.max_tokens = max_tokens.value_or(-1);
  p.stream = fields.boolean("stream").value_or(false);
  if (const auto output = fields.object("output_config")) {
    if (const auto effort =
            output->one_of("effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"})) {
      p.reasoning_effort = *effort;  // thinking is turned on by "thinking"
    }
    if (const auto format = output->object("format")) read_format(*format, /*is_flat=*/true, p);
  }
  if (const auto format = fields.object("output_format")) read_format(*format, /*is_flat=*/true, p);
  fields.refuse_if_set("container", "containers are not supported");
  fields.refuse_if_set("mcp_servers", "remote tools are not supported");
  return out;
}

std::unique_ptr<ReplyFormat> anthropic_format(const ChatRequest& request) {
  return std::make_unique<AnthropicFormat>(request);
}

}  // namespace synod::server
