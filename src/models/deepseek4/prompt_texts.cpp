#include "models/deepseek4/prompt_texts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "models/json_text.h"
#include "models/template_dialogue.h"

namespace synod::deepseek4 {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStart = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr size_t kMaxEncoderBytes = 1 << 20;

constexpr std::string_view kToolsBefore =
    R"(## Tools

These tools are at your disposal. To use them, write a block of this form:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

With `string="true"` a value is text, written as it is. With `string="false"` it is JSON: a number, a boolean, an array or an object.

When you reason, between <think> and </think>, finish before you call a tool or answer. When you do not, call or answer right after </think>.

### Available Tool Schemas

)";
constexpr std::string_view kToolsAfter =
    "\n\nCall only these tools, with parameters that follow their schemas.\n";
constexpr std::string_view kResponseBefore =
    "## Response Format:\n\nReply with JSON that follows this schema and nothing else:\n";
constexpr std::string_view kMaxEffort =
    "Reasoning effort: as high as it can be. Take the problem apart completely, follow every step to its "
    "end, and "
    "test each conclusion against cases that could prove it wrong before you answer.\n\n";

// Python string literals after `name =`: one, or several side by side in parentheses.
std::optional<std::string> python_string(std::string_view source, std::string_view name) {
  size_t at = 0;
  while (true) {
    at = source.find(name, at);
    if (at == std::string_view::npos) return std::nullopt;
    const bool at_line_start = at == 0 || source[at - 1] == '\n';
    at += name.size();
    if (!at_line_start) continue;
    const size_t line = std::min(source.find('\n', at), source.size());
    const size_t equals = source.substr(at, line - at).find('=');
    if (equals == std::string_view::npos) continue;
    at += equals + 1;
    break;
  }
  std::string text;
  bool any = false;
  while (at < source.size()) {
    const char c = source[at];
    if (c == ' ' || c == '(' || c == '\\' || (c == '\n' && (!any || source.substr(at + 1, 1) == " "))) {
      ++at;
      continue;
    }
    if (c != '"' && c != '\'') break;
    const std::string quote(source.substr(at, 3) == std::string(3, c) ? 3 : 1, c);
    at += quote.size();
    while (at < source.size() && source.substr(at, quote.size()) != quote) {
      if (source[at] == '\\' && at + 1 < source.size()) {
        const char escape = source[++at];
        text += escape == 'n' ? '\n' : escape == 't' ? '\t' : escape;
        ++at;
      } else {
        text += source[at++];
      }
    }
    at += quote.size();
    any = true;
  }
  if (!any) return std::nullopt;
  return text;
}

// str.format with the encoder's names.
std::string formatted(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames = {{
      {"{dsml_token}", "｜DSML｜"},
      {"{tc_block_name}", "tool_calls"},
      {"{thinking_start_token}", "<think>"},
      {"{thinking_end_token}", "</think>"},
      {"{{", "{"},
      {"}}", "}"},
  }};
  for (const auto& [name, value] : kNames) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + value.size())) {
      text.replace(at, name.size(), value);
    }
  }
  return text;
}

std::optional<std::string> encoder_source(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder / "encoding", error)) {
    if (entry.path().extension() == ".py" && entry.path().stem().string().starts_with("encoding")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    if (fs::file_size(file, error) <= kMaxEncoderBytes && !error) return read_text_file(file);
  }
  return std::nullopt;
}

// What the template writes between two texts of a conversation.
std::string between(const std::string& text, std::string_view before, std::string_view after) {
  const size_t begin = text.find(before);
  if (begin == std::string::npos) return "";
  const size_t end = text.find(after, begin + before.size());
  return end == std::string::npos ? "" : text.substr(begin + before.size(), end - begin - before.size());
}

}  // namespace

PromptTexts default_texts() {
  PromptTexts texts;
  texts.tools_before = "\n\n" + std::string(kToolsBefore);
  texts.tools_before_alone = texts.tools_before;
  texts.tools_after = kToolsAfter;
  texts.response_before = "\n\n" + std::string(kResponseBefore);
  texts.efforts["max"] = kMaxEffort;
  return texts;
}

