#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace synod {

bool Scheduler::enqueue(Id id, int64_t slots, int64_t deadline) {
  SYNOD_ASSERT(!entries_.contains(id) && slots >= 1 && slots <= limits_.max_sequences);
  if (n_queued() - static_cast<int64_t>(preempted_.size()) >= limits_.max_queued) return false;
  Entry& entry = entries_[id];
  entry = {.id = id, .arrival = arrivals_++, .slots = slots, .deadline = deadline};
  queue_.insert({entry.arrival, id});
  return true;
}

int64_t Scheduler::prefill_budget() const {
  int64_t decode_rows = 0;
  for (const auto& [arrival, id] : running_) {
    const Entry& entry = entries_.at(id);
    if (entry.state == State::kDecode) decode_rows += 1 + entry.draft;
  }
  if (decode_rows == 0) return limits_.step_tokens;
  // One token at least: a step full of drafts must not starve prompts.
  return std::max<int64_t>(1, std::min(limits_.prefill_quantum, limits_.step_tokens - decode_rows));
}

std::optional<Scheduler::Id> Scheduler::next_admission() const {
  if (queue_.empty()) return std::nullopt;
  const Id id = queue_.begin()->second;
  if (slots_used_ + entries_.at(id).slots > limits_.max_sequences) return std::nullopt;
  int64_t ahead = 0;
  for (const auto& [arrival, other] : running_) ahead += entries_.at(other).remaining;
  if (ahead >= prefill_budget()) return std::nullopt;
  return id;
}

void Scheduler::admit(Id id, int64_t n_tokens) {
  Entry& entry = at(id);
  SYNOD_ASSERT(entry.state == State::kQueued && n_tokens >= 1);
  SYNOD_ASSERT(slots_used_ + entry.slots <= limits_.max_sequences);
  leave(entry);
  entry.state = State::kPrefill;
  entry.remaining = n_tokens;
  slots_used_ += entry.slots;
  running_.insert({entry.arrival, id});
}

std::vector<Scheduler::Item> Scheduler::plan() const {
  std::vector<Item> items;
  int64_t room = limits_.step_tokens - n_decoding_;  // for drafts
  for (const auto& [arrival, id] : running_) {
    const Entry& entry = entries_.at(id);
    if (entry.state != State::kDecode) continue;
    const int64_t draft = std::clamp<int64_t>(entry.draft, 0, std::max<int64_t>(room, 0));
    room -= draft;
    items.push_back({.id = id, .n_tokens = 1 + draft, .is_prefill = false});
  }
  int64_t budget = prefill_budget();
  for (const auto& [arrival, id] : running_) {
    const Entry& entry = entries_.at(id);
    if (entry.state != State::kPrefill || budget == 0) continue;
    const int64_t n = std::min(entry.remaining, budget);
    budget -= n;
    items.push_back({.id = id, .n_tokens = n, .is_prefill = true});
  }
  return items;
}

void Scheduler::set_draft(Id id, int64_t n_tokens) {
  Entry& entry = at(id);
  SYNOD_ASSERT(entry.state == State::kDecode && n_tokens >= 0);
  entry.draft = n_tokens;
}

void Scheduler::prefilled(Id id, int64_t n_tokens) {
  Entry& entry = at(id);
  SYNOD_ASSERT(entry.state == State::kPrefill && n_tokens <= entry.remaining);
  entry.remaining -= n_tokens;
  if (entry.remaining > 0) return;
  entry.state = State::kDecode;
  entry.draft = 0;
  ++n_decoding_;
}

void Scheduler::split(Id id, std::span<const Id> others) {
  Entry& entry = at(id);
  SYNOD_ASSERT(entry.state == State::kDecode);
  SYNOD_ASSERT(static_cast<int64_t>(others.size()) == entry.slots - 1);
  entry.slots = 1;
  for (const Id other : others) {
    SYNOD_ASSERT(!entries_.contains(other));
    Entry copy = entry;
    copy.id = other;
    entries_[other] = copy;
    running_.insert({copy.arrival, other});
    ++n_decoding_;
  }
}

void Scheduler::leave(const Entry& entry) {
  if (entry.state == State::kQueued) {
    queue_.erase({entry.arrival, entry.id});
    preempted_.erase(entry.id);
    return;
  }
  running_.erase({entry.arrival, entry.id});
  slots_used_ -= entry.slots;
  if (entry.state == State::kDecode) --n_decoding_;
}

void Scheduler::remove(Id id) {
  leave(at(id));
  entries_.erase(id);
}

void Scheduler::preempt(Id id) {
  Entry& entry = at(id);
  SYNOD_ASSERT(entry.state != State::kQueued);
  leave(entry);
  entry.state = State::kQueued;
  entry.remaining = 0;
  entry.draft = 0;
  queue_.insert({entry.arrival, id});
  preempted_.insert(id);
}

std::optional<Scheduler::Id> Scheduler::preemption_victim(Id needy) const {
  if (running_.empty()) return std::nullopt;
  const Id youngest = running_.rbegin()->second;
  if (youngest == needy && running_.size() == 1) return std::nullopt;
  return youngest;
}

std::vector<Scheduler::Id> Scheduler::expired(int64_t now) const {
  std::vector<Id> ids;
  for (const auto& [id, entry] : entries_) {
    if (entry.deadline < now) ids.push_back(id);
  }
  return ids;
}

int64_t Scheduler::next_deadline() const {
  int64_t next = kNoDeadline;
  for (const auto& [id, entry] : entries_) next = std::min(next, entry.deadline);
  return next;
}

}  // namespace synod
