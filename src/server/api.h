// The routes: who may call them, what they read and what they answer. Knows HTTP only through http.h and the
// engine only through Generator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/model.h"
#include "server/chat.h"
#include "server/generation_run.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openai.h"
#include "text/grammar/grammar.h"

namespace synod::server {

struct ApiOptions {
  std::vector<std::string> keys;          // empty = everyone may call
  std::vector<std::string> cors_origins;  // "*" = all; empty = pages of other origins are refused
  bool slots = true;                      // GET /slots
  std::string slot_save_path;             // folder of POST /slots/ID?action=save; "" = refused
  bool props = true;                      // GET /props
  bool metrics = true;                    // GET /metrics
  std::chrono::milliseconds ping_interval{15'000};
  std::chrono::milliseconds request_timeout{0};  // from submission to the last token; 0 = none
  bool log_json = false;
  bool log_requests = true;
  std::string version;
};

// The model that is served. What it points to outlives the server.
struct ServedModel {
  std::string id;                    // as /v1/models shows it
  std::vector<std::string> aliases;  // other names that requests may use
  std::string path;
  std::string quantization;   // of most bytes: "Q8_0"
  std::string family;         // "gemma4"
  std::string chat_template;  // the file's own, for /props and /api/show; may be empty
  int64_t file_bytes = 0, n_parameters = 0;
  int64_t created = 0;  // seconds since 1970: when it was loaded
  double load_seconds = 0.0;
  int64_t context_length = 0;  // of a sequence, in tokens
  int64_t max_choices = 1;     // n of a request
  ModelInfo info;
  const Tokenizer* tokenizer = nullptr;
  const Dialogue* dialogue = nullptr;
  std::shared_ptr<const Vocabulary> vocabulary;
  SamplerOptions sampling;        // where a request says nothing
  bool thinking = false;          // likewise
  int64_t reasoning_budget = -1;  // likewise
  std::string fusion;             // one line for /props
};

class Api {
 public:
  explicit Api(ApiOptions options);
  ~Api();

  // What the HTTP server calls. The Api outlives it.
  HttpHandlers handlers();
  // From now on the routes answer; before, all but /health say that the model is loading.
  void attach(ServedModel model, Generator& generator);
  // /ready answers 503, so that load balancers send nothing more.
  void set_draining() { is_draining_ = true; }
  void set_connection_counter(std::function<int64_t()> counter) { n_connections_ = std::move(counter); }
  // After the HTTP server and the engine have stopped.
  void stop() { tasks_.stop(); }

 private:
  using Reply = std::shared_ptr<HttpReply>;
  struct Route {
    std::string_view method;
    std::string_view path;
    void (Api::*handle)(const HttpRequest&, const Reply&);
    bool is_open = false;  // needs no key
  };
  static std::span<const Route> routes();
  static const Route* find_route(std::string_view method, std::string_view path, std::string& allowed);

  std::optional<std::pair<HttpHead, std::string>> admit(const HttpRequest& request) const;
  void handle(HttpRequest request, Reply reply);
  void log(const HttpLogEntry& entry);
  bool has_key(const HttpRequest& request) const;
  HttpHeaders cors_headers(const HttpRequest& request) const;
  static std::pair<HttpHead, std::string> error_reply(const ApiError& error, const HttpRequest& request);

  // api_info.cpp
  void health(const HttpRequest&, const Reply&);
  void ready(const HttpRequest&, const Reply&);
  void live(const HttpRequest&, const Reply&);
  void root(const HttpRequest&, const Reply&);
  void metrics(const HttpRequest&, const Reply&);
  void props(const HttpRequest&, const Reply&);
  void slots(const HttpRequest&, const Reply&);
  void slot_action(const HttpRequest&, const Reply&);
  void models(const HttpRequest&, const Reply&);
  void one_model(const HttpRequest&, const Reply&);
  void tokenize(const HttpRequest&, const Reply&);
  void detokenize(const HttpRequest&, const Reply&);
  void apply_template(const HttpRequest&, const Reply&);
  void lora_adapters(const HttpRequest&, const Reply&);
  void ollama_version(const HttpRequest&, const Reply&);
  void ollama_tags(const HttpRequest&, const Reply&);
  void ollama_ps(const HttpRequest&, const Reply&);
  void ollama_show(const HttpRequest&, const Reply&);
  void not_supported(const HttpRequest&, const Reply&);
  Json model_json() const;
  Json ollama_details() const;

  // api_generation.cpp
  void chat_completions(const HttpRequest&, const Reply&);
  void completions(const HttpRequest&, const Reply&);
  void native_completion(const HttpRequest&, const Reply&);
  void responses(const HttpRequest&, const Reply&);
  void messages(const HttpRequest&, const Reply&);
  void count_anthropic(const HttpRequest&, const Reply&);
  void count_chat(const HttpRequest&, const Reply&);
  void count_responses(const HttpRequest&, const Reply&);
  void ollama_chat(const HttpRequest&, const Reply&);
  void ollama_generate(const HttpRequest&, const Reply&);

  void check_model(std::string_view name) const;
  RequestLimits limits() const;
  DialogueOptions dialogue_options(const ChatRequest& request) const;
  std::vector<int32_t> chat_prompt(const ChatRequest& request) const;
  GenerationRequest generation(const Parameters& parameters, std::vector<int32_t> prompt) const;
  void run_chat(const HttpRequest& http, const Reply& reply, const ChatRequest& request,
                std::unique_ptr<ReplyFormat> format, std::string_view id_prefix);
  void run_text(const HttpRequest& http, const Reply& reply, TextRequest request,
                std::unique_ptr<ReplyFormat> format, std::string_view id_prefix);
  void launch(const HttpRequest& http, const Reply& reply, RunPlan plan);
  std::shared_ptr<const ConstraintFactory> constraint(const ResponseFormat& format) const;
  std::shared_ptr<const ConstraintFactory> chat_constraint(const ChatRequest& request) const;

  ApiOptions options_;
  Metrics metrics_;
  std::unique_ptr<SlotBook> slots_;  // runs in tasks_ refer to it
  TaskQueue tasks_;
  std::function<int64_t()> n_connections_;
  std::unique_ptr<ServedModel> model_;
  Generator* generator_ = nullptr;
  std::atomic<bool> is_loaded_{false};  // model_, generator_ and slots_ are set
  std::atomic<bool> is_draining_{false};

  // Compiled grammars, most recently used first: their masks are cached inside, so that the second request of
  // a schema is fast from its first token.
  class GrammarCache;
  std::unique_ptr<GrammarCache> grammars_;
};

// In a time that depends on the lengths alone.
bool equal_keys(std::string_view a, std::string_view b);
// Lines of a key file; blank lines and lines that start with # are skipped. Throws kNotFound, kUsage when it
// has none.
std::vector<std::string> read_key_file(const std::string& path);

}  // namespace synod::server
