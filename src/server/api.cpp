#include "server/api.h"

#include <array>
#include <fstream>

#include "base/log.h"

namespace synod::server {
namespace {

// Adds headers to every reply of a request.
class DecoratedReply final : public HttpReply {
 public:
  DecoratedReply(std::shared_ptr<HttpReply> inner, HttpHeaders headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}
  void send(HttpHead head, std::string body) override {
    inner_->send(with(std::move(head)), std::move(body));
  }
  void start(HttpHead head, std::string keepalive, std::chrono::milliseconds interval) override {
    inner_->start(with(std::move(head)), std::move(keepalive), interval);
  }
  void write(std::string text) override { inner_->write(std::move(text)); }
  void finish() override { inner_->finish(); }
  void abort() override { inner_->abort(); }
  void on_close(std::function<void()> callback) override { inner_->on_close(std::move(callback)); }

 private:
  HttpHead with(HttpHead head) const {
    head.headers.insert(head.headers.end(), headers_.begin(), headers_.end());
    return head;
  }
  std::shared_ptr<HttpReply> inner_;
  HttpHeaders headers_;
};

bool starts_with_bearer(std::string_view value) {
  static constexpr std::string_view kBearer = "bearer ";
  if (value.size() < kBearer.size()) return false;
  for (size_t i = 0; i < kBearer.size(); ++i) {
    const char c = value[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kBearer[i]) return false;
  }
  return true;
}

// Routes may end in "*": the rest of the path is a name.
bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

std::string_view without_scheme(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == std::string_view::npos ? origin : origin.substr(at + 3);
}

}  // namespace

bool equal_keys(std::string_view a, std::string_view b) {
  volatile unsigned difference = a.size() == b.size() ? 0U : 1U;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference = difference | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other));
  }
  return difference == 0;
}

std::vector<std::string> read_key_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(Error::Kind::kNotFound, "{}: the key file cannot be read", path);
  std::vector<std::string> keys;
  std::string line;
  while (std::getline(in, line)) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    keys.push_back(line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1));
  }
  if (keys.empty()) fail(Error::Kind::kUsage, "{}: expected one key per line, got none", path);
  return keys;
}

std::span<const Api::Route> Api::routes() {
  // Not destroyed at exit, where a server that is still running may ask.
  static constexpr auto kRoutes = std::to_array<Route>({
      {"GET", "/", &Api::root, true},
      {"GET", "/health", &Api::health, true},
      {"GET", "/v1/health", &Api::health, true},
      {"GET", "/livez", &Api::live, true},
      {"GET", "/ready", &Api::ready, true},
      {"GET", "/readyz", &Api::ready, true},
      {"GET", "/metrics", &Api::metrics},
      {"GET", "/props", &Api::props},
      {"GET", "/slots", &Api::slots},
      {"POST", "/slots/*", &Api::slot_action},
      {"GET", "/models", &Api::models},
      {"GET", "/v1/models", &Api::models},
      {"GET", "/v1/models/*", &Api::one_model},
      {"GET", "/lora-adapters", &Api::lora_adapters},
      {"POST", "/tokenize", &Api::tokenize},
      {"POST", "/detokenize", &Api::detokenize},
      {"POST", "/apply-template", &Api::apply_template},
      {"POST", "/v1/chat/completions", &Api::chat_completions},
      {"POST", "/chat/completions", &Api::chat_completions},
      {"POST", "/v1/chat/completions/input_tokens", &Api::count_chat},
      {"POST", "/v1/completions", &Api::completions},
      {"POST", "/completion", &Api::native_completion},
      {"POST", "/completions", &Api::native_completion},
      {"POST", "/v1/responses", &Api::responses},
      {"POST", "/v1/responses/input_tokens", &Api::count_responses},
      {"POST", "/v1/messages", &Api::messages},
      {"POST", "/v1/messages/count_tokens", &Api::count_anthropic},
      {"GET", "/api/version", &Api::ollama_version},
      {"GET", "/api/tags", &Api::ollama_tags},
      {"GET", "/api/ps", &Api::ollama_ps},
      {"POST", "/api/show", &Api::ollama_show},
      {"POST", "/api/chat", &Api::ollama_chat},
      {"POST", "/api/generate", &Api::ollama_generate},
      {"POST", "/v1/embeddings", &Api::not_supported},
      {"POST", "/embedding", &Api::not_supported},
      {"POST", "/embeddings", &Api::not_supported},
      {"POST", "/infill", &Api::not_supported},
      {"POST", "/rerank", &Api::not_supported},
      {"POST", "/v1/rerank", &Api::not_supported},
      {"POST", "/lora-adapters", &Api::not_supported},
      {"POST", "/api/embed", &Api::not_supported},
      {"POST", "/api/embeddings", &Api::not_supported},
      {"POST", "/api/pull", &Api::not_supported},
      {"POST", "/api/push", &Api::not_supported},
      {"POST", "/api/create", &Api::not_supported},
      {"POST", "/api/copy", &Api::not_supported},
      {"DELETE", "/api/delete", &Api::not_supported},
  });
  return kRoutes;
}

const Api::Route* Api::find_route(std::string_view method, std::string_view path, std::string& allowed) {
  if (method == "HEAD") method = "GET";
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const Route* found = nullptr;
  for (const Route& route : routes()) {
    if (!matches(route.path, path)) continue;
    allowed.append(allowed.empty() ? "" : ", ").append(route.method);
    if (route.method == method && found == nullptr) found = &route;
  }
  return found;
}

