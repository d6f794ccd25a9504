// One step of the engine: who runs, room in the cache, the forward call, a token for each, commit.
#include <algorithm>
#include <array>

#include "base/buffer.h"
#include "engine/engine_core.h"
#include "formats/atomic_file.h"
#include "kv/cache_geometry.h"

namespace synod {
namespace {

constexpr int64_t kMostStreamsWithDrafts = 8;  // above, steps are full and drafts only add rows
constexpr int64_t kLeastChunk = 16;            // tokens of a prompt, when memory is short
constexpr int64_t kLeastKeptPrompt = 16;       // tokens; a shorter prompt is not worth a copy of its pages

double seconds_since(EngineClock::time_point start) {
  return std::chrono::duration<double>(EngineClock::now() - start).count();
}

}  // namespace

std::optional<EngineClock::time_point> EngineCore::wake_at() const {
  const int64_t deadline = scheduler_.next_deadline();
  if (deadline == Scheduler::kNoDeadline) return std::nullopt;
  return EngineClock::time_point(std::chrono::nanoseconds(deadline + 1));
}

bool EngineCore::step() {
  const auto start = EngineClock::now();
  for (const Scheduler::Id id : scheduler_.expired(start.time_since_epoch() / std::chrono::nanoseconds(1))) {
    if (!runs_.contains(id)) continue;  // a choice of a request that has just failed
    Request& request = *run_of(id).request;
    fail_request(request, FailedEvent::Cause::kDeadline, Error::Kind::kFailure,
                 fmt::format("the request's time limit of {} ms has passed", request.spec.deadline->count()));
  }
  if (disk_ != nullptr) disk_->poll();
  if (options_.prefill_quantum == 0) {
    const double gap = std::chrono::duration<double>(options_.max_gap).count();
    scheduler_.set_prefill_quantum(times_.prefill_quantum(gap, scheduler_.n_decoding()));
  }
  admit_all();
  plan_drafts();
  std::vector<Work> work = reserve_work();
  if (work.empty()) return false;
  int64_t prefill_tokens = 0, decode_rows = 0;
  for (const Work& w : work) {
    const bool prefill = scheduler_.state(w.id) == Scheduler::State::kPrefill;
    (prefill ? prefill_tokens : decode_rows) += w.n_tokens;
  }
  const auto n_sequences = static_cast<int64_t>(work.size());
  forward_seconds_ = 0;
  run_work(work);
  const double total = seconds_since(start);
  times_.observe(prefill_tokens, decode_rows, total);
  ++totals_.steps_total;
  totals_.step_sequences_total += n_sequences;
  totals_.prompt_tokens_total += prefill_tokens;
  (prefill_tokens > 0 ? totals_.prompt_seconds_total : totals_.decode_seconds_total) += total;
  totals_.forward_seconds_total += forward_seconds_;
  return true;
}

void EngineCore::count_round(EngineClock::duration round) {
  totals_.overhead_seconds_total += std::chrono::duration<double>(round).count() - forward_seconds_;
}

void EngineCore::plan_drafts() {
  const int64_t n_streams = scheduler_.n_decoding();
  if (options_.max_draft == 0 || n_streams == 0) return;
  for (const Scheduler::Item& item : scheduler_.plan()) {
    if (item.is_prefill) continue;
    Run& run = run_of(item.id);
    if (!run.request->spec.speculate) continue;
    run.choice->drop_draft();
    if (n_streams <= kMostStreamsWithDrafts) run.choice->plan_draft(options_.max_draft);
    const auto n = static_cast<int64_t>(run.choice->draft().size());
    if (n > 0 && !options_.draft_always && !times_.draft_pays(n, run.choice->acceptance(), n_streams)) {
      run.choice->drop_draft();
      run.choice->pause_draft();
    }
    scheduler_.set_draft(item.id, static_cast<int64_t>(run.choice->draft().size()));
  }
}

std::vector<EngineCore::Work> EngineCore::reserve_work() {
  std::vector<Work> work;
  for (const Scheduler::Item& item : scheduler_.plan()) {
    // Others may have been preempted or failed while room was made.
    if (!scheduler_.contains(item.id) || scheduler_.state(item.id) == Scheduler::State::kQueued) continue;
    const int64_t n_tokens = reserve(item.id, item.n_tokens, work);  // may be fewer than planned
    if (n_tokens == 0) continue;
    Run& run = run_of(item.id);
    const auto known = static_cast<int64_t>(run.choice->ids().size());
    const int64_t first = cache_.length(run.sequence);
    work.push_back({.id = item.id,
                    .run = &run,
                    .n_tokens = n_tokens,
                    .n_drafted = item.is_prefill ? 0 : n_tokens - 1,
                    .reaches_end = first + n_tokens >= known,
                    .first_row = 0});
  }
  // A request that failed for want of memory took its other choices with it.
  std::erase_if(work, [this](const Work& w) { return !runs_.contains(w.id); });
  return work;
}

// Room for the tokens: for fewer of a prompt when memory is short (windowed groups keep all rows of a call
// until it is over), without drafts, then at the cost of the youngest. Returns how many have room; 0 = this
// entry does not run in this step.
int64_t EngineCore::reserve(Scheduler::Id id, int64_t n_tokens, std::vector<Work>& work) {
  const bool prefill = scheduler_.state(id) == Scheduler::State::kPrefill;
  while (true) {
    try {
      cache_.reserve(run_of(id).sequence, n_tokens);
      return n_tokens;
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::kNoMemory) throw;
      if (prefill && n_tokens > kLeastChunk) {
        n_tokens = std::max(n_tokens / 2, kLeastChunk);
        continue;
      }
      if (!prefill && n_tokens > 1) {
        n_tokens = 1;
        continue;
      }
      const std::optional<Scheduler::Id> victim = scheduler_.preemption_victim(id);
      if (!victim) {
        fail_request(*run_of(id).request, std::current_exception());
        return 0;
      }
      std::erase_if(work, [&](const Work& w) { return w.id == *victim; });
      preempt(*victim);
      if (*victim == id) return 0;
    }
  }
}

