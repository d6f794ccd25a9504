// One request on its way through the engine: submits, turns the engine's events into deltas of choices, and
// writes what the API's format makes of them.
//
// The engine calls the sinks on its own thread, which must not wait for JSON. A sink therefore only stores
// the event; a task on the formatting thread takes all stored events of a run at once, so that a slow moment
// makes larger packets, not a longer queue of tasks.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "models/dialogue.h"
#include "server/completion.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/parameters.h"
#include "server/slot_book.h"
#include "server/task_queue.h"

namespace synod::server {

// The engine as the server sees it; tests may give one of their own.
class Generator {
 public:
  virtual ~Generator() = default;
  // As Engine::submit. Returns what cancels the request.
  virtual std::function<void()> submit(GenerationRequest request, EventSink sink) = 0;
  virtual EngineStats stats() const = 0;
  // As Engine::save and Engine::restore.
  virtual int64_t save(std::vector<int32_t> ids, const std::filesystem::path& path) = 0;
  virtual std::vector<int32_t> restore(const std::filesystem::path& path) = 0;
};

// Everything a run needs, prepared by the handler.
struct RunPlan {
  std::vector<GenerationRequest> generations;  // one per prompt, each of n choices
  // Takes the output apart; null for raw completions, whose text is shown as it is.
  const Dialogue* dialogue = nullptr;
  OutputParserOptions parser;
  Parameters parameters;
  std::unique_ptr<ReplyFormat> format;
  std::string id_prefix;  // of the completion's id
  std::string model;
  std::string request_id;
  ErrorStyle style = ErrorStyle::kOpenAi;
  std::chrono::milliseconds ping_interval{15'000};
  std::unique_ptr<SlotBook::Claim> slot;  // of the first choice of the first prompt; may be null
};

class GenerationRun : public std::enable_shared_from_this<GenerationRun> {
 public:
  struct Services {
    Generator& generator;
    const Tokenizer& tokenizer;
    TaskQueue& tasks;
    Metrics& metrics;
  };

  // Throws what submitting throws; then nothing was sent.
  static void launch(const Services& services, RunPlan plan, std::shared_ptr<HttpReply> reply);

  GenerationRun(const Services& services, RunPlan plan, std::shared_ptr<HttpReply> reply);

 private:
  using Clock = std::chrono::steady_clock;
  struct Stamped {
    size_t generation = 0;
    EngineEvent event;
    Clock::time_point time;
  };
  // What a choice keeps while it grows.
  struct Writer {
    std::unique_ptr<OutputParser> parser;
    std::deque<TokenInfo> held;           // tokens that may still become a stop string
    std::string held_bytes;               // of them
    std::vector<TokenInfo> unattributed;  // tokens whose text has not come out yet
    bool in_reasoning = false;            // of ReasoningFormat::kInline
    Clock::time_point last_token;
  };

  void submit();
  void cancel();
  void receive(size_t generation, EngineEvent&& event);
  void work();  // on the formatting thread
  void handle(const Stamped& stamped, std::string& out);
  void started(const StartedEvent& event, size_t generation, std::string& out);
  void tokens(const TokensEvent& event, size_t generation, Clock::time_point time, std::string& out);
  void choice_finished(const ChoiceFinishedEvent& event, size_t generation, std::string& out);
  void generation_over(const Usage& usage, const Timings& timings, Clock::time_point time, std::string& out);
  void failed(const FailedEvent& event, std::string& out);

  void push_token(size_t choice, TokenInfo token, std::string& out);
  void release_held(size_t choice, std::string& out);
  void push_to_parser(size_t choice, const TokenInfo& token, std::string& out);
  void apply(size_t choice, const std::vector<OutputEvent>& events, std::string& out);
  void add_text(size_t choice, Delta::Kind kind, std::string text, std::string& out);
  void emit(const Delta& delta, std::string& out);
  size_t first_possible_stop(std::string_view text, bool with_whole_ones) const;

  Services services_;
  RunPlan plan_;
  std::shared_ptr<HttpReply> reply_;
  Completion completion_;
  std::vector<Writer> writers_;  // by choice
  std::vector<std::function<void()>> cancels_;
  size_t n_started_ = 0, n_over_ = 0, n_choices_finished_ = 0;
  bool is_first_token_ = true;
  size_t last_choice_ = 0;  // the one that finished last
  Usage final_usage_;       // of the generations that are over
  Timings final_timings_;
  bool is_done_ = false;  // the reply is complete
  Clock::time_point arrival_ = Clock::now();

  std::mutex mutex_;  // of what follows
  std::vector<Stamped> inbox_;
  bool is_scheduled_ = true;  // a task will look at the inbox
  bool is_cancelled_ = false;
};

}  // namespace synod::server
