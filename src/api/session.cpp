#include <nlohmann/json.hpp>

#include "api/impl.h"
#include "base/buffer.h"
#include "formats/atomic_file.h"

namespace synod::api {
namespace {

constexpr int kFileVersion = 1;

std::filesystem::path rows_path(const std::string& path) { return path + ".kv"; }

nlohmann::ordered_json to_json(const ChatMessage& message) {
  nlohmann::ordered_json json = {{"role", message.role}, {"content", message.content}};
  if (!message.reasoning.empty()) json["reasoning"] = message.reasoning;
  if (!message.name.empty()) json["name"] = message.name;
  for (const synod::ToolCall& call : message.tool_calls) {
    json["tool_calls"].push_back({{"name", call.name}, {"arguments", call.arguments}});
  }
  return json;
}

// `json` is from a file: every field is checked.
ChatMessage from_json(const nlohmann::json& json, const std::string& file) {
  const auto text = [&](const nlohmann::json& object, const char* key, bool required) -> std::string {
    if (!object.is_object()) bad_file("{}: a message or call is not an object", file);
    const auto it = object.find(key);
    if (it == object.end() && !required) return {};
    if (it == object.end() || !it->is_string()) bad_file("{}: {} is missing or no text", file, key);
    return it->get<std::string>();
  };
  ChatMessage message;
  message.role = text(json, "role", true);
  message.content = text(json, "content", true);
  message.reasoning = text(json, "reasoning", false);
  message.name = text(json, "name", false);
  if (const auto calls = json.find("tool_calls"); calls != json.end()) {
    if (!calls->is_array()) bad_file("{}: tool_calls is no list", file);
    for (const nlohmann::json& call : *calls) {
      message.tool_calls.push_back({{}, text(call, "name", true), text(call, "arguments", true)});
    }
  }
  return message;
}

}  // namespace

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Session Model::session(const std::string& system_prompt) const {
  auto impl = std::make_unique<Session::Impl>();
  impl->model = impl_;
  if (!system_prompt.empty()) {
    ChatMessage message;
    message.role = "system";
    message.content = system_prompt;
    impl->messages.push_back(std::move(message));
  }
  return Session(std::move(impl));
}

void Session::set_tools(std::vector<Tool> tools) {
  impl_->tools.clear();
  for (Tool& tool : tools) {
    impl_->tools.push_back({std::move(tool.name), std::move(tool.description), std::move(tool.parameters)});
  }
}

Reply Session::Impl::generate(const GenerateOptions& options, const PieceCallback& on_piece) {
  cancelled = false;
  DialogueOptions dialogue;
  dialogue.thinking = options.reasoning;
  dialogue.tools = tools;
  std::vector<int32_t> prompt = encode_prompt(*model->tokenizer, model->dialogue->render(messages, dialogue));
  const std::vector<int32_t> prompt_ids = prompt;
  Reply reply = model->generate(std::move(prompt), options, true, on_piece, cancelled);
  last_ids = prompt_ids;
  ChatMessage message;
  message.role = "assistant";
  message.content = reply.content;
  message.reasoning = reply.reasoning;
  for (const ToolCall& call : reply.tool_calls) message.tool_calls.push_back({{}, call.name, call.arguments});
  messages.push_back(std::move(message));
  return reply;
}

Reply Session::send(std::string_view text, const GenerateOptions& options, const PieceCallback& on_piece) {
  return translated([&] {
    ChatMessage message;
    message.role = "user";
    message.content = text;
    impl_->messages.push_back(std::move(message));
    try {
      return impl_->generate(options, on_piece);
    } catch (...) {
      impl_->messages.pop_back();
      throw;
    }
  });
}

void Session::add_tool_result(std::string_view tool_name, std::string_view result) {
  ChatMessage message;
  message.role = "tool";
  message.name = tool_name;
  message.content = result;
  impl_->messages.push_back(std::move(message));
}

Reply Session::generate(const GenerateOptions& options, const PieceCallback& on_piece) {
  return translated([&] { return impl_->generate(options, on_piece); });
}

void Session::cancel() { impl_->cancelled = true; }

int64_t Session::n_messages() const { return static_cast<int64_t>(impl_->messages.size()); }

void Session::save(const std::string& path) const {
  translated([&] {
    nlohmann::ordered_json json = {{"synod_session", kFileVersion},
                                   {"messages", nlohmann::ordered_json::array()}};
    for (const ChatMessage& message : impl_->messages) json["messages"].push_back(to_json(message));
    json["ids"] = impl_->last_ids;
    AtomicFile file(path);
    file.write(json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    file.commit();
    if (!impl_->last_ids.empty()) impl_->model->engine->save(impl_->last_ids, rows_path(path));
  });
}

void Session::restore(const std::string& path) {
  translated([&] {
    const nlohmann::json json = parse_json(read_text_file(path), path);
    const auto version = json.is_object() ? json.find("synod_session") : json.end();
    if (!json.is_object() || version == json.end() || *version != kFileVersion ||
        !json.contains("messages") || !json["messages"].is_array()) {
      bad_file("{}: expected a saved conversation of version {}", path, kFileVersion);
    }
    std::vector<ChatMessage> messages;
    for (const nlohmann::json& message : json["messages"]) messages.push_back(from_json(message, path));
    impl_->messages = std::move(messages);
    impl_->last_ids.clear();
    try {
      impl_->last_ids = impl_->model->engine->restore(rows_path(path));
    } catch (const synod::Error&) {  // the rows are computed again
    }
  });
}

}  // namespace synod::api
