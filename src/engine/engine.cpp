// The threads' side of the engine: an inbox that others fill, one thread that empties it between steps, and
// delivery of events.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/engine_core.h"

namespace synod {
namespace {

constexpr int64_t kLeastCacheBytes = int64_t{256} << 20;
constexpr std::chrono::milliseconds kLongestHold{2};  // of events; far below what a reader of text notices

void check_positive(const char* what, int64_t value, int64_t least) {
  if (value < least) fail(Error::Kind::kUsage, "engine: {} must be at least {}, got {}", what, least, value);
}

EngineOptions complete(EngineOptions options, const Model& model) {
  check_positive("context length", options.context_length, 0);
  check_positive("sequences", options.max_sequences, 1);
  check_positive("queued requests", options.max_queued, 1);
  check_positive("tokens of a step", options.step_tokens, 1);
  check_positive("prefill quantum", options.prefill_quantum, 0);
  check_positive("cache bytes", options.cache_bytes, 0);
  check_positive("drafted tokens", options.max_draft, 0);
  constexpr int64_t kMostDraft = 8;  // kernels for 2 to 8 rows, and KvCache's slack
  options.max_draft = std::min(options.max_draft, kMostDraft);
  if (options.context_length == 0) options.context_length = model.info().context_length;
  if (options.cache_bytes == 0) {
    options.cache_bytes =
        std::max(model.cache_spec().bytes(options.context_length, options.step_tokens), kLeastCacheBytes);
  }
  return options;
}

}  // namespace

// What other threads may touch.
class EngineInbox {
 public:
  std::mutex mutex;
  std::condition_variable changed;  // something for the engine's thread
  std::condition_variable idle;     // for drain()
  std::vector<std::unique_ptr<Submission>> submissions;
  std::vector<uint64_t> cancellations;
  std::vector<std::function<void(EngineCore*)>> calls;  // null core: the engine has stopped
  int64_t waiting = 0;                                  // submitted and not yet admitted
  int64_t unfinished = 0;                               // submitted and without last event
  uint64_t next_id = 1;
  bool draining = false;
  bool stopping = false;
  double retry_seconds = 1.0;
  EngineStats stats;

  bool has_work() const {
    return stopping || !submissions.empty() || !cancellations.empty() || !calls.empty();
  }
};

struct Engine::Impl {
  const Model& model;
  EngineOptions options;
  const Tokenizer& tokenizer;
  std::shared_ptr<EngineInbox> inbox = std::make_shared<EngineInbox>();
  EngineCore core;
  std::vector<EngineCore::Delivery> events;  // not delivered yet, in order
  EngineClock::time_point delivered;         // when the last ones were
  std::thread thread;

  Impl(const Model& m, Backend& backend, const Tokenizer& t, EngineOptions o)
      : model(m), options(complete(std::move(o), m)), tokenizer(t), core(m, backend, t, options) {
    core.snapshot(inbox->stats);
    thread = std::thread([this] { loop(); });
  }

  void loop() {
    while (true) {
      const auto start = EngineClock::now();
      if (!take_work()) break;
      if (!events.empty() && core.has_prompts()) deliver();  // a long step may be next
      bool busy = false;
      try {
        busy = core.step();
      } catch (const std::exception& e) {  // outside any one request: all of them are in doubt
        core.fail_all(FailedEvent::Cause::kError, std::string("the engine's step failed: ") + e.what());
      }
      finish_step(busy && !core.has_prompts());
      if (busy) {
        core.count_round(EngineClock::now() - start);
      } else {
        wait();
      }
    }
    core.fail_all(FailedEvent::Cause::kDrained, "the engine was stopped");
    finish_step(false);
    try {
      core.flush_disk();
    } catch (const std::exception&) {  // a prefix less on disk
    }
    finish_step(false);
    std::vector<std::function<void(EngineCore*)>> calls;
    {
      const std::lock_guard lock(inbox->mutex);
      calls.swap(inbox->calls);
    }
    for (auto& call : calls) call(nullptr);
  }

  // Applies what came in; false when the engine is to stop.
  bool take_work() {
    std::vector<std::unique_ptr<Submission>> submissions;
    std::vector<uint64_t> cancellations;
    std::vector<std::function<void(EngineCore*)>> calls;
    bool stopping = false;
    {
      const std::lock_guard lock(inbox->mutex);
      submissions.swap(inbox->submissions);
      cancellations.swap(inbox->cancellations);
      calls.swap(inbox->calls);
      stopping = inbox->stopping;
    }
    for (auto& submission : submissions) core.submit(std::move(submission));
    for (const uint64_t id : cancellations) core.cancel(id);
    for (auto& call : calls) call(&core);
    return !stopping;
  }

