// A server with the demonstration model, in this process.
#pragma once

#include <memory>
#include <string>

#include "cpu/cpu_backend.h"
#include "engine/engine.h"
#include "models/model.h"
#include "raw_client.h"
#include "ref/ref_backend.h"
#include "server/api.h"
#include "server/engine_generator.h"
#include "server/http.h"

namespace synod::server {

class RunningServer {
 public:
  explicit RunningServer(const HttpOptions& http = any_port(), const ApiOptions& api = {},
                         const EngineOptions& engine = {}, const std::string& model = "gemma4-mini-q8_0.gguf")
      : checkpoint_(Checkpoint::open(std::string(SYNOD_SOURCE_DIR "/models/") + model)),
        model_(load_model(checkpoint_, {})),
        backend_(std::make_unique<RefBackend>(), CpuOptions{.n_threads = 2}),
        tokenizer_(load_tokenizer(checkpoint_)),
        dialogue_(model_->dialogue()),
        api_(api),
        http_(http, api_.handlers()) {
    EngineOptions options = engine;
    options.stop_ids = stop_ids(checkpoint_, tokenizer_, *dialogue_);
    engine_ = std::make_unique<Engine>(*model_, backend_, tokenizer_, options);
    generator_ = std::make_unique<EngineGenerator>(*engine_);
    ServedModel served;
    served.id = "demo";
    served.info = model_->info();
    served.context_length = engine_->options().context_length;
    served.max_choices = engine_->options().max_sequences;
    served.tokenizer = &tokenizer_;
    served.dialogue = dialogue_.get();
    served.vocabulary = Vocabulary::from_tokenizer(tokenizer_, options.stop_ids);
    api_.set_connection_counter([this] { return http_.n_connections(); });
    http_.start();
    api_.attach(std::move(served), *generator_);
  }
  ~RunningServer() {
    engine_->stop();
    api_.stop();
  }

  static HttpOptions any_port() {
    HttpOptions options;
    options.port = 0;
    return options;
  }

  uint16_t port() const { return http_.port(); }
  HttpServer& http() { return http_; }
  Api& api() { return api_; }
  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

  RawReply post(std::string_view path, const nlohmann::json& body, std::string_view headers = "") {
    return exchange(port(), post_text(path, body.dump(), headers));
  }
  RawReply get(std::string_view path, std::string_view headers = "") {
    return exchange(port(), get_text(path, headers));
  }
  // Waits until no request is in the engine; false after `seconds`.
  bool becomes_idle(double seconds = 5.0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      const EngineStats stats = engine_->stats();
      if (stats.running == 0 && stats.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  Checkpoint checkpoint_;
  std::unique_ptr<Model> model_;
  CpuBackend backend_;
  Tokenizer tokenizer_;
  std::unique_ptr<Dialogue> dialogue_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineGenerator> generator_;
  Api api_;
  HttpServer http_;
};

}  // namespace synod::server
