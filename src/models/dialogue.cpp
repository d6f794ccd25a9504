#include "models/dialogue.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace synod {
namespace {

bool is_border(const Tokenizer& tokenizer, int32_t id) {
  const TokenKind kind = tokenizer.kind(id);
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined;
}

// Ids of a prompt under construction. Merges may cross the edges of pieces ("user\n" + "\nHi"), as they do
// when a template's whole output is encoded at once, but never make a control token out of what people wrote.
class PromptEncoder {
 public:
  explicit PromptEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add_text(std::string_view text) { pending_ += text; }

  void add_markup(const std::string& text) {
    const std::vector<int32_t> ids = tokenizer_.encode(text, /*parse_special=*/true);
    std::string restored;
    for (const int32_t id : ids) restored += tokenizer_.bytes_of(id);
    if (restored != text) {  // characters outside the vocabulary: their bytes are lost, so no merging
      flush();
      ids_.insert(ids_.end(), ids.begin(), ids.end());
      return;
    }
    for (const int32_t id : ids) {
      if (is_border(tokenizer_, id)) {
        flush();
        ids_.push_back(id);
      } else {
        pending_ += tokenizer_.bytes_of(id);
      }
    }
  }

  std::vector<int32_t> finish() {
    flush();
    return std::move(ids_);
  }

 private:
  void flush() {
    const std::vector<int32_t> ids = tokenizer_.encode(pending_, /*parse_special=*/false);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    pending_.clear();
  }

  const Tokenizer& tokenizer_;
  std::string pending_;  // text since the last control token
  std::vector<int32_t> ids_;
};

}  // namespace

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::vector<PromptPiece>& pieces,
                                   bool parse_all) {
  if (parse_all) return tokenizer.encode(join(pieces), /*parse_special=*/true);
  PromptEncoder encoder(tokenizer);
  for (const PromptPiece& piece : pieces) {
    if (piece.is_markup) {
      encoder.add_markup(piece.text);
    } else {
      encoder.add_text(piece.text);
    }
  }
  return encoder.finish();
}

std::string join(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

void PromptBuilder::add(std::string_view text, bool is_markup) {
  if (text.empty()) return;
  if (!pieces_.empty() && pieces_.back().is_markup == is_markup) {
    pieces_.back().text += text;
  } else {
    pieces_.push_back({std::string(text), is_markup});
  }
}

std::string text_of(const ChatMessage& message, std::string_view separator) {
  if (message.parts.empty()) return message.content;
  std::string text;
  for (size_t i = 0; i < message.parts.size(); ++i) {
    const ContentPart& part = message.parts[i];
    if (part.type != "text") {
      fail(Error::Kind::kUsage,
           "content part {} of a {} message: expected type text, got \"{}\": this model reads text only", i,
           message.role, part.type);
    }
    if (i > 0) text += separator;
    text += part.text;
  }
  return text;
}

namespace {

// A member of template_arguments, or null. `options` may come from a request.
nlohmann::json template_argument(const DialogueOptions& options, std::string_view key) {
  if (options.template_arguments.empty()) return nullptr;
  const nlohmann::json arguments =
      nlohmann::json::parse(options.template_arguments, nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) {
    fail(Error::Kind::kUsage, "chat_template_kwargs: expected a JSON object, got {}",
         options.template_arguments.substr(0, 64));
  }
  const auto it = arguments.find(key);
  return it == arguments.end() ? nlohmann::json(nullptr) : *it;
}

}  // namespace

std::string reasoning_effort(const DialogueOptions& options) {
  constexpr std::array<std::string_view, 8> kEfforts = {"",       "none", "minimal", "low",
                                                        "medium", "high", "xhigh",   "max"};
  const nlohmann::json argument = template_argument(options, "reasoning_effort");
  const std::string effort = argument.is_string() ? argument.get<std::string>() : options.reasoning_effort;
  if ((!argument.is_null() && !argument.is_string()) ||
      std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    fail(Error::Kind::kUsage,
         "reasoning_effort: expected none, minimal, low, medium, high, xhigh or max, got {}",
         argument.is_null() ? effort.substr(0, 64) : argument.dump(-1, ' ', true).substr(0, 64));
  }
  return effort;
}

bool wants_thinking(const DialogueOptions& options) {
  if (reasoning_effort(options) == "none") return false;
  for (const std::string_view key : {"enable_thinking", "thinking"}) {
    const nlohmann::json argument = template_argument(options, key);
    if (argument.is_null()) continue;
    if (!argument.is_boolean()) {
      fail(Error::Kind::kUsage, "chat_template_kwargs: {}: expected true or false, got {}", key,
           argument.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 64));
    }
    return argument.get<bool>();
  }
  return options.thinking;
}

std::span<const Tool> shown_tools(const DialogueOptions& options) {
  if (options.tool_choice == ToolChoice::kNone) return {};
  return options.tools;
}

}  // namespace synod
