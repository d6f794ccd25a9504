// Rendering rules: system text stands bare after the start mark; a user turn ends with the assistant mark and
// an opening <think>, or with a closing </think> where there is no reasoning. Results of tools are blocks of
// a user turn. Reasoning of turns before the last question is dropped, unless the conversation has tools.
#include "models/deepseek4/dialogue.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/deepseek4/output_parser.h"
#include "models/deepseek4/tool_grammar.h"
#include "models/json_text.h"

namespace synod::deepseek4 {
namespace {

using json = nlohmann::ordered_json;

constexpr std::string_view kStart = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

// A message as the format knows it: what a user and the tools say in a row is one turn of several blocks.
struct Turn {
  struct Block {
    std::string text;
    bool is_result = false;
    std::string call_id = {};
  };
  enum class Kind { kSystem, kAsk, kInstruct, kRemind, kReply };
  Kind kind;
  std::vector<Block> blocks = {};
  const ChatMessage* message = nullptr;  // of an assistant

  bool is_question() const { return kind == Kind::kAsk || kind == Kind::kInstruct; }
};

Turn::Kind kind_of(const ChatMessage& message) {
  if (message.role == "system") return Turn::Kind::kSystem;
  if (message.role == "user" || message.role == "tool") return Turn::Kind::kAsk;
  if (message.role == "developer") return Turn::Kind::kInstruct;
  if (message.role == "latest_reminder") return Turn::Kind::kRemind;
  if (message.role == "assistant") return Turn::Kind::kReply;
  fail(Error::Kind::kUsage, "unknown role \"{}\": expected system, developer, user, assistant or tool",
       message.role);
}

// Results of tools in the order of the calls that they answer; other blocks keep their places.
void order_results(Turn& turn, const std::vector<ToolCall>& calls) {
  const auto rank = [&](const Turn::Block& block) {
    const auto found = std::find_if(calls.begin(), calls.end(), [&](const ToolCall& call) {
      return !call.id.empty() && call.id == block.call_id;
    });
    return found - calls.begin();
  };
  std::vector<Turn::Block> results;
  for (const Turn::Block& block : turn.blocks) {
    if (block.is_result) results.push_back(block);
  }
  std::stable_sort(results.begin(), results.end(),
                   [&](const Turn::Block& a, const Turn::Block& b) { return rank(a) < rank(b); });
  auto next = results.begin();
  for (Turn::Block& block : turn.blocks) {
    if (block.is_result) block = *next++;
  }
}

std::vector<Turn> turns_of(const std::vector<ChatMessage>& messages) {
  std::vector<Turn> turns;
  for (const ChatMessage& message : messages) {
    const Turn::Kind kind = kind_of(message);
    if (kind != Turn::Kind::kAsk || turns.empty() || turns.back().kind != Turn::Kind::kAsk) {
      turns.push_back({kind, {}, &message});
    }
    if (kind == Turn::Kind::kReply) continue;
    turns.back().blocks.push_back({text_of(message, "\n\n"), message.role == "tool", message.tool_call_id});
  }
  const ChatMessage* assistant = nullptr;
  for (Turn& turn : turns) {
    if (turn.kind == Turn::Kind::kReply) assistant = turn.message;
    if (turn.kind == Turn::Kind::kAsk && assistant != nullptr) order_results(turn, assistant->tool_calls);
  }
  return turns;
}

// Index of the last question; 0 when there is none.
size_t last_question(const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i > 0; --i) {
    if (turns[i - 1].is_question()) return i - 1;
  }
  return 0;
}

void write_blocks(const Turn& turn, PromptBuilder& out) {
  bool first = true;
  for (const Turn::Block& block : turn.blocks) {
    if (!first) out.markup("\n\n");
    first = false;
    if (block.is_result) out.markup("<tool_result>");
    out.text(block.text);
    if (block.is_result) out.markup("</tool_result>");
  }
}

void write_parameter(std::string_view name, bool is_string, std::string_view value, PromptBuilder& out) {
  out.markup("<｜DSML｜parameter name=\"");
  out.text(name);
  out.markup(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  out.text(value);
  out.markup("</｜DSML｜parameter>");
}

void write_call(const ToolCall& call, PromptBuilder& out) {
  out.markup("<｜DSML｜invoke name=\"");
  out.text(call.name);
  out.markup("\">\n");
  const json arguments = call.arguments.empty()
                             ? json::object()
                             : json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) {
    write_parameter("arguments", true, call.arguments, out);
  } else {
    bool first = true;
    for (const auto& [name, value] : arguments.items()) {
      if (!first) out.markup("\n");
      first = false;
      const bool is_string = value.is_string();
      write_parameter(name, is_string, is_string ? value.get<std::string>() : python_json(value), out);
    }
  }
  out.markup("\n</｜DSML｜invoke>");
}

void write_calls(const std::vector<ToolCall>& calls, PromptBuilder& out) {
  if (calls.empty()) return;
  out.markup("\n\n<｜DSML｜tool_calls>\n");
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) out.markup("\n");
    write_call(calls[i], out);
  }
  out.markup("\n</｜DSML｜tool_calls>");
}

