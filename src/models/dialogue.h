// Dialogue formats: messages to prompt text, per model family.
//
// Which format is used:
//   1. by default the family's native format, written in C++ and tested byte for byte; it reads the few texts
//      that differ between checkpoints (newlines, tool instructions) from the file's own template;
//   2. the file's own Jinja template, or one given by the user, when asked for (template_dialogue.h);
//   3. the file's template when the architecture has no native format.
// A template that does not parse or render is an error, never a silent change to another format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/output_parser.h"
#include "text/tokenizer.h"

namespace synod {

// One piece of a message's content. Types other than "text" (image, audio, video) are refused (kUsage) by
// formats of models that cannot see or hear.
struct ContentPart {
  std::string type = "text";
  std::string text;
};

// A call that the assistant made in an earlier turn.
struct ToolCall {
  std::string id;  // joins a call to its result; may be empty
  std::string name;
  std::string arguments;  // text of a JSON object, "" for none
};

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant", "tool"
  std::string content;
  std::string reasoning;                  // assistant only, without markers
  std::vector<ContentPart> parts = {};    // when not empty, this is the content and `content` is ignored
  std::vector<ToolCall> tool_calls = {};  // assistant only
  std::string tool_call_id = {};          // tool only: the call that this answers
  std::string name = {};                  // tool only: the tool, where there is no id
  bool content_is_json = false;           // tool only: `content` is text of a JSON object, meant as an object
};

struct Tool {
  std::string name;
  std::string description;
  std::string parameters;  // JSON Schema (text of an object, key order kept), "" for no parameters
};

enum class ToolChoice {
  kAuto,
  kNone,      // the tools are not shown to the model
  kRequired,  // one or more calls; enforced by constrained sampling, the prompt is that of kAuto
  kNamed,     // a call of DialogueOptions::tool_choice_name; likewise
};

struct DialogueOptions {
  bool thinking = false;
  bool add_generation_prompt = true;
  // The last message is an unfinished reply: it stays open and generation continues it. Excludes
  // add_generation_prompt's cue.
  bool continue_final_message = false;
  // "", "none", "minimal", "low", "medium", "high", "xhigh", "max". "none" means no thinking whatever
  // `thinking` says. Families without levels ignore the rest.
  std::string reasoning_effort = {};
  std::vector<Tool> tools = {};
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_name = {};
  // JSON Schema of the reply (text), shown to the model by families that were trained for it; "" for none.
  std::string response_schema = {};
  // Text of a JSON object: further variables for Jinja templates (chat_template_kwargs). Native formats read
  // "enable_thinking"/"thinking" (boolean) and "reasoning_effort" from it; they win over the fields above.
  std::string template_arguments = {};
};

// A prompt as pieces, so that what people wrote can never become a control token: only `is_markup` pieces are
// encoded with parse_special.
struct PromptPiece {
  std::string text;
  bool is_markup = false;
};

class ToolGrammar;

// Collects pieces; neighbours of one kind become one piece, so that they are tokenized as one text.
class PromptBuilder {
 public:
  void markup(std::string_view text) { add(text, true); }
  void text(std::string_view text) { add(text, false); }
  std::vector<PromptPiece> take() { return std::move(pieces_); }

 private:
  void add(std::string_view text, bool is_markup);
  std::vector<PromptPiece> pieces_;
};

class Dialogue {
 public:
  virtual ~Dialogue() = default;
  // Throws kUsage for an unknown role, content the model cannot take, tools that are not JSON, and whatever
  // else the format has no place for.
  virtual std::vector<PromptPiece> render(const std::vector<ChatMessage>& messages,
                                          const DialogueOptions& options) const = 0;
  // Ids that end a turn. Looked up by text in the tokenizer, with its eos.
  virtual std::vector<int32_t> stop_ids(const Tokenizer& tokenizer) const = 0;
  // Markers of the reasoning channel in the output: text between them is reasoning, not content.
  virtual std::string_view reasoning_open() const = 0;   // "<|channel>thought\n"
  virtual std::string_view reasoning_close() const = 0;  // "<channel|>"
  // A parser for what follows `prompt` (only its end matters: is a reasoning channel open?). The tokenizer
  // must outlive it.
  virtual std::unique_ptr<OutputParser> output_parser(const Tokenizer& tokenizer,
                                                      std::span<const int32_t> prompt,
                                                      const OutputParserOptions& options) const = 0;
  // The family's tool calls as a grammar; null where it has none.
  virtual const ToolGrammar* tool_grammar() const { return nullptr; }
};

// Ids of a prompt. `parse_all` is the opt-in that lets special tokens in messages count, as in a raw
// completion.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::vector<PromptPiece>& pieces,
                                   bool parse_all = false);
std::string join(const std::vector<PromptPiece>& pieces);

// The text of a message: its content or its parts joined by `separator`. Throws kUsage for other parts than
// text.
std::string text_of(const ChatMessage& message, std::string_view separator = "");
// The effort that the options name, "" for none. Throws kUsage for an unknown one.
std::string reasoning_effort(const DialogueOptions& options);
// Do the options ask for reasoning, all fields considered? Throws kUsage for an unknown effort or bad JSON.
bool wants_thinking(const DialogueOptions& options);
// The tools that the prompt shows: none with ToolChoice::kNone.
std::span<const Tool> shown_tools(const DialogueOptions& options);

}  // namespace synod
