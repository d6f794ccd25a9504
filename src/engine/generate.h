// Prompt to continuation: chunked prefill, then one token at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "engine/session.h"

namespace synod {

struct GenerateOptions {
  SamplerOptions sampler;
  int64_t max_tokens = -1;      // -1 = until a stop id or the context is full
  int64_t context_length = 0;   // tokens, prompt included; 0 = the model's
  int64_t prefill_chunk = 512;  // tokens per forward call of the prompt
  std::vector<int32_t> stop_ids;
};

struct GenerateResult {
  std::vector<int32_t> ids;  // with the stop id, if one ended it
  FinishReason finish = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0.0;
  double decode_seconds = 0.0;  // of all tokens after the first
};

// Continues `session` by `prompt`. `on_token` returns false to cancel; `on_prefill` reports tokens done.
// Throws kUsage when the prompt does not leave room for one token.
GenerateResult generate(Session& session, std::span<const int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(int32_t)>& on_token,
                        const std::function<bool(int64_t)>& on_prefill = {});

}  // namespace synod
