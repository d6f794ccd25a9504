#include "models/gemma4/dialogue.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace synod::gemma4 {
namespace {

constexpr std::string_view kChannelOpen = "<|channel>";
constexpr std::string_view kChannelClose = "<channel|>";
constexpr std::string_view kThink = "<|think|>";

// White space as the templates' trim sees it: Unicode's, with the separators U+001C to U+001F.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view trim(std::string_view text) {
  size_t begin = text.size();
  size_t end = 0;  // behind the last character that is no space
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const size_t next = at + c.length;
    if (c.status != Utf8Status::kValid || !is_space(c.value)) {
      begin = std::min(begin, at);
      end = next;
    }
    at = next;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

// Removes every span from an opened channel to its end; past reasoning is not shown to the model again. A
// channel that never closes runs to the end of the text.
std::string without_channels(std::string_view text) {
  std::string clean;
  while (true) {
    const size_t open = text.find(kChannelOpen);
    clean += text.substr(0, open);
    if (open == std::string_view::npos) return clean;
    const size_t close = text.find(kChannelClose, open);
    if (close == std::string_view::npos) return clean;
    text.remove_prefix(close + kChannelClose.size());
  }
}

// Adjacent markup is one piece, so that it is tokenized as one text.
class Prompt {
 public:
  void markup(std::string_view text) {
    if (pieces_.empty() || !pieces_.back().is_markup) pieces_.push_back({"", true});
    pieces_.back().text += text;
  }
  void text(std::string_view text) {
    if (!text.empty()) pieces_.push_back({std::string(text), false});
  }
  std::vector<PromptPiece> take() { return std::move(pieces_); }

 private:
  std::vector<PromptPiece> pieces_;
};

bool is_system(const ChatMessage& message) { return message.role == "system" || message.role == "developer"; }

class Gemma4Dialogue final : public Dialogue {
 public:
  explicit Gemma4Dialogue(const DialogueFormat& format) : format_(format) {}

  std::vector<PromptPiece> render(const std::vector<ChatMessage>& messages,
                                  const DialogueOptions& options) const override {
    Prompt prompt;
    prompt.markup("<bos>");
    const bool has_system = !messages.empty() && is_system(messages[0]);
    if (has_system || options.thinking) {
      prompt.markup("<|turn>system\n");
      if (options.thinking) prompt.markup(format_.newline_after_think ? "<|think|>\n" : "<|think|>");
      if (has_system) prompt.text(trim(messages[0].content));
      prompt.markup("<turn|>\n");
    }
    for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
      // A second message of the model in a row continues its turn.
      const bool continues = i > 0 && messages[i].role == "assistant" && messages[i - 1].role == "assistant";
      turn(messages[i], continues, prompt);
    }
    if (options.add_generation_prompt) {
      prompt.markup("<|turn>model\n");
      if (!options.thinking && format_.empty_channel) prompt.markup("<|channel>thought\n<channel|>");
    }
    return prompt.take();
  }

  std::vector<int32_t> stop_ids(const Tokenizer& tokenizer) const override {
    std::vector<int32_t> ids;
    const auto add = [&](std::optional<int32_t> id) {
      if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
    };
    add(tokenizer.data().eos);
    for (const std::string_view piece : {"<eos>", "<turn|>", "<|tool_response>"}) add(tokenizer.find(piece));
    return ids;
  }

  std::string_view reasoning_open() const override { return "<|channel>thought\n"; }
  std::string_view reasoning_close() const override { return kChannelClose; }

 private:
  static void turn(const ChatMessage& message, bool continues, Prompt& prompt) {
    if (message.role == "assistant") {
      if (!continues) prompt.markup("<|turn>model\n");
      prompt.text(trim(without_channels(message.content)));
    } else if (message.role == "user") {
      prompt.markup("<|turn>user\n");
      prompt.text(trim(message.content));
    } else if (is_system(message)) {
      prompt.markup("<|turn>system\n");
      prompt.text(trim(message.content));
    } else {
      fail(Error::Kind::kUsage, "message role: expected system, developer, user or assistant, got \"{}\"",
           message.role);
    }
    prompt.markup("<turn|>\n");
  }

  DialogueFormat format_;
};

// Does a newline follow <|think|> in the text that a template writes? Either as an escape in a string, or as
// a line end that the next tag does not strip.
bool writes_newline_after_think(std::string_view text) {
  for (size_t at = text.find(kThink); at != std::string_view::npos; at = text.find(kThink, at + 1)) {
    std::string_view rest = text.substr(at + kThink.size());
    if (rest.substr(0, 2) == "\\n") return true;
    if (rest.substr(0, 1) != "\n") continue;
    const std::string_view next = rest.substr(std::min(rest.size(), rest.find_first_not_of(" \t\r\n")));
    if (next.substr(0, 3) != "{%-" && next.substr(0, 3) != "{{-") return true;
  }
  return false;
}

}  // namespace

DialogueFormat format_of_template(const std::optional<std::string>& chat_template,
                                  const DialogueFormat& fallback) {
  if (!chat_template) return fallback;
  const std::string_view text = *chat_template;
  DialogueFormat format = fallback;
  if (text.find(kThink) != std::string_view::npos)
    format.newline_after_think = writes_newline_after_think(text);
  if (text.find("<|turn>") != std::string_view::npos) {
    format.empty_channel = text.find("<|channel>thought\\n<channel|>") != std::string_view::npos ||
                           text.find("<|channel>thought\n<channel|>") != std::string_view::npos;
  }
  return format;
}

std::unique_ptr<Dialogue> make_dialogue(const DialogueFormat& format) {
  return std::make_unique<Gemma4Dialogue>(format);
}

}  // namespace synod::gemma4
