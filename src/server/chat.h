// A conversation as all chat APIs express it, and the parts of its reading that they share.
#pragma once

#include <string>
#include <vector>

#include "models/dialogue.h"
#include "server/completion.h"
#include "server/parameters.h"

namespace synod::server {

struct ChatRequest {
  std::string model;  // "" = the one that is served
  std::vector<ChatMessage> messages;
  DialogueOptions dialogue;  // tools and their choice; thinking is filled in later
  bool is_parallel = true;   // may one reply hold several calls?
  bool is_strict =
      false;  // calls must follow the schemas (a tool with "strict", tool_choice required or named)
  bool is_legacy = false;  // functions and function_call instead of tools
  Parameters parameters;
};

// A name of a function: 1 to 128 of [A-Za-z0-9_.-]. Throws a 400 about `path`.
void check_function_name(const std::string& name, const std::string& path);
// One function: {"name", "description", "parameters", "strict"}; `schema_key` is "input_schema" for
// Anthropic.
Tool read_function(const Fields& function, std::string_view schema_key, ChatRequest& out);
// OpenAI's "tools" and "tool_choice", nested ({"type": "function", "function": {...}}) or flat (responses).
void read_tools(const Fields& fields, bool is_flat, ChatRequest& out);
// A string, or an array of text parts, as a message's parts. Other parts are a 400. Accepts the types "text",
// "input_text", "output_text", "refusal".
void read_content(const Json& content, const std::string& path, ChatMessage& out);
// The same as one string.
std::string content_text(const Json& content, const std::string& path);
// After all fields are read: names of forced tools exist, tool_choice has tools.
void check_tools(const ChatRequest& request, const std::string& choice_path);

constexpr size_t kMaxMessages = 20'000;
constexpr size_t kMaxTools = 1024;

// POST /v1/chat/completions
ChatRequest read_openai_chat(const Json& body, const RequestLimits& limits);
std::unique_ptr<ReplyFormat> openai_chat_format(const ChatRequest& request);

// POST /v1/messages
ChatRequest read_anthropic(const Json& body, const RequestLimits& limits, bool is_counting);
std::unique_ptr<ReplyFormat> anthropic_format(const ChatRequest& request);

// POST /v1/responses. The format repeats some fields of the request.
ChatRequest read_responses(const Json& body, const RequestLimits& limits);
std::unique_ptr<ReplyFormat> responses_format(const ChatRequest& request, const Json& body);

// POST /api/chat (Ollama)
ChatRequest read_ollama_chat(const Json& body, const RequestLimits& limits);
std::unique_ptr<ReplyFormat> ollama_chat_format(const ChatRequest& request);

}  // namespace synod::server
