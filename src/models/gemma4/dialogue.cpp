#include "models/gemma4/dialogue.h"

#include <algorithm>

#include "base/error.h"
#include "models/gemma4/output_parser.h"
#include "models/gemma4/tool_grammar.h"
#include "models/gemma4/tool_syntax.h"
#include "models/template_dialogue.h"
#include "text/jinja/text.h"
#include "text/utf8.h"

namespace synod::gemma4 {
namespace {

constexpr std::string_view kChannelOpen = "<|channel>";
constexpr std::string_view kChannelClose = "<channel|>";
constexpr std::string_view kThink = "<|think|>";

std::string trim(const std::string& whole) {
  const std::string_view text = whole;
  size_t begin = text.size();
  size_t end = 0;  // behind the last character that is no space
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const size_t next = at + c.length;
    if (c.status != Utf8Status::kValid || !jinja::is_space(c.value)) {
      begin = std::min(begin, at);
      end = next;
    }
    at = next;
  }
  return begin < end ? whole.substr(begin, end - begin) : std::string();
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

bool is_system(const ChatMessage& message) { return message.role == "system" || message.role == "developer"; }

// Which messages the rendering of one turn looks at.
struct Conversation {
  const std::vector<ChatMessage>& messages;
  size_t last_user;  // messages.size() when there is none

  explicit Conversation(const std::vector<ChatMessage>& all) : messages(all), last_user(all.size()) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].role == "user") last_user = i;
    }
  }
  bool after_last_user(size_t i) const { return last_user == messages.size() || i > last_user; }
};

// The name of the tool that a result answers: of the call with its id, else its own.
std::string_view tool_name(const ChatMessage& result, const std::vector<ToolCall>& calls) {
  for (const ToolCall& call : calls) {
    if (!result.tool_call_id.empty() && call.id == result.tool_call_id) return call.name;
  }
  return result.name.empty() ? std::string_view("unknown") : std::string_view(result.name);
}

class Gemma4Dialogue final : public Dialogue, public ToolGrammar {
 public:
  explicit Gemma4Dialogue(const DialogueFormat& format) : format_(format) {}

  std::vector<PromptPiece> render(const std::vector<ChatMessage>& messages,
                                  const DialogueOptions& options) const override {
    PromptBuilder prompt;
    const bool thinking = wants_thinking(options);
    const std::span<const Tool> tools = shown_tools(options);
    prompt.markup("<bos>");
    const bool has_system = !messages.empty() && is_system(messages[0]);
    if (has_system || thinking || !tools.empty()) {
      prompt.markup("<|turn>system\n");
      if (thinking) prompt.markup(format_.newline_after_think ? "<|think|>\n" : "<|think|>");
      if (has_system) prompt.text(trim(text_of(messages[0])));
      for (const Tool& tool : tools) {
        prompt.markup("<|tool>");
        write_declaration(tool, prompt);
        prompt.markup("<tool|>");
      }
      prompt.markup("<turn|>\n");
    }
    const Conversation conversation(messages);
    bool turn_open = false;
    for (size_t i = has_system ? 1 : 0; i < messages.size();) {
      turn_open = turn(conversation, i, thinking, options.continue_final_message, prompt);
    }
    if (options.add_generation_prompt && !options.continue_final_message && !turn_open) {
      prompt.markup("<|turn>model\n");
      if (!thinking && format_.empty_channel) prompt.markup("<|channel>thought\n<channel|>");
    }
    return prompt.take();
  }

