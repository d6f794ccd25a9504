// What a client did wrong, or what stopped us from answering, as the APIs report it.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace synod::server {

struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& message, std::string field = "", std::string error_code = "")
      : std::runtime_error(message),
        status(http_status),
        param(std::move(field)),
        code(std::move(error_code)) {}

  int status;                       // HTTP
  std::string param;                // the field it is about, e.g. "messages[2].content"; empty = none
  std::string code;                 // "context_length_exceeded", "model_not_found", ...; empty = none
  int64_t retry_after_seconds = 0;  // 0 = no Retry-After
  int64_t n_prompt_tokens = 0, n_context = 0;  // of context_length_exceeded
};

// 400 about one field.
template <typename... Args>
[[noreturn]] void bad_field(std::string_view field, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, fmt::format("{}: {}", field, fmt::format(format, std::forward<Args>(args)...)),
                 std::string(field));
}

// Any exception as an ApiError: Error's kinds, the engine's refusals, bad_alloc; the rest is a 500 without
// its text, which may hold what clients must not see.
ApiError as_api_error(const std::exception& error);

enum class ErrorStyle { kOpenAi, kAnthropic, kOllama };
// {"error": {"message", "type", "param", "code"}} / {"type": "error", "error": {"type", "message"},
// "request_id"} / {"error": message}
nlohmann::ordered_json error_json(const ApiError& error, ErrorStyle style, std::string_view request_id);
// By the path: /v1/messages... and /api/... have their own styles.
ErrorStyle error_style(std::string_view path);

}  // namespace synod::server