class Deepseek4Dialogue final : public Dialogue, public ToolGrammar {
 public:
  explicit Deepseek4Dialogue(PromptTexts texts) : texts_(std::move(texts)) {}

  std::vector<PromptPiece> render(const std::vector<ChatMessage>& messages,
                                  const DialogueOptions& options) const override {
    const bool thinking = wants_thinking(options);
    const std::span<const Tool> tools = shown_tools(options);
    // With tools a turn of many steps needs the reasoning of all of them.
    const bool keeps_all = !tools.empty();
    std::vector<Turn> turns = turns_of(messages);
    if (thinking && !keeps_all) drop_answered_developers(turns);
    const size_t last = last_question(turns);
    const auto thinks = [&](size_t i) { return thinking && (keeps_all || i >= last); };

    PromptBuilder out;
    out.markup(kStart);
    if (thinking) {
      const auto effort = texts_.efforts.find(reasoning_effort(options));
      if (effort != texts_.efforts.end()) out.markup(effort->second);
    }
    // Instructions go behind the first system text, or stand for it.
    bool instructed = false;
    if (turns.empty() || turns[0].kind != Turn::Kind::kSystem) {
      write_instructions(tools, options, false, out);
      instructed = true;
    }
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      const bool is_last = i + 1 == turns.size();
      switch (turn.kind) {
        case Turn::Kind::kSystem:
          write_blocks(turn, out);
          if (!instructed) write_instructions(tools, options, true, out);
          instructed = true;
          break;
        case Turn::Kind::kRemind:
          out.markup(kReminder);
          write_blocks(turn, out);
          break;
        case Turn::Kind::kReply:
          if (thinks(i)) {
            out.text(turn.message->reasoning);
            out.markup(kEndThink);
          }
          out.text(text_of(*turn.message));
          write_calls(turn.message->tool_calls, out);
          if (!(is_last && options.continue_final_message)) out.markup(kEnd);
          break;
        case Turn::Kind::kAsk:
        case Turn::Kind::kInstruct: {
          out.markup(kUser);
          write_blocks(turn, out);
          const bool answered = !is_last && (turns[i + 1].kind == Turn::Kind::kReply ||
                                             turns[i + 1].kind == Turn::Kind::kRemind);
          const bool generates = is_last && options.add_generation_prompt && !options.continue_final_message;
          if (answered || generates) {
            out.markup(kAssistant);
            out.markup(thinks(i) ? kThink : kEndThink);
          }
        }
      }
    }
    return out.take();
  }

  Term required_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                      int64_t max_calls) const override {
    return deepseek4::required_calls(builder, tokenizer, tools, max_calls);
  }
  Term optional_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                      int64_t max_calls) const override {
    return deepseek4::optional_calls(builder, tokenizer, tools, max_calls);
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
  const ToolGrammar* tool_grammar() const override { return this; }

  std::unique_ptr<OutputParser> output_parser(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                              const OutputParserOptions& options) const override {
    return make_output_parser(tokenizer, prompt, options);
  }

 private:
  // A thinking model is not shown developer messages before the last question.
  static void drop_answered_developers(std::vector<Turn>& turns) {
    const auto last = turns.begin() + static_cast<std::ptrdiff_t>(last_question(turns));
    turns.erase(std::remove_if(turns.begin(), last,
                               [](const Turn& turn) { return turn.kind == Turn::Kind::kInstruct; }),
                last);
  }

  // The tools, then the form of the reply.
  void write_instructions(std::span<const Tool> tools, const DialogueOptions& options, bool after_system,
                          PromptBuilder& out) const {
    if (!tools.empty()) {
      out.markup(after_system ? texts_.tools_before : texts_.tools_before_alone);
      for (size_t i = 0; i < tools.size(); ++i) {
        if (i > 0) out.markup(texts_.tools_between);
        const json object = tool_object(tools[i]);
        out.text(python_json(texts_.whole_tools ? object : object.at("function")));
      }
      out.markup(texts_.tools_after);
    }
    if (!options.response_schema.empty()) {
      out.markup(texts_.response_before);
      out.text(python_json(parse_object(options.response_schema, "the schema of the response format")));
    }
  }

  PromptTexts texts_;
};

}  // namespace

std::unique_ptr<Dialogue> make_dialogue(PromptTexts texts) {
  return std::make_unique<Deepseek4Dialogue>(std::move(texts));
}

}  // namespace synod::deepseek4