  // Publishes the figures first, so that who sees a last event sees it counted; then tells the sinks. While
  // only short steps are to come, what tells of no end may wait for what the next ones bring: waking a reader
  // costs as much as the rest of a small model's step outside the model.
  void finish_step(bool may_hold) {
    const size_t n_held = events.size();
    std::ranges::move(core.take_events(), std::back_inserter(events));
    const int64_t left = core.take_left_queue();
    may_hold = may_hold && std::ranges::none_of(std::span(events).subspan(n_held),
                                                [](const auto& delivery) { return is_last(delivery.event); });
    {
      const std::lock_guard lock(inbox->mutex);
      inbox->waiting -= left;
      core.snapshot(inbox->stats);
      inbox->stats.draining = inbox->draining;
      inbox->retry_seconds = core.mean_request_seconds() * static_cast<double>(inbox->waiting + 1) /
                             static_cast<double>(options.max_sequences);
    }
    if (!may_hold || EngineClock::now() - delivered >= kLongestHold) deliver();
  }

  void deliver() {
    int64_t last = 0;
    for (auto& delivery : events) {
      last += is_last(delivery.event) ? 1 : 0;
      try {
        if (*delivery.sink) (*delivery.sink)(std::move(delivery.event));
      } catch (...) {  // its client is gone
        *delivery.sink = nullptr;
        const std::lock_guard lock(inbox->mutex);
        inbox->cancellations.push_back(delivery.request);
      }
    }
    events.clear();
    delivered = EngineClock::now();
    if (last == 0) return;
    const std::lock_guard lock(inbox->mutex);
    inbox->unfinished -= last;
    if (inbox->unfinished == 0) inbox->idle.notify_all();
  }

  void wait() {
    const auto wake = core.wake_at();
    std::unique_lock lock(inbox->mutex);
    const auto ready = [this] { return inbox->has_work(); };
    // Work that waits for memory is looked at again when something ends, which is a step; but never sleep
    // forever on it.
    constexpr std::chrono::milliseconds kPatience{20};
    if (!core.idle()) {
      const auto patience = EngineClock::now() + kPatience;
      inbox->changed.wait_until(lock, wake ? std::min(*wake, patience) : patience, ready);
    } else {
      inbox->changed.wait(lock, ready);
    }
  }

  void post(std::function<void(EngineCore*)> call) {
    {
      const std::lock_guard lock(inbox->mutex);
      if (!inbox->stopping) {
        inbox->calls.push_back(std::move(call));
        inbox->changed.notify_all();
        return;
      }
    }
    call(nullptr);
  }