// When several fail together each runs alone: only those that fail again are to blame.
void EngineCore::run_work(std::span<Work> work) {
  try {
    forward(work);
  } catch (...) {
    if (work.size() == 1) return fail_request(*work[0].run->request, std::current_exception());
    for (Work& w : work) {
      if (runs_.contains(w.id)) run_work(std::span(&w, 1));
    }
    return;
  }
  for (Work& w : work) {
    if (!runs_.contains(w.id)) continue;  // another choice of its request has failed
    Request& request = *w.run->request;
    try {
      commit(w);
    } catch (...) {
      fail_request(request, std::current_exception());
    }
  }
}

void EngineCore::forward(std::span<Work> work) {
  batch_.clear();
  bool logits = false;
  std::vector<int32_t> with_draft;
  for (Work& w : work) {
    const Choice& choice = *w.run->choice;
    const auto first = static_cast<size_t>(cache_.length(w.run->sequence));
    std::span<const int32_t> ids = choice.ids().subspan(first, static_cast<size_t>(w.n_tokens - w.n_drafted));
    if (w.n_drafted > 0) {
      with_draft.assign(ids.begin(), ids.end());
      const auto draft = choice.draft().first(static_cast<size_t>(w.n_drafted));
      with_draft.insert(with_draft.end(), draft.begin(), draft.end());
      ids = with_draft;
    }
    const bool wants_row = w.reaches_end && w.run->request->spec.max_tokens != 0;
    w.first_row = batch_.add(cache_, w.run->sequence, ids, wants_row ? 1 + w.n_drafted : 0);
    logits = logits || (wants_row && choice.needs_logits());
  }
  const auto before = EngineClock::now();
  try {
    batch_.forward(cache_, logits);
  } catch (...) {
    forward_seconds_ += seconds_since(before);
    throw;
  }
  forward_seconds_ += seconds_since(before);
}

