// Requests from submission to their last event: admission, ends, failures, what stays in the prefix cache.
#include <algorithm>

#include "base/log.h"
#include "engine/engine_core.h"
#include "ops/device_memory.h"
#include "text/utf8.h"

namespace synod {
namespace {

double seconds(EngineClock::duration d) { return std::chrono::duration<double>(d).count(); }

int64_t to_ns(EngineClock::time_point t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
}

template <typename... Args>
void refuse(fmt::format_string<Args...> format, Args&&... args) {
  fail(Error::Kind::kUsage, format, std::forward<Args>(args)...);
}

void check_ids(const char* what, std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) refuse("{}: token id must be 0 to {}, got {}", what, vocab_size - 1, id);
  }
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

void check_stops(const std::vector<std::string>& stops) {
  constexpr size_t kMaxStops = 64, kMaxStopBytes = 4096;
  if (stops.size() > kMaxStops) refuse("stop: at most {} strings, got {}", kMaxStops, stops.size());
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      refuse("stop: a string must have 1 to {} bytes, got {}", kMaxStopBytes, stop.size());
    }
    for (size_t i = 0; i < stop.size();) {
      const Utf8Char c = decode_utf8(stop, i);
      if (c.status != Utf8Status::kValid) refuse("stop: a string is not valid UTF-8 at byte {}", i);
      i += c.length;
    }
  }
}

void check_request(const GenerationRequest& request, const Model& model, const Tokenizer& tokenizer,
                   const EngineOptions& options) {
  constexpr int64_t kMaxTopLogprobs = 128;
  const int64_t vocab = model.info().vocab_size;
  const auto n = static_cast<int64_t>(request.prompt.size());
  if (n == 0) refuse("the prompt is empty: expected at least 1 token");
  check_ids("prompt", request.prompt, vocab);
  if (n >= options.context_length) {
    throw ContextExceeded(
        fmt::format("the prompt of {} tokens does not fit in the context of {} with room for an answer", n,
                    options.context_length),
        n, options.context_length);
  }
  if (request.n < 1 || request.n > options.max_sequences) {
    refuse("n must be 1 to {}, got {}", options.max_sequences, request.n);
  }
  if (request.max_tokens < -1)
    refuse("max_tokens must be at least 0 (or -1 for no limit), got {}", request.max_tokens);
  if (request.min_tokens < 0) refuse("min_tokens must be at least 0, got {}", request.min_tokens);
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs) {
    refuse("top_logprobs must be 0 to {}, got {}", kMaxTopLogprobs, request.top_logprobs);
  }
  if (request.deadline && request.deadline->count() <= 0) {
    refuse("deadline must be above 0 ms, got {}", request.deadline->count());
  }
  if (request.reasoning.max_tokens < -1) {
    refuse("reasoning budget must be at least 0 (or -1 for no limit), got {}", request.reasoning.max_tokens);
  }
  check_stops(request.stop);
  check_ids("stop ids", request.stop_ids, vocab);
  check_ids("reasoning markers", request.reasoning.open_ids, vocab);
  check_ids("reasoning markers", request.reasoning.close_ids, vocab);
  request.sampling.check(vocab);
  const int64_t need = model.cache_spec().bytes(n + 1);
  if (need > options.cache_bytes) {
    fail(Error::Kind::kNoMemory, "the prompt of {} tokens needs {} of cache, at most {} are allowed", n,
         human_bytes(need), human_bytes(options.cache_bytes));
  }
  static_cast<void>(tokenizer);
}

EngineCore::EngineCore(const Model& model, Backend& backend, const Tokenizer& tokenizer,
                       const EngineOptions& options)
    : model_(model),
      backend_(backend),
      options_(options),
      choice_context_{.tokenizer = &tokenizer,
                      .stop_ids = options.stop_ids,
                      .context_length = options.context_length,
                      .scratch = Sampler::make_scratch()},
      cache_(
          model.cache_spec(), [&backend](int64_t bytes) { return backend.allocate(bytes); },
          options.cache_bytes),
      index_(cache_),
      scheduler_({.max_sequences = options.max_sequences,
                  .max_queued = options.max_queued,
                  .step_tokens = std::max(options.step_tokens, options.max_sequences),
                  .prefill_quantum = std::max<int64_t>(options.prefill_quantum, 1)}),
      batch_(model, backend) {
  if (auto* memory = dynamic_cast<DeviceMemory*>(&backend)) {
    cache_.set_copy(
        [memory](std::byte* to, const std::byte* from, int64_t bytes) { memory->copy(to, from, bytes); });
  }
  cache_.set_pressure([this] { return index_.evict(); });
  if (!options.cache_dir.empty()) attach_disk();
}

EngineCore::~EngineCore() = default;

void EngineCore::emit(Request& request, EngineEvent event) {
  events_.push_back({request.sink, request.id, std::move(event)});
}

