// What runs in the next step. A pure data structure: no model, no clock, no threads; the engine tells it what
// happened and asks what to do.
//
// An entry is one sequence of tokens (a choice of a request). It waits in the queue, then prefills, then
// decodes.
// - Order is arrival, everywhere: admission, prompt tokens of a step, and (backwards) preemption. A preempted
//   entry keeps its arrival, so it is admitted first again.
// - Every decoding entry has its row in every step. Prompts share what is left: `step_tokens` when nobody
// decodes,
//   else at most `prefill_quantum`, which bounds the gap between two tokens of a stream.
// - A request of n choices is one entry with n slots until its prompt is done; split() then makes n entries.
// - Entries are admitted only when the prompts ahead leave room in a step: so a request looks for its prefix
// when
//   its turn has come and the requests before it have left theirs in the cache.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace synod {

class Scheduler {
 public:
  using Id = uint64_t;
  static constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

  struct Limits {
    int64_t max_sequences = 32;    // slots
    int64_t max_queued = 256;      // waiting entries; preempted ones do not count
    int64_t step_tokens = 512;     // rows of a step, at least max_sequences
    int64_t prefill_quantum = 64;  // prompt tokens of a step in which others decode, at least 1
  };
  enum class State { kQueued, kPrefill, kDecode };

  struct Item {
    Id id = 0;
    int64_t n_tokens = 0;  // of the prompt; or 1 + drafted tokens
    bool is_prefill = false;
    bool operator==(const Item&) const = default;
  };

  explicit Scheduler(Limits limits) : limits_(limits) {}

  // A new entry at the end of the queue. False when the queue is full. `slots` <= max_sequences. `deadline`
  // on any clock, as expired() is asked.
  bool enqueue(Id id, int64_t slots, int64_t deadline = kNoDeadline);
  // The entry to admit next, if there is room for it now. The caller calls admit(), or remove(), or leaves
  // it.
  std::optional<Id> next_admission() const;
  // Starts it with `n_tokens` >= 1 to prefill.
  void admit(Id id, int64_t n_tokens);

  std::vector<Item> plan() const;
  // Drafted tokens that a decoding entry wants verified in the next plan.
  void set_draft(Id id, int64_t n_tokens);

  void prefilled(Id id, int64_t n_tokens);  // after it, 0 remaining means decoding
  // The prompt of `id` is done: `others` (one per further slot) decode beside it from now on.
  void split(Id id, std::span<const Id> others);
  void remove(Id id);  // at any stage
  // Back to the queue.
  void preempt(Id id);
  // Who should give its pages back so that `needy` can go on: the youngest running entry, nullopt when there
  // is none but `needy`. May be `needy` itself when it is the youngest.
  std::optional<Id> preemption_victim(Id needy) const;

  std::vector<Id> expired(int64_t now) const;  // deadlines before `now`
  int64_t next_deadline() const;               // kNoDeadline when there is none

  void set_prefill_quantum(int64_t n_tokens) { limits_.prefill_quantum = n_tokens; }
  const Limits& limits() const { return limits_; }
  bool contains(Id id) const { return entries_.contains(id); }
  State state(Id id) const { return entries_.at(id).state; }
  int64_t remaining(Id id) const { return entries_.at(id).remaining; }
  int64_t n_queued() const { return static_cast<int64_t>(queue_.size()); }
  int64_t n_running() const { return static_cast<int64_t>(entries_.size() - queue_.size()); }
  int64_t n_decoding() const { return n_decoding_; }
  bool has_prompts() const { return n_queued() > 0 || n_running() > n_decoding(); }
  int64_t slots_used() const { return slots_used_; }
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    Id id = 0;
    uint64_t arrival = 0;
    int64_t slots = 1;
    State state = State::kQueued;
    int64_t remaining = 0;  // prompt tokens
    int64_t draft = 0;
    int64_t deadline = kNoDeadline;
  };
  // Arrival first; choices of one request in order of their ids.
  using Key = std::pair<uint64_t, Id>;
  Entry& at(Id id) { return entries_.at(id); }
  void leave(const Entry& entry);  // out of queue_ or running_
  int64_t prefill_budget() const;

  Limits limits_;
  std::map<Id, Entry> entries_;
  std::set<Key> queue_, running_;
  uint64_t arrivals_ = 0;
  int64_t slots_used_ = 0;
  int64_t n_decoding_ = 0;
  std::set<Id> preempted_;
};

}  // namespace synod
