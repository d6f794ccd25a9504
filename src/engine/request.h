// What a client asks of the engine and what it hears back: plain data, so that server, library and tests
// share it. Every field has a neutral default; a default request is greedy text until a stop id.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/constraint.h"
#include "engine/sampler.h"

namespace synod {

// Bounds the reasoning channel: after `max_tokens` inside it, the close ids are forced, one per step.
struct ReasoningOptions {
  int64_t max_tokens = -1;         // -1 = no bound
  std::vector<int32_t> open_ids;   // what opens the channel, as the model writes it; empty = no channel
  std::vector<int32_t> close_ids;  // what closes it
  bool starts_open = false;        // the prompt ends inside the channel
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least 1 token
  SamplerOptions sampling;      // `seed` of it is used as given: callers draw one when the client gave none
  int64_t n = 1;                // choices, from one prefill; choice c of a seed is the same text for every n
  int64_t max_tokens = -1;      // per choice; -1 = until a stop or the context is full; 0 = prefill only
  int64_t min_tokens = 0;       // stop ids are not chosen, stop strings do not count, before this many
  std::vector<std::string> stop;  // strings that end the text; they are not part of it. None may be empty
  std::vector<int32_t> stop_ids;  // besides EngineOptions::stop_ids
  bool ignore_eos = false;        // EngineOptions::stop_ids are never chosen (as llama.cpp does)
  bool logprobs = false;          // of the chosen tokens
  int64_t top_logprobs = 0;       // and of the most likely ones, 0 to 128
  bool keep_special = false;      // control tokens appear in the text (parsers of channels want them)
  std::shared_ptr<const ConstraintFactory> constraint;  // grammar; null = free text
  bool constrain_after_reasoning = true;  // the constraint starts where the reasoning channel ends
  ReasoningOptions reasoning;
  std::optional<std::chrono::milliseconds> deadline;  // from submission to the last token
  bool cache_prompt = true;                           // may use and fill the prefix cache
  bool progress = false;                              // send PrefillEvents
  bool speculate = true;                              // n-gram drafts may be used; never changes the text
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0F;  // natural logarithm, of the model's own distribution (before penalties, temperature)
};

struct TokenInfo {
  int32_t id = 0;
  std::string bytes;  // of this token alone, possibly a part of a UTF-8 sequence; "" where the text skips it
  float logprob = 0.0F;                    // with `logprobs`
  std::vector<TokenLogprob> top_logprobs;  // most likely first
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt: rows that were reused, not computed
  int64_t completion_tokens = 0;  // all choices, stop ids and reasoning included
  int64_t reasoning_tokens = 0;   // of the completion: inside the reasoning channel, its markers included
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // speculation
};

struct Timings {
  double queued_seconds = 0.0;
  double prompt_seconds = 0.0;  // from admission to the first token
  double decode_seconds = 0.0;  // from the first token to the last
};

enum class FinishReason { kStop, kLength, kCancelled };
std::string_view name(FinishReason reason);  // "stop", "length", "cancelled"

// The request left the queue. Always the first event of a request that was not cancelled in the queue.
struct StartedEvent {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
};

struct PrefillEvent {
  int64_t done = 0;  // prompt tokens in the cache, cached ones included
  int64_t total = 0;
};

// New tokens of a choice. `text` is whole UTF-8; what may still become a stop string is held back, so a token
// may come without its text, which follows with a later one.
struct TokensEvent {
  int64_t choice = 0;
  std::string text;
  std::vector<TokenInfo> tokens;  // empty when only held-back text is released
};

struct ChoiceFinishedEvent {
  int64_t choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::string stop_string;         // the string that matched, if one did
  std::optional<int32_t> stop_id;  // the id that ended it, if one did
  int64_t completion_tokens = 0;
};

// The last event of a request that did not fail. `reason` is that of choice 0.
struct FinishedEvent {
  FinishReason reason = FinishReason::kStop;
  Usage usage;
  Timings timings;
};

// The last event of a request that failed. What was generated before stays valid.
struct FailedEvent {
  enum class Cause {
    kDeadline,  // 408 or 504: the request's own time limit
    kDrained,   // 503: the engine was stopped before the request could finish
    kError,     // see kind: kUsage 400, kNoMemory 503, the others 500
  };
  Cause cause = Cause::kError;
  Error::Kind kind = Error::Kind::kFailure;
  std::string message;
  Usage usage;
};

// Throws kUsage for stop strings that are empty, too long, too many, or no UTF-8.
void check_stops(const std::vector<std::string>& stops);

using EngineEvent =
    std::variant<StartedEvent, PrefillEvent, TokensEvent, ChoiceFinishedEvent, FinishedEvent, FailedEvent>;

// Called on the engine's thread, events of one request in order, never after its last event. It must not
// block (post to your own loop, or use EventQueue). An exception cancels the request.
using EventSink = std::function<void(EngineEvent&&)>;

inline bool is_last(const EngineEvent& event) {
  return std::holds_alternative<FinishedEvent>(event) || std::holds_alternative<FailedEvent>(event);
}

// Submission refused because the queue is full (429).
class QueueFull : public Error {
 public:
  QueueFull(const std::string& message, std::chrono::seconds retry_after)
      : Error(Kind::kFailure, message), retry_after_(retry_after) {}
  std::chrono::seconds retry_after() const { return retry_after_; }  // at least 1

 private:
  std::chrono::seconds retry_after_;
};

// The prompt leaves no room in the context (400, context_length_exceeded).
class ContextExceeded : public Error {
 public:
  ContextExceeded(const std::string& message, int64_t n_prompt_tokens, int64_t n_ctx)
      : Error(Kind::kUsage, message), n_prompt_tokens_(n_prompt_tokens), n_ctx_(n_ctx) {}
  int64_t n_prompt_tokens() const { return n_prompt_tokens_; }
  int64_t n_ctx() const { return n_ctx_; }

 private:
  int64_t n_prompt_tokens_, n_ctx_;
};

// Submission refused because the engine drains (503).
class Draining : public Error {
 public:
  explicit Draining(const std::string& message) : Error(Kind::kFailure, message) {}
};

}  // namespace synod
