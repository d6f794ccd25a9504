#include "models/template_dialogue.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "models/json_text.h"
#include "models/marked_parser.h"
#include "text/jinja/template.h"

namespace synod {
namespace {

using json = nlohmann::ordered_json;

json message_json(const ChatMessage& message, bool knows_developer) {
  json object;
  object["role"] = message.role == "developer" && !knows_developer ? "system" : message.role;
  const std::string text = text_of(message);
  const json content = message.content_is_json ? json::parse(text, nullptr, false) : json();
  if (content.is_object()) {
    object["content"] = content;
  } else {
    object["content"] = text;
  }
  if (!message.reasoning.empty()) {
    object["reasoning_content"] = message.reasoning;
    object["reasoning"] = message.reasoning;
  }
  for (const ToolCall& call : message.tool_calls) {
    json arguments = json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    if (arguments.is_discarded()) arguments = call.arguments.empty() ? json::object() : json(call.arguments);
    object["tool_calls"].push_back({{"id", call.id},
                                    {"type", "function"},
                                    {"function", {{"name", call.name}, {"arguments", arguments}}}});
  }
  if (!message.tool_call_id.empty()) object["tool_call_id"] = message.tool_call_id;
  if (!message.name.empty()) object["name"] = message.name;
  return object;
}

json tools_json(std::span<const Tool> tools) {
  if (tools.empty()) return nullptr;
  json list = json::array();
  for (const Tool& tool : tools) list.push_back(tool_object(tool));
  return list;
}

// The prompt up to the end of the last message's text: what closes the turn is left out.
void cut_after(std::vector<PromptPiece>& pieces, std::string text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.pop_back();
  for (size_t i = pieces.size(); i > 0; --i) {
    PromptPiece& piece = pieces[i - 1];
    const size_t at = piece.is_markup ? std::string::npos : piece.text.rfind(text);
    if (at == std::string::npos) continue;
    piece.text.resize(at + text.size());
    pieces.resize(i);
    return;
  }
  fail(Error::Kind::kUsage,
       "continue_final_message: the template does not print the last message as it is; it cannot be "
       "continued");
}

}  // namespace

struct TemplateText::Impl {
  jinja::Template compiled;
  bool knows_developer;
};

TemplateText::TemplateText(const std::string& source, const std::string& source_name)
    : impl_(std::make_unique<Impl>(
          Impl{jinja::Template(source, source_name), source.find("developer") != std::string::npos})) {}
TemplateText::~TemplateText() = default;
TemplateText::TemplateText(TemplateText&&) noexcept = default;

std::vector<PromptPiece> TemplateText::pieces(const std::vector<ChatMessage>& messages,
                                              const DialogueOptions& options,
                                              const Specials& specials) const {
  using jinja::Origin;
  json list = json::array();
  for (const ChatMessage& message : messages) list.push_back(message_json(message, impl_->knows_developer));
  const bool thinking = wants_thinking(options);
  const std::string effort = reasoning_effort(options);
  std::vector<jinja::Variable> variables = {
      {"messages", jinja::from_json(list, Origin::kForeign)},
      {"tools", jinja::from_json(tools_json(shown_tools(options)), Origin::kForeign)},
      {"documents", jinja::None{}},
      {"add_generation_prompt",
       jinja::Value(options.add_generation_prompt && !options.continue_final_message)},
      {"enable_thinking", jinja::Value(thinking)},
      {"thinking", jinja::Value(thinking)},
  };
  if (!effort.empty()) variables.push_back({"reasoning_effort", jinja::Text(effort, Origin::kForeign)});
  for (const auto& [name, text] : specials) variables.push_back({name, jinja::Value::markup(text)});
  if (!options.template_arguments.empty()) {
    const json arguments = parse_object(options.template_arguments, "chat_template_kwargs");
    for (const auto& [name, value] : arguments.items()) {
      variables.push_back({name, jinja::from_json(value, Origin::kForeign)});
    }
  }
  const jinja::Text text = impl_->compiled.render(variables);
  std::vector<PromptPiece> result;
  size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    result.push_back({text.bytes().substr(begin, run.end - begin), run.origin == Origin::kMarkup});
    begin = run.end;
  }
  if (options.continue_final_message && !messages.empty()) cut_after(result, text_of(messages.back()));
  return result;
}

