// One answer of the engine for the terminal verbs: messages to a request, the request's events to channels,
// channels to the screen.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/served_model.h"
#include "engine/request.h"
#include "models/output_parser.h"

namespace synod::cli {

// The request for a reply to `messages`, with the options' limits.
GenerationRequest chat_request(const EngineBundle& bundle, const Options& options,
                               const std::vector<ChatMessage>& messages, bool thinks);

struct Answer {
  ParsedOutput output;
  std::vector<int32_t> ids;
  FinishedEvent finished;
};

struct AnswerEvents {
  std::function<void(const OutputEvent&)> output;
  std::function<void(const PrefillEvent&)> prefill;  // may be empty
};

// Runs the request until it is over; a signal cancels it. `parses`: the text is taken apart by the dialogue's
// markers; otherwise all of it is content. Throws what ended it.
Answer generate_answer(const EngineBundle& bundle, GenerationRequest request, bool parses,
                       const AnswerEvents& events);

// Content to stdout, reasoning dimmed beside it on a terminal, else to stderr, where it is no part of the
// result.
class AnswerPrinter {
 public:
  AnswerPrinter(bool is_terminal, bool shows_reasoning)
      : is_terminal_(is_terminal), shows_reasoning_(shows_reasoning) {}
  void show(const OutputEvent& event);
  void end_line();  // after an answer; leaves the terminal undimmed

 private:
  void print(const std::string& text, bool is_reasoning);

  bool is_terminal_, shows_reasoning_;
  bool in_reasoning_ = false;
  bool is_at_line_start_ = false;  // an empty answer is an empty line
};

}  // namespace synod::cli
