// What the engine's thread does: requests, choices, cache and scheduler, one step at a time. No threads or
// locks in here; engine.cpp brings the work and takes the events.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/choice.h"
#include "engine/disk_tier.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/step_batch.h"
#include "engine/step_times.h"
#include "kv/prefix_index.h"

namespace synod {

using EngineClock = std::chrono::steady_clock;

// A request as submitted: checked, with its time.
struct Submission {
  uint64_t id = 0;
  GenerationRequest request;
  EventSink sink;
  EngineClock::time_point submitted;
};

class EngineCore {
 public:
  EngineCore(const Model& model, Backend& backend, const Tokenizer& tokenizer, const EngineOptions& options);
  ~EngineCore();

  void submit(std::unique_ptr<Submission> submission);
  void cancel(uint64_t request);
  // Everything unfinished fails.
  void fail_all(FailedEvent::Cause cause, const std::string& message);

  // Deadlines, admission, one forward call, its tokens. False when there was nothing to run.
  bool step();
  // How long the round took in which step() ran: what came in before it and went out after it included.
  void count_round(EngineClock::duration round);
  bool idle() const { return requests_.empty(); }
  int64_t n_queued() const { return scheduler_.n_queued(); }
  // Whether a step may process tokens of a prompt.
  bool has_prompts() const { return scheduler_.has_prompts(); }
  // When step() should be called though nothing arrives: the next deadline.
  std::optional<EngineClock::time_point> wake_at() const;
  // Requests that left the queue since the last call (for the bound on waiting ones), and mean seconds per
  // request.
  int64_t take_left_queue() { return std::exchange(left_queue_, 0); }
  double mean_request_seconds() const { return mean_request_seconds_; }

  // Events since the last call, in order; the caller delivers them.
  struct Delivery {
    std::shared_ptr<EventSink> sink;
    uint64_t request = 0;
    EngineEvent event;
  };
  std::vector<Delivery> take_events() { return std::exchange(events_, {}); }
  void snapshot(EngineStats& stats) const;

  int64_t save(std::span<const int32_t> ids, const std::filesystem::path& path);
  std::vector<int32_t> restore(const std::filesystem::path& path);
  void clear_cache() { index_.clear(); }
  void flush_disk();

 private:
  struct Request;
  // One running or queued choice.
  struct Run {
    Request* request = nullptr;
    std::unique_ptr<Choice> choice;
    SequenceId sequence = kNone;
    int64_t cached_tokens = 0;
  };
  struct Request {
    uint64_t id = 0;
    GenerationRequest spec;
    std::shared_ptr<EventSink> sink;
    std::vector<Scheduler::Id> runs;  // by choice; 0 when it is over
    int64_t open = 0;                 // choices that are not over
    FinishReason first_reason = FinishReason::kStop;
    bool started = false;
    Usage usage;
    EngineClock::time_point submitted, admitted, first_token, last_token;
  };
  struct Work {  // one item of the step's plan, with its room reserved
    Scheduler::Id id = 0;
    Run* run = nullptr;
    int64_t n_tokens = 0;
    int64_t n_drafted = 0;
    bool reaches_end = false;  // the last known token is among them: its row chooses the next
    int64_t first_row = 0;
  };
  static constexpr SequenceId kNone = -1;

  void emit(Request& request, EngineEvent event);
  void emit_tokens(Request& request, TokensEvent&& tokens);
  Run& run_of(Scheduler::Id id) { return *runs_.at(id); }

  // engine_requests.cpp
  void admit_all();
  bool admit(Scheduler::Id id);
  void end_run(Scheduler::Id id, bool keep_prefix);
  void finish_choice(Scheduler::Id id);
  void finish_request(Request& request);
  void fail_request(Request& request, FailedEvent::Cause cause, Error::Kind kind, const std::string& message);
  void fail_request(Request& request, const std::exception_ptr& error);
  void cancel_request(Request& request);
  void release(Run& run, bool keep_prefix);
  void preempt(Scheduler::Id id);

  // engine_step.cpp
  void plan_drafts();
  std::vector<Work> reserve_work();
  int64_t reserve(Scheduler::Id id, int64_t n_tokens, std::vector<Work>& work);
  void run_work(std::span<Work> work);
  void forward(std::span<Work> work);
  void commit(Work& work);
  int64_t sample(Work& work, TokensEvent& event);
  void split(Scheduler::Id id, int64_t row);
  uint64_t fingerprint();
  void attach_disk();

  const Model& model_;
  Backend& backend_;
  const EngineOptions& options_;
  ChoiceContext choice_context_;
  KvCache cache_;
  PrefixIndex index_;
  Scheduler scheduler_;
  StepTimes times_;
  StepBatch batch_;
  std::unique_ptr<DiskTier> disk_;
  std::optional<uint64_t> fingerprint_;

  std::map<uint64_t, std::unique_ptr<Request>> requests_;
  std::unordered_map<Scheduler::Id, std::unique_ptr<Run>> runs_;
  Scheduler::Id next_run_ = 1;
  std::vector<float> row_copy_;
  std::vector<Delivery> events_;
  int64_t left_queue_ = 0;
  double mean_request_seconds_ = 1.0;
  double forward_seconds_ = 0;  // of the step
  EngineStats totals_;
};

// Throws kUsage for a request that can never run.
void check_request(const GenerationRequest& request, const Model& model, const Tokenizer& tokenizer,
                   const EngineOptions& options);

}  // namespace synod