std::string TemplateText::render(const std::vector<ChatMessage>& messages, const DialogueOptions& options,
                                 const Specials& specials) const {
  return join(pieces(messages, options, specials));
}

namespace {

// Output of a model whose markers are not known.
class PlainOutputParser final : public MarkedParser {
 public:
  PlainOutputParser(const Tokenizer& tokenizer, const OutputParserOptions& options)
      : MarkedParser(tokenizer, {}, options) {}

 private:
  void consume(unsigned char byte) override {
    const char c = static_cast<char>(byte);
    content(std::string_view(&c, 1));
  }
  void end(bool) override {}
};

class TemplateDialogue final : public Dialogue {
 public:
  TemplateDialogue(const std::string& source, const Tokenizer& tokenizer, std::unique_ptr<Dialogue> native)
      : template_(source), native_(std::move(native)) {
    const TokenizerData& data = tokenizer.data();
    for (const auto& [name, id] : {std::pair{"bos_token", data.bos},
                                   {"eos_token", data.eos},
                                   {"unk_token", data.unk},
                                   {"pad_token", data.pad}}) {
      if (id) specials_.emplace_back(name, std::string(tokenizer.bytes_of(*id)));
    }
  }

  std::vector<PromptPiece> render(const std::vector<ChatMessage>& messages,
                                  const DialogueOptions& options) const override {
    return template_.pieces(messages, options, specials_);
  }

  std::vector<int32_t> stop_ids(const Tokenizer& tokenizer) const override {
    if (native_ != nullptr) return native_->stop_ids(tokenizer);
    const auto eos = tokenizer.data().eos;
    return eos ? std::vector<int32_t>{*eos} : std::vector<int32_t>();
  }

  std::string_view reasoning_open() const override {
    return native_ != nullptr ? native_->reasoning_open() : "";
  }
  std::string_view reasoning_close() const override {
    return native_ != nullptr ? native_->reasoning_close() : "";
  }

  // The family's parser reads what the model writes, so calls are demanded in the family's notation too.
  const ToolGrammar* tool_grammar() const override {
    return native_ != nullptr ? native_->tool_grammar() : nullptr;
  }

  std::unique_ptr<OutputParser> output_parser(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                              const OutputParserOptions& options) const override {
    if (native_ != nullptr) return native_->output_parser(tokenizer, prompt, options);
    return std::make_unique<PlainOutputParser>(tokenizer, options);
  }

 private:
  TemplateText template_;
  TemplateText::Specials specials_;
  std::unique_ptr<Dialogue> native_;
};

}  // namespace

std::unique_ptr<Dialogue> make_template_dialogue(const std::string& source, const Tokenizer& tokenizer,
                                                 std::unique_ptr<Dialogue> native) {
  return std::make_unique<TemplateDialogue>(source, tokenizer, std::move(native));
}

std::unique_ptr<Dialogue> choose_dialogue(const Checkpoint& checkpoint, std::unique_ptr<Dialogue> native,
                                          const Tokenizer& tokenizer, DialogueSource source,
                                          const std::string& own_template) {
  if (!own_template.empty()) return make_template_dialogue(own_template, tokenizer, std::move(native));
  if (source == DialogueSource::kNative && native != nullptr) return native;
  const auto stored = checkpoint.chat_template();
  if (!stored) {
    fail(Error::Kind::kNotFound,
         "{}: there is no chat template in this model's files; give one with --chat-template",
         checkpoint.path().string());
  }
  return make_template_dialogue(*stored, tokenizer, std::move(native));
}

}  // namespace synod
