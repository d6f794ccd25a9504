#include "server/completion.h"

#include <chrono>
#include <random>

#include "server/openai.h"

namespace synod::server {

std::string random_id(std::string_view prefix) {
  static constexpr std::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local std::mt19937_64 random(random_seed());
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double tokens_per_second(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.reasoning_tokens},
            {"accepted_prediction_tokens", usage.accepted_tokens},
            {"rejected_prediction_tokens", usage.drafted_tokens - usage.accepted_tokens}}}};
}

Json timings_json(const Completion& completion) {
  const Usage& u = completion.usage;
  const Timings& t = completion.timings;
  const int64_t computed = u.prompt_tokens - u.cached_tokens;
  const auto ms_each = [](double seconds, int64_t n) {
    return n > 0 ? seconds * 1e3 / static_cast<double>(n) : 0.0;
  };
  return {{"cache_n", u.cached_tokens},
          {"prompt_n", computed},
          {"prompt_ms", t.prompt_seconds * 1e3},
          {"prompt_per_token_ms", ms_each(t.prompt_seconds, computed)},
          {"prompt_per_second", tokens_per_second(computed, t.prompt_seconds)},
          {"predicted_n", u.completion_tokens},
          {"predicted_ms", t.decode_seconds * 1e3},
          {"predicted_per_token_ms", ms_each(t.decode_seconds, u.completion_tokens)},
          {"predicted_per_second", tokens_per_second(u.completion_tokens, t.decode_seconds)},
          {"draft_n", u.drafted_tokens},
          {"draft_n_accepted", u.accepted_tokens}};
}

namespace {

Json token_bytes(std::string_view bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

}  // namespace

Json logprob_json(const TokenInfo& token, const Tokenizer& tokenizer) {
  Json top = Json::array();
  for (const TokenLogprob& other : token.top_logprobs) {
    const std::string bytes(tokenizer.bytes_of(other.id));
    top.push_back(
        {{"token", bytes}, {"logprob", other.logprob}, {"bytes", token_bytes(bytes)}, {"id", other.id}});
  }
  return {{"token", token.bytes},
          {"logprob", token.logprob},
          {"bytes", token_bytes(token.bytes)},
          {"id", token.id},
          {"top_logprobs", std::move(top)}};
}

std::string sse(const Json& data) { return "data: " + dump(data) + "\n\n"; }

std::string sse(std::string_view event, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", event, dump(data));
}

}  // namespace synod::server
