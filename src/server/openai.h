// Pieces that the OpenAI-shaped APIs share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/dialogue.h"
#include "server/completion.h"
#include "server/parameters.h"

namespace synod::server {

bool is_json_object(std::string_view text);
ChatMessage read_openai_message(const Fields& message);
std::vector<ChatMessage> read_openai_messages(const Fields& fields);  // "messages"
void read_stream(const Fields& fields, Parameters& out);              // "stream", "stream_options"

Json usage_json(const Usage& usage);
Json timings_json(const Completion& completion);  // llama.cpp's names
// {"token", "logprob", "bytes", "top_logprobs"}, of the chat API.
Json logprob_json(const TokenInfo& token, const Tokenizer& tokenizer);
std::string sse(const Json& data);                          // "data: ...\n\n"
std::string sse(std::string_view event, const Json& data);  // "event: ...\ndata: ...\n\n"

// Prompts of the completion APIs: text or ids, continued as they are.
struct TextRequest {
  std::string model;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> texts;  // of the prompts, for echo
  bool echo = false;
  Parameters parameters;
};

// POST /v1/completions
TextRequest read_openai_completion(const Json& body, const RequestLimits& limits);
std::unique_ptr<ReplyFormat> openai_completion_format(const TextRequest& request);

// POST /completion (llama.cpp)
TextRequest read_native_completion(const Json& body, const RequestLimits& limits);
std::unique_ptr<ReplyFormat> native_completion_format(const TextRequest& request);

// POST /api/generate (Ollama) with "raw"
// The ids of a raw prompt: special tokens in it count, BOS comes first where the model has one.
std::vector<int32_t> raw_prompt_ids(const Tokenizer& tokenizer, std::string_view text);

}  // namespace synod::server
