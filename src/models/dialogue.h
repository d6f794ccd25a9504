// Dialogue formats: messages to prompt text, per model family.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace synod {

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant"
  std::string content;
  std::string reasoning;  // assistant only, without markers
};

struct DialogueOptions {
  bool thinking = false;
  bool add_generation_prompt = true;
};

// A prompt as pieces, so that what people wrote can never become a control token: only `is_markup` pieces are
// encoded with parse_special.
struct PromptPiece {
  std::string text;
  bool is_markup = false;
};

class Dialogue {
 public:
  virtual ~Dialogue() = default;
  // Throws kUsage for an unknown role.
  virtual std::vector<PromptPiece> render(const std::vector<ChatMessage>& messages,
                                          const DialogueOptions& options) const = 0;
  // Ids that end a turn. Looked up by text in the tokenizer, with its eos.
  virtual std::vector<int32_t> stop_ids(const Tokenizer& tokenizer) const = 0;
  // Markers of the reasoning channel in the output: text between them is reasoning, not content.
  virtual std::string_view reasoning_open() const = 0;   // "<|channel>thought\n"
  virtual std::string_view reasoning_close() const = 0;  // "<channel|>"
};

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::vector<PromptPiece>& pieces);
std::string join(const std::vector<PromptPiece>& pieces);

}  // namespace synod
