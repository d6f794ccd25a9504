// The fixed sentences of DeepSeek-V4's prompts. They differ between checkpoints and are part of what a model
// was trained on, so they are read from the checkpoint: from its encoding/*.py, or by rendering its chat
// template. Without either, sentences of our own say the same.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "formats/checkpoint.h"

namespace synod::deepseek4 {

struct PromptTexts {
  // Around the tools' schemas, which stand one per line; the first after a system text, the second without
  // one.
  std::string tools_before;
  std::string tools_before_alone;
  std::string tools_between = "\n";
  std::string tools_after;
  bool whole_tools = false;  // schemas as {"type": "function", "function": {...}}, else the inner object
  // Between the system text and the JSON Schema of the reply.
  std::string response_before;
  // By reasoning effort: what follows the start mark.
  std::map<std::string, std::string> efforts;
};

PromptTexts default_texts();
PromptTexts texts_of(const Checkpoint& checkpoint);
// Empty when the template cannot be rendered or shows no tools.
std::optional<PromptTexts> texts_of_template(const std::string& chat_template);
// Reads the string constants of the published encoder. Empty when they are not there.
std::optional<PromptTexts> texts_of_encoder(const std::string& python);

}  // namespace synod::deepseek4
