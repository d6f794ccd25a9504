#include "engine/generate.h"

#include <algorithm>
#include <chrono>

namespace synod {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

GenerateResult generate(Session& session, std::span<const int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(int32_t)>& on_token,
                        const std::function<bool(int64_t)>& on_prefill) {
  const int64_t context =
      options.context_length > 0 ? options.context_length : session.model().info().context_length;
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  if (n_prompt == 0) fail(Error::Kind::kUsage, "the prompt is empty: expected at least 1 token");
  if (options.max_tokens < -1) {
    fail(Error::Kind::kUsage, "max tokens must be at least 0 (or -1 for no limit), got {}",
         options.max_tokens);
  }
  if (session.length() + n_prompt >= context) {
    fail(Error::Kind::kUsage,
         "the prompt of {} tokens does not fit in the context of {} with room for an answer; shorten it or "
         "raise "
         "--ctx-size",
         session.length() + n_prompt, context);
  }
  Sampler sampler(options.sampler);
  GenerateResult result;
  result.prompt_tokens = n_prompt;
  if (options.max_tokens == 0) {
    result.finish = FinishReason::kLength;
    return result;
  }
  const auto next_token = [&](std::span<const int32_t> ids) {
    if (options.sampler.plain_greedy()) return session.greedy(ids);
    return sampler.sample(session.logits(ids, Session::Rows::kLast));
  };

  const auto start = Clock::now();
  const int64_t chunk = std::max<int64_t>(options.prefill_chunk, 1);
  int64_t done = 0;
  for (; n_prompt - done > chunk; done += chunk) {
    session.append(prompt.subspan(static_cast<size_t>(done), static_cast<size_t>(chunk)));
    if (on_prefill && !on_prefill(done + chunk)) {
      result.finish = FinishReason::kCancelled;
      return result;
    }
  }
  int32_t token = next_token(prompt.subspan(static_cast<size_t>(done)));
  result.prompt_seconds = seconds_since(start);

  const auto decode_start = Clock::now();
  while (true) {
    result.ids.push_back(token);
    const bool stopped = std::ranges::find(options.stop_ids, token) != options.stop_ids.end();
    result.finish = FinishReason::kStop;
    if (stopped) break;
    if (!on_token(token)) {
      result.finish = FinishReason::kCancelled;
      break;
    }
    result.finish = FinishReason::kLength;
    if (static_cast<int64_t>(result.ids.size()) == options.max_tokens || session.length() + 1 >= context)
      break;
    token = next_token(std::span(&token, 1));
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace synod
