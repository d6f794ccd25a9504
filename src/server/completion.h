// What was generated so far, in the terms of the APIs: choices with reasoning, content and tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"

namespace synod::server {

struct CompletedCall {
  std::string id;  // ours, "call_..."
  std::string name;
  std::string arguments;  // JSON object
  bool is_error = false;  // turned out to be no call; streams have already shown it
};

struct Choice {
  std::string reasoning, content;
  std::vector<CompletedCall> calls;
  std::vector<TokenInfo> logprobs;  // tokens of the content, when asked for
  std::vector<int32_t> ids;         // all tokens, when asked for
  int64_t n_tokens = 0;
  bool is_finished = false;
  FinishReason reason = FinishReason::kStop;
  std::string stop_string;

  bool has_calls() const {
    for (const CompletedCall& call : calls) {
      if (!call.is_error) return true;
    }
    return false;
  }
};

struct Completion {
  std::string id;       // with the API's prefix
  int64_t created = 0;  // seconds since 1970
  std::string model;
  int64_t slot = -1;  // as llama.cpp's clients number them
  std::vector<Choice> choices;
  Usage usage;      // live; final with the last event
  Timings timings;  // likewise
};

// A step of one choice, for streams.
struct Delta {
  enum class Kind { kContent, kReasoning, kCallBegin, kCallArguments, kCallEnd };
  Kind kind = Kind::kContent;
  int64_t choice = 0;
  std::string text;                 // content, reasoning, arguments
  size_t call = 0;                  // index into Choice::calls
  std::vector<TokenInfo> logprobs;  // of kContent, when asked for
};

// How one API shows a completion. One object per request, used by one thread at a time.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  // Streams.
  virtual std::string content_type() const { return "text/event-stream"; }
  virtual std::string keepalive() const { return ": ping\n\n"; }
  virtual std::string begin(const Completion&) { return ""; }  // the prompt is admitted; usage has its tokens
  virtual std::string progress(const Completion&, const PrefillEvent&) { return ""; }
  virtual std::string delta(const Completion&, const Delta&) = 0;
  virtual std::string choice_end(const Completion&, int64_t choice) = 0;  // all but the last to finish
  virtual std::string end(const Completion&, int64_t last_choice) = 0;
  virtual std::string error(const ApiError& error, std::string_view request_id) = 0;
  // Without streaming.
  virtual std::string body(const Completion&) = 0;
};

// "chatcmpl-" + 24 random letters and digits.
std::string random_id(std::string_view prefix);
int64_t unix_seconds();
double tokens_per_second(int64_t tokens, double seconds);

}  // namespace synod::server