// Chooses tokens from the item's rows; returns how many of its drafted tokens hold.
int64_t EngineCore::sample(Work& work, TokensEvent& event) {
  Choice& choice = *work.run->choice;
  int64_t accepted = 0;
  while (true) {
    const int64_t row = work.first_row + accepted;
    choice.next(batch_.logits(row), batch_.greedy(row), event);
    if (choice.finished() || accepted == work.n_drafted) break;
    if (choice.ids().back() != choice.draft()[static_cast<size_t>(accepted)]) break;
    ++accepted;
  }
  return accepted;
}

void EngineCore::commit(Work& work) {
  Run& run = *work.run;
  Request& request = *run.request;
  Choice& choice = *run.choice;
  const bool prefill = scheduler_.state(work.id) == Scheduler::State::kPrefill;
  const int64_t old_length = cache_.length(run.sequence);
  const bool splits = prefill && work.reaches_end && request.spec.n > 1 && choice.n_generated() == 0 &&
                      request.spec.max_tokens != 0;
  TokensEvent event{.choice = choice.index(), .text = {}, .tokens = {}};
  int64_t accepted = 0;
  if (work.reaches_end && request.spec.max_tokens != 0) {
    if (splits) {  // picking modifies the row, and the others choose from it too
      const std::span<const float> row = batch_.logits(work.first_row);
      row_copy_.assign(row.begin(), row.end());
    }
    accepted = sample(work, event);
  } else if (work.reaches_end) {
    choice.end(FinishReason::kLength, event);
  }
  const int64_t n_kept = work.n_tokens - work.n_drafted + accepted;
  cache_.grow(run.sequence, n_kept);
  if (request.spec.cache_prompt) index_.record_blocks(run.sequence, choice.ids(), old_length);
  cache_.trim(run.sequence);
  if (work.n_drafted > 0) {
    totals_.drafted_tokens_total += work.n_drafted;
    totals_.accepted_tokens_total += accepted;
    request.usage.drafted_tokens += work.n_drafted;
    request.usage.accepted_tokens += accepted;
    choice.draft_was(accepted, work.n_drafted);
  }
  if (prefill) {
    scheduler_.prefilled(work.id, n_kept);
    const int64_t n_prompt = request.usage.prompt_tokens;
    if (request.spec.progress) {
      emit(request, PrefillEvent{.done = std::min(cache_.length(run.sequence), n_prompt), .total = n_prompt});
    }
    // The end of the prompt is where the next turn, or the same prompt again, parts from this text.
    const bool at_prompt_end = cache_.length(run.sequence) == n_prompt;
    if (at_prompt_end && request.spec.cache_prompt && n_prompt >= kLeastKeptPrompt) {
      index_.record_tail(run.sequence, request.spec.prompt);
    }
  }
  emit_tokens(request, std::move(event));
  if (splits) split(work.id, work.first_row);
  if (choice.finished()) finish_choice(work.id);
}

// The other choices of a request begin: forks of the prompt's pages, each with its first token from the same
// row.
void EngineCore::split(Scheduler::Id id, int64_t row) {
  Run& run = run_of(id);
  Request& request = *run.request;
  std::vector<Scheduler::Id> others;
  for (int64_t c = 1; c < request.spec.n; ++c) others.push_back(next_run_++);
  scheduler_.split(id, others);
  // All of them exist before anything can fail, so that a failure finds all.
  for (size_t c = 1; c <= others.size(); ++c) {
    auto twin = std::make_unique<Run>();
    twin->request = &request;
    twin->cached_tokens = run.cached_tokens;
    request.runs[c] = others[c - 1];
    runs_[others[c - 1]] = std::move(twin);
  }
  for (size_t c = 1; c <= others.size(); ++c) {
    Run& twin = run_of(others[c - 1]);
    twin.choice = std::make_unique<Choice>(request.spec, choice_context_, static_cast<int64_t>(c));
    twin.sequence = cache_.fork(run.sequence);
  }
  const int32_t greedy = batch_.greedy(row);
  std::vector<float> scratch;
  std::vector<Scheduler::Id> finished;
  for (const Scheduler::Id other : others) {
    Choice& choice = *run_of(other).choice;
    scratch.assign(row_copy_.begin(), row_copy_.end());
    TokensEvent event{.choice = choice.index(), .text = {}, .tokens = {}};
    choice.next(scratch, greedy, event);
    emit_tokens(request, std::move(event));
    if (choice.finished()) finished.push_back(other);
  }
  for (const Scheduler::Id other : finished) finish_choice(other);
}

