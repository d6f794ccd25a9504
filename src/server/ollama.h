// Ollama's API: NDJSON streams, options in an object of their own, durations in nanoseconds.
#pragma once

#include <memory>
#include <string>

#include "server/chat.h"
#include "server/openai.h"

namespace synod::server {

// POST /api/generate: a chat of one message, or with "raw" a text to continue.
struct OllamaGenerate {
  ChatRequest chat;
  TextRequest text;
  bool is_raw = false;
  bool is_empty = false;  // no prompt: asks only that the model be loaded
  const std::string& model() const { return is_raw ? text.model : chat.model; }
};
OllamaGenerate read_ollama_generate(const Json& body, const RequestLimits& limits);
std::unique_ptr<ReplyFormat> ollama_generate_format(const OllamaGenerate& request);

// The answer to a request without a prompt.
std::string ollama_loaded(const std::string& model, bool is_chat);
// "2026-01-31T12:00:00Z"
std::string iso_time(int64_t unix_seconds);

}  // namespace synod::server