  // Runs `work` on the engine's thread and waits for its result.
  template <typename Work>
  auto run(Work work) -> decltype(work(core)) {
    using Result = decltype(work(core));
    auto promise = std::make_shared<std::promise<Result>>();
    std::future<Result> result = promise->get_future();
    post([promise, work = std::move(work)](EngineCore* c) mutable {
      try {
        if (c == nullptr) throw Draining("the engine was stopped");
        if constexpr (std::is_void_v<Result>) {
          work(*c);
          promise->set_value();
        } else {
          promise->set_value(work(*c));
        }
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
    return result.get();
  }
};

void GenerationHandle::cancel() const {
  const std::shared_ptr<EngineInbox> inbox = inbox_.lock();
  if (inbox == nullptr) return;
  {
    const std::lock_guard lock(inbox->mutex);
    inbox->cancellations.push_back(id_);
  }
  inbox->changed.notify_all();
}

Engine::Engine(const Model& model, Backend& backend, const Tokenizer& tokenizer, EngineOptions options)
    : impl_(std::make_unique<Impl>(model, backend, tokenizer, std::move(options))) {}

Engine::~Engine() { stop(); }

const Model& Engine::model() const { return impl_->model; }
const EngineOptions& Engine::options() const { return impl_->options; }

GenerationHandle Engine::submit(GenerationRequest request, EventSink sink) {
  check_request(request, impl_->model, impl_->tokenizer, impl_->options);
  auto submission = std::make_unique<Submission>();
  submission->request = std::move(request);
  submission->sink = std::move(sink);
  submission->submitted = EngineClock::now();
  EngineInbox& inbox = *impl_->inbox;
  GenerationHandle handle;
  {
    const std::lock_guard lock(inbox.mutex);
    if (inbox.draining || inbox.stopping) throw Draining("the server is shutting down; try another one");
    if (inbox.waiting >= impl_->options.max_queued) {
      ++inbox.stats.refused_total;
      constexpr double kMostSeconds = 120;
      const auto retry = static_cast<int64_t>(std::clamp(inbox.retry_seconds, 1.0, kMostSeconds) + 0.999);
      throw QueueFull(fmt::format("{} requests are waiting, at most {} may; try again in {} s", inbox.waiting,
                                  impl_->options.max_queued, retry),
                      std::chrono::seconds(retry));
    }
    ++inbox.waiting;
    ++inbox.unfinished;
    submission->id = handle.id_ = inbox.next_id++;
    handle.inbox_ = impl_->inbox;
    inbox.submissions.push_back(std::move(submission));
  }
  inbox.changed.notify_all();
  return handle;
}

Engine::Result Engine::generate(GenerationRequest request,
                                const std::function<void(const EngineEvent&)>& on_event) {
  Result result;
  const auto n = static_cast<size_t>(std::max<int64_t>(request.n, 1));
  result.texts.resize(n);
  result.ids.resize(n);
  EventQueue queue;
  const GenerationHandle handle = submit(std::move(request), queue.sink());
  while (std::optional<EngineEvent> event = queue.pop()) {
    if (const auto* tokens = std::get_if<TokensEvent>(&*event)) {
      const auto c = static_cast<size_t>(tokens->choice);
      result.texts[c] += tokens->text;
      for (const TokenInfo& token : tokens->tokens) result.ids[c].push_back(token.id);
    }
    if (auto* finished = std::get_if<FinishedEvent>(&*event)) result.finished = *finished;
    if (const auto* failed = std::get_if<FailedEvent>(&*event)) throw Error(failed->kind, failed->message);
    if (on_event && !is_last(*event)) {
      try {
        on_event(*event);
      } catch (...) {
        handle.cancel();
        throw;
      }
    }
  }
  return result;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->inbox->mutex);
  EngineStats stats = impl_->inbox->stats;
  stats.waiting = impl_->inbox->waiting;
  stats.draining = impl_->inbox->draining;
  return stats;
}

bool Engine::drain(std::chrono::milliseconds timeout) {
  EngineInbox& inbox = *impl_->inbox;
  std::unique_lock lock(inbox.mutex);
  inbox.draining = true;
  if (inbox.idle.wait_for(lock, timeout, [&] { return inbox.unfinished == 0; })) return true;
  lock.unlock();
  try {
    impl_->run([](EngineCore& core) {
      core.fail_all(FailedEvent::Cause::kDrained, "the server shut down before the request could finish");
    });
  } catch (const Draining&) {  // stopped meanwhile
  }
  return false;
}

void Engine::stop() {
  {
    const std::lock_guard lock(impl_->inbox->mutex);
    impl_->inbox->draining = true;
    impl_->inbox->stopping = true;
  }
  impl_->inbox->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

int64_t Engine::save(std::vector<int32_t> ids, const std::filesystem::path& path) {
  return impl_->run([ids = std::move(ids), path](EngineCore& core) { return core.save(ids, path); });
}

std::vector<int32_t> Engine::restore(const std::filesystem::path& path) {
  return impl_->run([path](EngineCore& core) { return core.restore(path); });
}

void Engine::clear_cache() {
  impl_->run([](EngineCore& core) { core.clear_cache(); });
}

EventSink EventQueue::sink() {
  return [state = state_](EngineEvent&& event) {
    {
      const std::lock_guard lock(state->mutex);
      state->events.push_back(std::move(event));
    }
    state->ready.notify_one();
  };
}

std::optional<EngineEvent> EventQueue::pop(std::optional<std::chrono::milliseconds> timeout) {
  std::unique_lock lock(state_->mutex);
  const auto ready = [this] { return !state_->events.empty() || state_->last_taken; };
  if (timeout) {
    if (!state_->ready.wait_for(lock, *timeout, ready)) return std::nullopt;
  } else {
    state_->ready.wait(lock, ready);
  }
  if (state_->events.empty()) return std::nullopt;
  EngineEvent event = std::move(state_->events.front());
  state_->events.pop_front();
  state_->last_taken = is_last(event);
  return event;
}

}  // namespace synod