HttpHandlers Api::handlers() {
  HttpHandlers h;
  h.admit = [this](const HttpRequest& request) { return admit(request); };
  h.handle = [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    handle(std::move(request), std::move(reply));
  };
  h.error_body = [](int status, std::string_view message) {
    return dump(error_json(ApiError(status, std::string(message)), ErrorStyle::kOpenAi, ""));
  };
  h.log = [this](const HttpLogEntry& entry) { log(entry); };
  return h;
}

std::pair<HttpHead, std::string> Api::error_reply(const ApiError& error, const HttpRequest& request) {
  HttpHead head;
  head.status = error.status;
  if (error.retry_after_seconds > 0) {
    head.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  if (error.status == 401) head.headers.emplace_back("WWW-Authenticate", "Bearer");
  return {std::move(head), dump(error_json(error, error_style(request.path), request.id))};
}

bool Api::has_key(const HttpRequest& request) const {
  if (options_.keys.empty()) return true;
  std::string_view given = request.header("x-api-key");
  if (const std::string_view header = request.header("authorization"); starts_with_bearer(header)) {
    given = header.substr(7);
  }
  bool found = false;  // every key is compared, so that the time does not tell which one was near
  for (const std::string& key : options_.keys) found = equal_keys(key, given) || found;
  return found;
}

HttpHeaders Api::cors_headers(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || options_.cors_origins.empty()) return {};
  bool is_allowed = false;
  for (const std::string& allowed : options_.cors_origins) is_allowed |= allowed == "*" || allowed == origin;
  if (!is_allowed) return {};
  return {{"Access-Control-Allow-Origin", std::string(origin)},
          {"Vary", "Origin"},
          {"Access-Control-Expose-Headers", "x-request-id, Retry-After"}};
}

std::optional<std::pair<HttpHead, std::string>> Api::admit(const HttpRequest& request) const {
  const HttpHeaders cors = cors_headers(request);
  const auto refuse = [&](const ApiError& error) {
    auto reply = error_reply(error, request);
    reply.first.headers.insert(reply.first.headers.end(), cors.begin(), cors.end());
    return reply;
  };
  // A page of another site must not make the reader's browser use the reader's server.
  const std::string_view origin = request.header("origin");
  if (!origin.empty() && cors.empty() && without_scheme(origin) != request.header("host")) {
    return refuse(ApiError(
        403, fmt::format("origin {} is not allowed; see --cors-origin", shown(Json(std::string(origin)))), "",
        "origin_not_allowed"));
  }
  if (request.method == "OPTIONS" && !cors.empty()) {
    HttpHead head;
    head.status = 204;
    head.content_type = "";
    head.headers = cors;
    head.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    // Names that the client libraries send; x-stainless-* are many, so what is asked for is repeated.
    const std::string_view asked = request.header("access-control-request-headers");
    head.headers.emplace_back(
        "Access-Control-Allow-Headers",
        asked.empty() ? "authorization, content-type, x-api-key, anthropic-version" : std::string(asked));
    head.headers.emplace_back("Access-Control-Max-Age", "600");
    return std::pair(std::move(head), std::string());
  }
  std::string allowed;
  const Route* route = find_route(request.method, request.path, allowed);
  const bool is_open = route != nullptr && route->is_open;
  if (!is_open && !has_key(request)) {
    return refuse(ApiError(401,
                           "a valid API key is needed: \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"",
                           "", "invalid_api_key"));
  }
  if (route == nullptr) {
    if (allowed.empty()) {
      return refuse(ApiError(404, fmt::format("there is no {}", shown(Json(request.path))), "", "not_found"));
    }
    auto reply =
        refuse(ApiError(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method)));
    reply.first.headers.emplace_back("Allow", allowed);
    return reply;
  }
  if (!is_loaded_ && !is_open) {
    ApiError error(503, "Loading model", "", "503");
    error.retry_after_seconds = 2;
    return refuse(error);
  }
  return std::nullopt;
}

void Api::handle(HttpRequest request, Reply reply) {
  if (HttpHeaders cors = cors_headers(request); !cors.empty()) {
    reply = std::make_shared<DecoratedReply>(std::move(reply), std::move(cors));
  }
  std::string allowed;
  const Route* route = find_route(request.method, request.path, allowed);
  try {
    if (route == nullptr) throw ApiError(404, "not found");
    (this->*route->handle)(request, reply);
  } catch (const std::exception& error) {
    const ApiError api = as_api_error(error);
    if (api.status == 500) {
      log_line(LogLevel::kError, fmt::format("{}: unexpected: {}", request.id, error.what()));
    }
    auto [head, body] = error_reply(api, request);
    reply->send(std::move(head), std::move(body));
  }
}

void Api::log(const HttpLogEntry& entry) {
  std::string allowed;
  const Route* route = find_route(entry.method, entry.path, allowed);
  metrics_.count_http(route == nullptr ? "other" : route->path, entry.status);
  if (!options_.log_requests || log_level() < LogLevel::kInfo) return;
  // Probes every few seconds would bury the rest.
  if (route != nullptr && route->is_open && entry.status == 200 && log_level() < LogLevel::kDebug) return;
  if (!options_.log_json) {
    log_info("{} {} {} {} -> {}{} {} B in {:.1f} ms", entry.id, entry.remote, entry.method,
             shown(Json(entry.path)), entry.status, entry.is_complete ? "" : " (client left)",
             entry.bytes_out, entry.milliseconds);
    return;
  }
  const Json line = {
      {"time", unix_seconds()},   {"event", "request"},           {"id", entry.id},
      {"remote", entry.remote},   {"method", entry.method},       {"path", entry.path},
      {"status", entry.status},   {"bytes_in", entry.bytes_in},   {"bytes_out", entry.bytes_out},
      {"ms", entry.milliseconds}, {"complete", entry.is_complete}};
  const std::string text = dump(line) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace synod::server