void EngineCore::emit_tokens(Request& request, TokensEvent&& tokens) {
  if (tokens.tokens.empty() && tokens.text.empty()) return;
  request.last_token = EngineClock::now();
  if (!tokens.tokens.empty() && request.first_token == EngineClock::time_point{}) {
    request.first_token = request.last_token;
  }
  totals_.generated_tokens_total += static_cast<int64_t>(tokens.tokens.size());
  emit(request, std::move(tokens));
}

void EngineCore::submit(std::unique_ptr<Submission> submission) {
  auto request = std::make_unique<Request>();
  request->id = submission->id;
  request->spec = std::move(submission->request);
  request->sink = std::make_shared<EventSink>(std::move(submission->sink));
  request->submitted = submission->submitted;
  request->usage.prompt_tokens = static_cast<int64_t>(request->spec.prompt.size());
  GenerationRequest& spec = request->spec;
  if (spec.max_tokens == 0) spec.n = 1;  // nothing is chosen, so there is one outcome
  spec.sampling.suppress.insert(spec.sampling.suppress.end(), options_.suppress.begin(),
                                options_.suppress.end());
  // A constraint ends with a stop id, so there they stay possible.
  if (spec.ignore_eos && spec.constraint == nullptr) {
    spec.sampling.suppress.insert(spec.sampling.suppress.end(), options_.stop_ids.begin(),
                                  options_.stop_ids.end());
  }
  request->open = spec.n;
  ++totals_.requests_total;
  Request& r = *(requests_[request->id] = std::move(request));
  auto run = std::make_unique<Run>();
  run->request = &r;
  try {
    run->choice = std::make_unique<Choice>(spec, choice_context_, 0);
  } catch (...) {
    ++left_queue_;
    return fail_request(r, std::current_exception());
  }
  const Scheduler::Id id = next_run_++;
  r.runs.assign(static_cast<size_t>(spec.n), 0);
  r.runs[0] = id;
  runs_[id] = std::move(run);
  const int64_t deadline = spec.deadline ? to_ns(r.submitted + *spec.deadline) : Scheduler::kNoDeadline;
  SYNOD_ASSERT(scheduler_.enqueue(id, spec.n, deadline));  // the inbox keeps the bound
}

void EngineCore::admit_all() {
  while (const std::optional<Scheduler::Id> id = scheduler_.next_admission()) {
    if (!admit(*id)) return;
  }
}

// False when it has to wait for memory.
bool EngineCore::admit(Scheduler::Id id) {
  Run& run = run_of(id);
  Request& request = *run.request;
  const auto n = static_cast<int64_t>(run.choice->ids().size());
  std::optional<SequenceId> resumed;
  if (request.spec.cache_prompt) resumed = index_.resume(run.choice->ids(), n - 1);
  const SequenceId sequence = resumed ? *resumed : cache_.create();
  const int64_t length = cache_.length(sequence);
  const int64_t more = cache_.spec().bytes(n + 1) - cache_.spec().bytes(length);
  if (scheduler_.n_running() > 0 && cache_.live_bytes() + more > options_.cache_bytes) {
    cache_.release(sequence);
    return false;
  }
  run.sequence = sequence;
  scheduler_.admit(id, n - length);
  if (request.spec.cache_prompt) ++totals_.prefix_lookups_total;
  if (resumed) ++totals_.prefix_hits_total;
  if (request.started) return true;  // preempted before
  request.started = true;
  ++left_queue_;
  run.cached_tokens = length;
  request.admitted = EngineClock::now();
  request.usage.cached_tokens = length;
  totals_.cached_tokens_total += length;
  emit(request, StartedEvent{.prompt_tokens = request.usage.prompt_tokens, .cached_tokens = length});
  return true;
}

void EngineCore::release(Run& run, bool keep_prefix) {
  if (run.sequence == kNone) return;
  if (keep_prefix && run.request->spec.cache_prompt && cache_.length(run.sequence) > 0) {
    index_.record_tail(run.sequence, run.choice->ids());
    if (disk_ != nullptr) {
      const std::span<const int32_t> ids =
          run.choice->ids().first(static_cast<size_t>(cache_.length(run.sequence)));
      const int64_t n_blocks = static_cast<int64_t>(ids.size()) / kPageTokens;
      int64_t block = 0;
      index_.visit_chain(ids, [&](const PrefixBlock& b) { disk_->store(b, ++block == n_blocks); });
    }
  }
  cache_.release(run.sequence);
  run.sequence = kNone;
}

void EngineCore::end_run(Scheduler::Id id, bool keep_prefix) {
  Run& run = run_of(id);
  release(run, keep_prefix);
  scheduler_.remove(id);
  std::vector<Scheduler::Id>& siblings = run.request->runs;
  std::ranges::replace(siblings, id, Scheduler::Id{0});
  runs_.erase(id);
}

void EngineCore::finish_choice(Scheduler::Id id) {
  Run& run = run_of(id);
  Request& request = *run.request;
  const ChoiceFinishedEvent& finish = run.choice->finish();
  request.usage.completion_tokens += run.choice->n_generated();
  request.usage.reasoning_tokens += run.choice->reasoning_tokens();
  if (run.choice->index() == 0) request.first_reason = finish.reason;
  emit(request, finish);
  end_run(id, true);
  if (--request.open == 0) finish_request(request);
}

