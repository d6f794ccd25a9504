// What every API can ask for besides its prompt, as plain data, and the readers of the fields they share.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "server/fields.h"
#include "text/tokenizer.h"

namespace synod::server {

// What the text must look like.
struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema, kGrammar, kChoice };
  Kind kind = Kind::kText;
  std::string source;                // schema as JSON, or GBNF
  std::vector<std::string> choices;  // of kChoice
  std::string field;                 // where it was asked for, for messages
};

enum class ReasoningFormat {
  kSeparate,  // in a field or block of its own
  kInline,    // as the model wrote it, markers included, in the content
};

struct Parameters {
  SamplerOptions sampling;
  int64_t n = 1;
  int64_t max_tokens = -1;  // -1 = until the context is full
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  bool logprobs = false;
  int64_t top_logprobs = 0;
  bool return_tokens = false;
  bool cache_prompt = true;
  std::optional<int64_t> slot;  // where llama.cpp's clients look for the text later
  ResponseFormat format;

  bool stream = false;
  bool include_usage = false;
  bool timings_per_token = false;
  bool return_progress = false;

  std::optional<bool> thinking;   // absent = the server's default
  std::string reasoning_effort;   // "low", "medium", "high", ...; "" = not said
  int64_t reasoning_budget = -1;  // tokens
  ReasoningFormat reasoning_format = ReasoningFormat::kSeparate;
  Json template_arguments;               // object or null: chat_template_kwargs
  const Tokenizer* tokenizer = nullptr;  // for the texts of logprobs
};

// What the readers must know of the server.
struct RequestLimits {
  const Tokenizer& tokenizer;
  int64_t max_choices = 8;  // n, and slots
  SamplerOptions sampling;  // defaults
  bool thinking = false;
};

// Highest temperature of the OpenAI and Anthropic fields; the local APIs take more.
inline constexpr double kMaxTemperature = 2.0;
inline constexpr double kMaxLocalTemperature = 100.0;
inline constexpr int64_t kMaxTokensLimit = int64_t{1} << 31;

// temperature, top_p, seed, penalties, logit_bias, and the local extras: top_k ... stop_token_ids, grammar,
// reasoning. Refuses samplers that do not exist here. Leaves max_tokens, n, stop and stream to the APIs,
// whose names differ.
void read_sampling(const Fields& fields, const RequestLimits& limits, double max_temperature,
                   Parameters& out);
void read_local_extras(const Fields& fields, const RequestLimits& limits, Parameters& out);
// "stop": a string or an array of at most 16 strings.
void read_stop(const Fields& fields, std::string_view key, Parameters& out);
// "response_format" of OpenAI, "text.format" of responses: {"type": "text" | "json_object" | "json_schema",
// ...}. `is_flat`: name, schema and strict beside type instead of inside "json_schema".
void read_format(const Fields& format, bool is_flat, Parameters& out);
// Effort words of all APIs; "none" and "minimal" turn thinking off.
void set_effort(const std::string& effort, Parameters& out);
// A fresh seed when the client gave none or a negative one.
uint64_t random_seed();

}  // namespace synod::server
