// Gemma 4's turns and thinking channel.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "models/dialogue.h"

namespace synod::gemma4 {

// Where the published templates differ.
struct DialogueFormat {
  bool empty_channel = true;         // a prompt without thinking ends with an empty thought channel
  bool newline_after_think = true;   // a newline follows <|think|>
  bool newline_before_close = true;  // one precedes <channel|> where reasoning is shown again
  bool empty_channel_before_calls =
      false;  // calls of earlier turns follow an empty thought channel, without thinking

  bool operator==(const DialogueFormat&) const = default;
};

// What a checkpoint's own template (Jinja text) says: found by rendering it, else by looking for its texts;
// `fallback` without one.
DialogueFormat format_of_template(const std::optional<std::string>& chat_template,
                                  const DialogueFormat& fallback);
std::unique_ptr<Dialogue> make_dialogue(const DialogueFormat& format);

}  // namespace synod::gemma4