  Term required_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                      int64_t max_calls) const override {
    return gemma4::required_calls(builder, tokenizer, tools, max_calls);
  }
  Term optional_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                      int64_t max_calls) const override {
    return gemma4::optional_calls(builder, tokenizer, tools, max_calls);
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
  const ToolGrammar* tool_grammar() const override { return this; }

  std::unique_ptr<OutputParser> output_parser(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                              const OutputParserOptions& options) const override {
    return make_output_parser(tokenizer, prompt, options);
  }

 private:
  // Writes the turn that begins with message `i` and moves `i` behind it. True when the model's turn stays
  // open.
  bool turn(const Conversation& conversation, size_t& i, bool thinking, bool continue_final,
            PromptBuilder& prompt) const {
    const ChatMessage& message = conversation.messages[i];
    if (message.role == "assistant") return model_turn(conversation, i, thinking, continue_final, prompt);
    if (message.role == "tool") {
      fail(Error::Kind::kUsage,
           "message {}: a tool's result must follow the assistant message whose tool_calls it answers", i);
    }
    if (message.role != "user" && !is_system(message)) {
      fail(Error::Kind::kUsage,
           "message role: expected system, developer, user, assistant or tool, got \"{}\"", message.role);
    }
    prompt.markup(message.role == "user" ? "<|turn>user\n" : "<|turn>system\n");
    prompt.text(trim(text_of(message)));
    prompt.markup("<turn|>\n");
    ++i;
    return false;
  }

  // Reasoning, calls, the results that follow, text.
  bool model_turn(const Conversation& conversation, size_t& i, bool thinking, bool continue_final,
                  PromptBuilder& prompt) const {
    const std::vector<ChatMessage>& messages = conversation.messages;
    const ChatMessage& message = messages[i];
    const bool has_calls = !message.tool_calls.empty();
    // A message of the model that follows another (and its tools' results) continues its turn.
    const bool continues = i > 0 && (messages[i - 1].role == "assistant" || messages[i - 1].role == "tool");
    if (!continues) prompt.markup("<|turn>model\n");
    if (has_calls && !message.reasoning.empty() && conversation.after_last_user(i)) {
      prompt.markup("<|channel>thought\n");
      prompt.text(message.reasoning);
      prompt.markup(format_.newline_before_close ? "\n<channel|>" : "<channel|>");
    } else if (has_calls && !continues && !thinking && format_.empty_channel_before_calls) {
      prompt.markup("<|channel>thought\n<channel|>");
    }
    for (const ToolCall& call : message.tool_calls) {
      prompt.markup("<|tool_call>");
      write_call(call, prompt);
      prompt.markup("<tool_call|>");
    }
    const size_t first_result = ++i;
    for (; i < messages.size() && messages[i].role == "tool"; ++i) {
      prompt.markup("<|tool_response>");
      write_response(tool_name(messages[i], message.tool_calls), messages[i], prompt);
      prompt.markup("<tool_response|>");
    }
    const bool has_results = i > first_result;
    const std::string text = trim(without_channels(text_of(message)));
    prompt.text(text);
    if (has_calls && !has_results) {  // the results are still to come
      prompt.markup("<|tool_response>");
      return true;
    }
    if ((has_results && text.empty()) || (continue_final && i == messages.size())) return true;
    prompt.markup("<turn|>\n");
    return false;
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

// What the template itself writes for small conversations decides, where it can be rendered: the one format
// whose output is the same. Empty when none is, or the template asks for more than these conversations have.
std::optional<DialogueFormat> rendered_format(const std::string& chat_template, const DialogueFormat& guess) {
  const ChatMessage user{.role = "user", .content = "a"};
  ChatMessage calls{.role = "assistant", .reasoning = "r"};
  calls.tool_calls = {{"1", "f", R"({"x":"y"})"}};
  ChatMessage silent_calls = calls;
  silent_calls.reasoning.clear();
  const ChatMessage result{.role = "tool", .content = "z", .tool_call_id = "1", .name = "f"};
  const std::vector<Tool> tools = {
      {"f", "d",
       R"({"type":"object","properties":{"x":{"type":"string","description":"e"}},"required":["x"]})"}};
  const std::vector<std::pair<std::vector<ChatMessage>, DialogueOptions>> probes = {
      {{user}, {}},
      {{user}, {.thinking = true}},
      {{user, silent_calls, result}, {.tools = tools}},
      {{user, calls, result}, {.thinking = true, .tools = tools}},
  };
  std::vector<std::string> expected;
  try {
    const TemplateText source(chat_template);
    for (const auto& [messages, options] : probes)
      expected.push_back(source.render(messages, options, {{"bos_token", "<bos>"}}));
  } catch (const Error&) {
    return std::nullopt;
  }
  // Each probe decides what it shows; the guess stands for the rest.
  std::optional<DialogueFormat> best;
  size_t most = 0;
  for (int bits = 0; bits < 16; ++bits) {
    const auto flag = [&](int i, bool guessed) { return ((bits >> i) & 1) != 0 ? !guessed : guessed; };
    const DialogueFormat format{flag(0, guess.empty_channel), flag(1, guess.newline_after_think),
                                flag(2, guess.newline_before_close),
                                flag(3, guess.empty_channel_before_calls)};
    const auto native = make_dialogue(format);
    size_t equal = 0;
    for (size_t i = 0; i < probes.size(); ++i) {
      equal += join(native->render(probes[i].first, probes[i].second)) == expected[i] ? 1 : 0;
    }
    if (equal > most) {
      most = equal;
      best = format;
    }
  }
  return best;
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
  return rendered_format(*chat_template, format).value_or(format);
}

std::unique_ptr<Dialogue> make_dialogue(const DialogueFormat& format) {
  return std::make_unique<Gemma4Dialogue>(format);
}

}  // namespace synod::gemma4
