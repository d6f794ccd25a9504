// The engine: many requests on one model and one backend, one thread that repeats
//
//   plan (Scheduler) -> forward (one ragged batch) -> sample -> commit
//
// and everything else waiting for it. The decisions:
//
// - One thread owns model, backend, cache and scheduler; others only put commands into an inbox and hear
// events
//   through sinks. No lock is held while the model runs, so submit() and cancel() return at once.
// - A step's tokens are bounded, so that a long prompt never stalls running streams: every decoding stream
// gets
//   its row in every step, prompts share what is left of a quantum derived from measured speed
//   (EngineOptions::max_gap).
// - The text of a request depends on the request alone: logits do not depend on the batch (Backend's
// promise),
//   the random number of a token depends on seed, choice and position, drafts are accepted only where the
//   sampler would have chosen the same token.
// - Failure is local. A step that throws commits nothing; its sequences are then run one by one, and the ones
//   that throw again fail.
// - Memory is pages. When they run out, cached prefixes go first (least recently used), then the youngest
//   running request gives its pages back and is recomputed later (preemption): its text continues where it
//   was.
//
// A second shape was a thread per request on a shared step barrier; the state machine per request reads
// nicer, but cancellation, deadlines and fairness then live in many threads, and a lone token of 0.5 ms is
// cheaper than waking one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "models/model.h"
#include "ops/backend.h"
#include "text/tokenizer.h"

namespace synod {

struct EngineOptions {
  int64_t context_length = 0;              // tokens per sequence, prompt included; 0 = the model's
  int64_t max_sequences = 32;              // that run at once (`-np`); a request of n choices takes n
  int64_t max_queued = 256;                // requests waiting; more are refused with QueueFull
  int64_t step_tokens = 512;               // most tokens of a forward call
  std::chrono::milliseconds max_gap{200};  // aimed-at longest step while streams are decoding
  int64_t prefill_quantum = 0;             // prompt tokens of such a step; 0 = from measured speed
  // Pages of all sequences and cached prefixes; 0 = what one full context needs, at least 256 MiB.
  int64_t cache_bytes = 0;
  std::vector<int32_t> stop_ids;  // end of turn and end of text (models/model.h stop_ids)
  std::vector<int32_t> suppress;  // never chosen (models/model.h suppressed_ids)
  int64_t max_draft = 6;          // tokens per n-gram draft, at most 8; 0 = no speculation
  bool draft_always = false;      // even where it does not pay (tests, measurements)
  // Disk tier of the prefix cache: prefixes survive a restart. Empty = none.
  std::filesystem::path cache_dir;
  int64_t cache_dir_bytes = int64_t{8} << 30;
};

// One running request as /slots shows it. No text.
struct SlotInfo {
  uint64_t request = 0;
  int64_t choice = 0;
  std::string_view state;  // "prefill", "decode"
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t length = 0;  // tokens in the cache
  int64_t generated = 0;
};

// Counters never fall; the others are the state at the last step.
struct EngineStats {
  int64_t running = 0, waiting = 0, max_sequences = 0;  // requests, requests, sequences
  std::vector<SlotInfo> slots;
  int64_t requests_total = 0, finished_total = 0, failed_total = 0, cancelled_total = 0, refused_total = 0;
  int64_t prompt_tokens_total = 0;  // computed, without cached ones
  int64_t cached_tokens_total = 0;  // reused
  int64_t generated_tokens_total = 0;
  int64_t drafted_tokens_total = 0, accepted_tokens_total = 0;
  int64_t preemptions_total = 0;
  int64_t steps_total = 0;
  int64_t step_sequences_total = 0;  // sum over steps: busy sequences per step = this / steps_total
  double prompt_seconds_total = 0.0,
         decode_seconds_total = 0.0;  // time of steps with / without prompt tokens
  double forward_seconds_total = 0.0,
         overhead_seconds_total = 0.0;  // in the model / everything else of a step
  int64_t cache_bytes_used = 0, cache_bytes_limit = 0;
  int64_t prefix_entries = 0, prefix_hits_total = 0, prefix_lookups_total = 0, evictions_total = 0;
  int64_t disk_bytes = 0, disk_hits_total = 0;
  int64_t prefill_quantum = 0;  // tokens, as chosen now
  bool draining = false;
};

class Engine;
class EngineInbox;

// A submitted request. Copies refer to the same one; none of them keeps it alive or cancels it when
// destroyed.
class GenerationHandle {
 public:
  GenerationHandle() = default;
  uint64_t id() const { return id_; }
  // Takes effect before the next step, whatever the stage. Any thread; harmless when it is over. The sink
  // gets FinishedEvent with kCancelled.
  void cancel() const;

 private:
  friend class Engine;
  std::weak_ptr<EngineInbox> inbox_;
  uint64_t id_ = 0;
};

class Engine {
 public:
  // Everything given must outlive the engine; nobody else may use `backend` meanwhile. Starts the thread.
  Engine(const Model& model, Backend& backend, const Tokenizer& tokenizer, EngineOptions options = {});
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread. Throws kUsage (names the field, its range and what came), QueueFull, Draining; then the sink
  // is never called. `submit` itself never runs the model.
  GenerationHandle submit(GenerationRequest request, EventSink sink);

  // The same, waiting for the end: events other than the last go to `on_event` (may be empty). For tests and
  // single-user programs; throws what FailedEvent carries.
  struct Result {
    std::vector<std::string> texts;         // [n]
    std::vector<std::vector<int32_t>> ids;  // [n], stop ids included
    FinishedEvent finished;
  };
  Result generate(GenerationRequest request, const std::function<void(const EngineEvent&)>& on_event = {});

  EngineStats stats() const;  // any thread, at once
  const Model& model() const;
  const EngineOptions& options() const;  // zeros replaced by what was chosen

  // Refuses new requests, lets running and queued ones finish; returns true when all are over. On a timeout
  // the rest fail with kDrained.
  bool drain(std::chrono::milliseconds timeout);
  // Ends everything now: unfinished requests fail with kDrained. Writes the disk tier. Idempotent.
  void stop();

  // Conversation files. save: the longest state of `ids` that is still in memory; returns its length in
  // tokens (0 = nothing was there and no file was written). restore: brings it back to the prefix cache, so
  // that the next prompt with that beginning starts there; returns the ids. Throws kNotFound, kBadFile
  // (damaged or of another model), kFailure. Both wait for the engine's thread.
  int64_t save(std::vector<int32_t> ids, const std::filesystem::path& path);
  std::vector<int32_t> restore(const std::filesystem::path& path);
  // Forgets all cached prefixes in memory (not on disk).
  void clear_cache();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A sink that keeps events until another thread takes them. Unbounded, but a request sends at most one event
// per token.
class EventQueue {
 public:
  EventSink sink();  // may outlive the queue
  // Waits for the next event; nullopt after the last one was taken, or when `timeout` passed.
  std::optional<EngineEvent> pop(std::optional<std::chrono::milliseconds> timeout = {});

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable ready;
    std::deque<EngineEvent> events;
    bool last_taken = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace synod
