// Dialogue by a Jinja template: the file's own (tokenizer.chat_template, chat_template.jinja) or the user's.
//
// What messages and tools say stays text: the template engine tracks where each byte comes from, and only
// bytes of the template itself (and the names of its special tokens) become markup.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/dialogue.h"

namespace synod {

class Checkpoint;
class Model;

// A compiled chat template.
class TemplateText {
 public:
  // Variables that are the template's own: bos_token and its like.
  using Specials = std::vector<std::pair<std::string, std::string>>;

  // Throws kBadFile with the line for what is no template.
  explicit TemplateText(const std::string& source, const std::string& source_name = "chat template");
  ~TemplateText();
  TemplateText(TemplateText&&) noexcept;

  // As Hugging Face calls templates: messages, tools, documents, add_generation_prompt, enable_thinking,
  // thinking, reasoning_effort and the members of options.template_arguments.
  std::vector<PromptPiece> pieces(const std::vector<ChatMessage>& messages, const DialogueOptions& options,
                                  const Specials& specials) const;
  std::string render(const std::vector<ChatMessage>& messages, const DialogueOptions& options,
                     const Specials& specials) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// `native`, if not null, knows the family's markers and parses its output; without one the output is all
// content.
std::unique_ptr<Dialogue> make_template_dialogue(const std::string& source, const Tokenizer& tokenizer,
                                                 std::unique_ptr<Dialogue> native);

enum class DialogueSource { kNative, kTemplate };

// The rule at the top of dialogue.h. `own_template` is the user's ("" for none: the file's). Throws kNotFound
// when a template is asked for and there is none.
std::unique_ptr<Dialogue> choose_dialogue(const Checkpoint& checkpoint, std::unique_ptr<Dialogue> native,
                                          const Tokenizer& tokenizer, DialogueSource source,
                                          const std::string& own_template);

}  // namespace synod