// What the rows of a cache depend on, as a number: the logits of a fixed prompt, bit for bit. Weights,
// profile and backend all show in them.
uint64_t EngineCore::fingerprint() {
  if (fingerprint_) return *fingerprint_;
  std::array<int32_t, 8> probe{};
  for (size_t i = 0; i < probe.size(); ++i) {
    probe[i] = static_cast<int32_t>(static_cast<int64_t>(i * 7919 + 3) % model_.info().vocab_size);
  }
  const SequenceId sequence = cache_.create();
  try {
    cache_.reserve(sequence, static_cast<int64_t>(probe.size()));
    batch_.clear();
    const int64_t row = batch_.add(cache_, sequence, probe, static_cast<int64_t>(probe.size()));
    batch_.forward(cache_, true);
    Checksum sum;
    for (int64_t i = 0; i < static_cast<int64_t>(probe.size()); ++i)
      sum.add(std::as_bytes(batch_.logits(row + i)));
    const std::string layout = cache_.spec().describe() + std::string(backend_.name());
    sum.add(std::as_bytes(std::span(layout.data(), layout.size())));
    fingerprint_ = sum.value();
  } catch (...) {
    cache_.release(sequence);
    throw;
  }
  cache_.release(sequence);
  return *fingerprint_;
}

void EngineCore::attach_disk() {
  disk_ = std::make_unique<DiskTier>(cache_, options_.cache_dir, fingerprint(), model_.info().vocab_size,
                                     options_.cache_dir_bytes);
  DiskTier* disk = disk_.get();
  index_.set_tier(
      {.has = [disk](uint64_t hash, bool state) { return disk->has(hash, state); },
       .fetch = [disk](uint64_t hash, uint64_t parent, std::span<const int32_t> tokens, bool state,
                       PrefixIndex::Fetched& out) { return disk->fetch(hash, parent, tokens, state, out); }});
}

void EngineCore::flush_disk() {
  if (disk_ != nullptr) disk_->flush();
}

int64_t EngineCore::save(std::span<const int32_t> ids, const std::filesystem::path& path) {
  const std::optional<SequenceId> sequence = index_.resume(ids, static_cast<int64_t>(ids.size()));
  if (!sequence) return 0;
  PageImage image;
  image.fingerprint = fingerprint();
  image.length = cache_.length(*sequence);
  image.floor = cache_.floor(*sequence);
  image.ids.assign(ids.begin(), ids.begin() + image.length);
  auto& runs = image.sets.emplace_back();
  for (size_t g = 0; g < cache_.spec().groups.size(); ++g) {
    const int group = static_cast<int>(g);
    runs.push_back(cache_.share(*sequence, group, cache_.first_page(*sequence, group),
                                page_count(cache_.spec().groups[g], image.length)));
  }
  const auto give_back = [&] {
    for (size_t g = 0; g < runs.size(); ++g) cache_.drop(static_cast<int>(g), runs[g]);
    cache_.release(*sequence);
  };
  try {
    AtomicFile file(path);
    write_image(image, cache_.spec(), page_bytes(image, cache_), cache_.copy(),
                [&](std::span<const std::byte> bytes) { file.write(bytes); });
    file.commit();
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
  return image.length;
}

std::vector<int32_t> EngineCore::restore(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path);
  const std::string what = path.string();
  PageImage image = read_image(file.bytes(), fingerprint(), model_.info().vocab_size, cache_, what);
  try {
    check_sequence(image, cache_.spec(), what);
  } catch (...) {
    for (auto& set : image.sets) {
      for (size_t g = 0; g < set.size(); ++g) cache_.drop(static_cast<int>(g), set[g]);
    }
    throw;
  }
  const SequenceId sequence = cache_.adopt(image.length, std::move(image.sets[0]), image.floor);
  index_.record_tail(sequence, image.ids);
  cache_.release(sequence);
  return image.ids;
}

}  // namespace synod