std::optional<PromptTexts> texts_of_encoder(const std::string& python) {
  const auto tools = python_string(python, "TOOLS_TEMPLATE");
  if (!tools) return std::nullopt;
  constexpr std::string_view kSchemas = "{tool_schemas}";
  const size_t at = tools->find(kSchemas);
  if (at == std::string::npos) return std::nullopt;
  PromptTexts texts = default_texts();
  texts.tools_before = "\n\n" + formatted(tools->substr(0, at));
  texts.tools_before_alone = texts.tools_before;
  texts.tools_after = formatted(tools->substr(at + kSchemas.size()));
  if (const auto response = python_string(python, "response_format_template")) {
    texts.response_before = "\n\n" + formatted(response->substr(0, response->find("{schema}")));
  }
  for (const auto& [effort, name] :
       {std::pair{"max", "REASONING_EFFORT_MAX"}, {"high", "REASONING_EFFORT_HIGH"}}) {
    if (const auto text = python_string(python, name)) texts.efforts[effort] = *text;
  }
  return texts;
}

std::optional<PromptTexts> texts_of_template(const std::string& chat_template) {
  // Texts that no template contains mark the places.
  const ChatMessage system{.role = "system", .content = "[[SYSTEM]]"};
  const ChatMessage user{.role = "user", .content = "[[USER]]"};
  const Tool first{"first_tool", "one", R"({"type":"object","properties":{}})"};
  const Tool second{"second_tool", "two", R"({"type":"object","properties":{}})"};
  const TemplateText::Specials specials = {{"bos_token", std::string(kStart)}};
  PromptTexts texts = default_texts();
  try {
    const TemplateText source(chat_template);
    const DialogueOptions with_tools{.tools = {first, second}};
    const std::string rendered = source.render({system, user}, with_tools, specials);
    const std::string section = between(rendered, system.content, kUser);
    const std::string alone = between(source.render({user}, with_tools, specials), kStart, kUser);
    for (const bool whole : {true, false}) {
      const auto shown = [&](const Tool& tool) {
        const nlohmann::ordered_json object = tool_object(tool);
        return python_json(whole ? object : object.at("function"));
      };
      const std::string one = shown(first);
      const std::string two = shown(second);
      const size_t at = section.find(one);
      const size_t next = section.find(two);
      const size_t alone_at = alone.find(one);
      if (at == std::string::npos || next == std::string::npos || next < at + one.size() ||
          alone_at == std::string::npos) {
        continue;
      }
      texts.whole_tools = whole;
      texts.tools_before = section.substr(0, at);
      texts.tools_before_alone = alone.substr(0, alone_at);
      texts.tools_between = section.substr(at + one.size(), next - at - one.size());
      texts.tools_after = section.substr(next + two.size());
      for (const char* effort : {"low", "medium", "high", "max"}) {
        const DialogueOptions options{.thinking = true, .reasoning_effort = effort};
        const std::string text =
            between(source.render({system, user}, options, specials), kStart, system.content);
        texts.efforts[effort] = text;
      }
      return texts;
    }
  } catch (const Error&) {  // a template for other conversations; ours need not fit it
  }
  return std::nullopt;
}

PromptTexts texts_of(const Checkpoint& checkpoint) {
  if (checkpoint.container() == Checkpoint::Container::kSafetensors) {
    std::error_code error;
    const fs::path& path = checkpoint.path();
    const fs::path folder = fs::is_directory(path, error) ? path : path.parent_path();
    if (const auto source = encoder_source(folder)) {
      if (auto texts = texts_of_encoder(*source)) return *texts;
    }
  }
  if (const auto text = checkpoint.chat_template()) {
    if (auto texts = texts_of_template(*text)) return *texts;
  }
  return default_texts();
}

}  // namespace synod::deepseek4
