#include "server/api_error.h"

#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/request.h"

namespace synod::server {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_exceeded";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

ApiError as_api_error(const std::exception& error) {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) return *api;
  if (const auto* full = dynamic_cast<const QueueFull*>(&error)) {
    ApiError result(429, full->what(), "", "rate_limit_exceeded");
    result.retry_after_seconds = full->retry_after().count();
    return result;
  }
  if (dynamic_cast<const Draining*>(&error) != nullptr) {
    ApiError result(503, "the server is shutting down", "", "unavailable");
    result.retry_after_seconds = 5;
    return result;
  }
  if (const auto* exceeded = dynamic_cast<const ContextExceeded*>(&error)) {
    ApiError result(400, exceeded->what(), "messages", "context_length_exceeded");
    result.n_prompt_tokens = exceeded->n_prompt_tokens();
    result.n_context = exceeded->n_ctx();
    return result;
  }
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    switch (own->kind()) {
      case Error::Kind::kUsage:
        return {400, own->what()};
      case Error::Kind::kNotFound:
        return {404, own->what()};
      case Error::Kind::kNoMemory:
        return {503, own->what()};
      default:
        return {500, own->what()};
    }
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return {503, "out of memory"};
  return {500, "internal error; the log has the details"};
}

nlohmann::ordered_json error_json(const ApiError& error, ErrorStyle style, std::string_view request_id) {
  using json = nlohmann::ordered_json;
  if (style == ErrorStyle::kOllama) return {{"error", error.what()}};
  if (style == ErrorStyle::kAnthropic) {
    return {{"type", "error"},
            {"error", {{"type", anthropic_type(error.status)}, {"message", error.what()}}},
            {"request_id", request_id}};
  }
  json inner = {{"message", error.what()},
                {"type", openai_type(error.status)},
                {"param", error.param.empty() ? json() : json(error.param)},
                {"code", error.code.empty() ? json() : json(error.code)}};
  if (error.n_context > 0) {
    inner["n_prompt_tokens"] = error.n_prompt_tokens;
    inner["n_ctx"] = error.n_context;
  }
  return {{"error", std::move(inner)}};
}

ErrorStyle error_style(std::string_view path) {
  if (path.starts_with("/v1/messages")) return ErrorStyle::kAnthropic;
  if (path.starts_with("/api/")) return ErrorStyle::kOllama;
  return ErrorStyle::kOpenAi;
}

}  // namespace synod::server