void EngineCore::finish_request(Request& request) {
  const auto now = EngineClock::now();
  FinishedEvent event{.reason = request.first_reason, .usage = request.usage, .timings = {}};
  if (request.started) {
    const bool any = request.first_token != EngineClock::time_point{};
    event.timings.queued_seconds = seconds(request.admitted - request.submitted);
    event.timings.prompt_seconds = seconds((any ? request.first_token : now) - request.admitted);
    if (any) event.timings.decode_seconds = seconds(request.last_token - request.first_token);
    constexpr double kForget = 0.9;
    mean_request_seconds_ = kForget * mean_request_seconds_ + (1 - kForget) * seconds(now - request.admitted);
  } else {
    event.timings.queued_seconds = seconds(now - request.submitted);
    ++left_queue_;
  }
  if (request.first_reason == FinishReason::kCancelled) {
    ++totals_.cancelled_total;
  } else {
    ++totals_.finished_total;
  }
  emit(request, std::move(event));
  requests_.erase(request.id);
}

void EngineCore::fail_request(Request& request, FailedEvent::Cause cause, Error::Kind kind,
                              const std::string& message) {
  if (!request.started && !request.runs.empty()) ++left_queue_;
  for (const Scheduler::Id id : std::vector<Scheduler::Id>(request.runs)) {
    if (id == 0) continue;
    // A choice whose constraint failed to start is not there.
    if (const auto& choice = run_of(id).choice) request.usage.completion_tokens += choice->n_generated();
    end_run(id, false);
  }
  ++totals_.failed_total;
  emit(request, FailedEvent{.cause = cause, .kind = kind, .message = message, .usage = request.usage});
  requests_.erase(request.id);
}

void EngineCore::fail_request(Request& request, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    fail_request(request, FailedEvent::Cause::kError, e.kind(), e.what());
  } catch (const std::bad_alloc&) {
    fail_request(request, FailedEvent::Cause::kError, Error::Kind::kNoMemory, "out of memory");
  } catch (const std::exception& e) {
    fail_request(request, FailedEvent::Cause::kError, Error::Kind::kFailure, e.what());
  }
}

void EngineCore::cancel_request(Request& request) {
  request.first_reason = FinishReason::kCancelled;
  request.open = 0;
  for (const Scheduler::Id id : std::vector<Scheduler::Id>(request.runs)) {
    if (id == 0) continue;
    Run& run = run_of(id);
    TokensEvent rest{.choice = run.choice->index(), .text = {}, .tokens = {}};
    run.choice->end(FinishReason::kCancelled, rest);
    emit_tokens(request, std::move(rest));
    request.usage.completion_tokens += run.choice->n_generated();
    request.usage.reasoning_tokens += run.choice->reasoning_tokens();
    if (request.started) emit(request, run.choice->finish());
    end_run(id, true);
  }
  finish_request(request);
}

void EngineCore::cancel(uint64_t request) {
  const auto it = requests_.find(request);
  if (it != requests_.end()) cancel_request(*it->second);
}

void EngineCore::fail_all(FailedEvent::Cause cause, const std::string& message) {
  while (!requests_.empty()) fail_request(*requests_.begin()->second, cause, Error::Kind::kFailure, message);
}

void EngineCore::preempt(Scheduler::Id id) {
  Run& run = run_of(id);
  run.choice->drop_draft();
  release(run, true);
  scheduler_.preempt(id);
  ++totals_.preemptions_total;
}

void EngineCore::snapshot(EngineStats& stats) const {
  const int64_t refused = stats.refused_total;
  std::vector<SlotInfo> slots = std::move(stats.slots);
  slots.clear();
  stats = totals_;
  stats.refused_total = refused;
  stats.waiting = 0;
  stats.running = 0;
  for (const auto& [id, request] : requests_) ++(request->started ? stats.running : stats.waiting);
  for (const auto& [id, run] : runs_) {
    if (run->sequence == kNone) continue;
    slots.push_back({.request = run->request->id,
                     .choice = run->choice->index(),
                     .state = scheduler_.state(id) == Scheduler::State::kPrefill ? "prefill" : "decode",
                     .prompt_tokens = run->request->usage.prompt_tokens,
                     .cached_tokens = run->cached_tokens,
                     .length = cache_.length(run->sequence),
                     .generated = run->choice->n_generated()});
  }
  stats.slots = std::move(slots);
  stats.max_sequences = options_.max_sequences;
  stats.cache_bytes_used = cache_.used_bytes();
  stats.cache_bytes_limit = options_.cache_bytes;
  stats.prefix_entries = index_.entries();
  stats.evictions_total = index_.evictions();
  stats.prefill_quantum = scheduler_.limits().prefill_quantum;
  if (disk_ != nullptr) {
    stats.disk_bytes = disk_->bytes();
    stats.disk_hits_total = disk_->hits();
  }
}

}  // namespace synod
