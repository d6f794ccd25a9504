// Rendering rules: system text stands bare after the start mark; a user turn ends with the assistant mark and
// an opening <think>, or with a closing </think> where there is no reasoning. Reasoning of turns before the
// last question is dropped.
#include "models/deepseek4/dialogue.h"

#include <algorithm>

#include "base/error.h"

namespace synod::deepseek4 {
namespace {

constexpr std::string_view kStart = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

bool is_question(const ChatMessage& message) { return message.role == "user" || message.role == "developer"; }

// Consecutive user messages are one question of several paragraphs.
std::vector<ChatMessage> merged(const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> result;
  for (const ChatMessage& message : messages) {
    if (!is_question(message) && message.role != "system" && message.role != "assistant") {
      fail(Error::Kind::kUsage, "unknown role \"{}\": expected system, developer, user or assistant",
           message.role);
    }
    if (message.role == "user" && !result.empty() && result.back().role == "user") {
      result.back().content += "\n\n" + message.content;
    } else {
      result.push_back(message);
    }
  }
  return result;
}

size_t last_question(const std::vector<ChatMessage>& messages) {
  for (size_t i = messages.size(); i > 0; --i) {
    if (is_question(messages[i - 1])) return i - 1;
  }
  return 0;
}

// What a thinking model is not shown again: reasoning, and developer messages, before the last question.
std::vector<ChatMessage> without_old_reasoning(const std::vector<ChatMessage>& messages) {
  const size_t last = last_question(messages);
  std::vector<ChatMessage> result;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i < last && messages[i].role == "developer") continue;
    result.push_back(messages[i]);
    if (i < last) result.back().reasoning.clear();
  }
  return result;
}

class Prompt {
 public:
  void markup(std::string_view text) { add(text, true); }
  void plain(std::string_view text) { add(text, false); }
  std::vector<PromptPiece> take() { return std::move(pieces_); }

 private:
  void add(std::string_view text, bool is_markup) {
    if (text.empty()) return;
    if (!pieces_.empty() && pieces_.back().is_markup == is_markup) {
      pieces_.back().text += text;
    } else {
      pieces_.push_back({std::string(text), is_markup});
    }
  }
  std::vector<PromptPiece> pieces_;
};

class Deepseek4Dialogue final : public Dialogue {
 public:
  std::vector<PromptPiece> render(const std::vector<ChatMessage>& input,
                                  const DialogueOptions& options) const override {
    std::vector<ChatMessage> messages = merged(input);
    if (options.thinking) messages = without_old_reasoning(messages);
    const size_t last = last_question(messages);
    Prompt out;
    out.markup(kStart);
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const bool thinks = options.thinking && i >= last;
      if (message.role == "system") {
        out.plain(message.content);
      } else if (message.role == "assistant") {
        if (thinks) out.plain(message.reasoning), out.markup(kEndThink);
        out.plain(message.content);
        out.markup(kEnd);
      } else {
        out.markup(kUser);
        out.plain(message.content);
        const bool is_last = i + 1 == messages.size();
        if (is_last ? options.add_generation_prompt : messages[i + 1].role == "assistant") {
          out.markup(kAssistant);
          out.markup(thinks ? kThink : kEndThink);
        }
      }
    }
    return out.take();
  }

  std::vector<int32_t> stop_ids(const Tokenizer& tokenizer) const override {
    std::vector<int32_t> ids;
    if (const auto end = tokenizer.find(kEnd)) ids.push_back(*end);
    const auto eos = tokenizer.data().eos;
    if (eos && std::find(ids.begin(), ids.end(), *eos) == ids.end()) ids.push_back(*eos);
    return ids;
  }

  std::string_view reasoning_open() const override { return kThink; }
  std::string_view reasoning_close() const override { return kEndThink; }
};

}  // namespace

std::unique_ptr<Dialogue> make_dialogue() { return std::make_unique<Deepseek4Dialogue>(); }

}  // namespace synod::deepseek4
