// Masks of one grammar, remembered (see grammar.h). An entry answers for a set of top states on an unknown
// bottom: which tokens survive, and at which trie nodes the frame returns to whatever lies below. Entries for
// frames below start at such nodes and are keyed by the entry above them.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/stack_pool.h"
#include "text/grammar/vocabulary.h"

namespace synod {

class MaskCache {
 public:
  // `limit_bytes` bounds the entries, and once more the tables behind them.
  MaskCache(const GrammarAutomaton& automaton, const Vocabulary& vocabulary, size_t limit_bytes);

  // As GrammarState::mask. Thread-safe.
  bool mask(const StackGraph& graph, std::span<uint32_t> words);
  Grammar::CacheStats stats() const;

 private:
  struct Key {
    uint64_t above;   // id of the entry above, 0 at the top
    uint32_t states;  // of state_keys_
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return size_t((key.above * 0x9E3779B97F4A7C15u) ^ key.states); }
  };
  struct Entry {
    uint64_t id = 0;
    size_t slice = 0;              // plain characters of the allowed slice, 0: none
    bool sliced = false;           // exits are nodes of the unsliced trie
    std::vector<int32_t> few;      // allowed ids, or
    std::vector<uint32_t> dense;   // words of allowed ids
    std::vector<uint32_t> exits;   // trie nodes, ascending, without the root
    bool returns_at_once = false;  // without reading
    uint32_t growth = 0;           // frames pushed at most
    size_t bytes() const {
      return sizeof(Entry) + 4 * (few.capacity() + dense.capacity() + exits.capacity()) + 160;
    }
  };
  using Shared = std::shared_ptr<const Entry>;

  Shared find(const Entry* above, std::span<const uint32_t> states);
  Entry make(const Entry* above, std::span<const uint32_t> states);
  void walk(StackPool& pool, const Vocabulary::Trie& trie, std::span<const uint32_t> from,
            StackPool::Config start, Entry& entry, std::vector<int32_t>& allowed);
  void allow_tokens(const StackPool& pool, StackPool::Config config, std::vector<int32_t>& allowed) const;
  bool allow_slices(StackPool::Config start, Entry& entry);
  void apply(const Entry& entry, std::span<uint32_t> words) const;
  void exact_mask(const StackGraph& graph, std::span<uint32_t> words);
  bool fast_mask(const StackGraph& graph, std::span<uint32_t> words);
  void store(const Key& key, Shared entry);

  const GrammarAutomaton& automaton_;
  const Vocabulary& vocabulary_;
  const size_t limit_bytes_;

  mutable std::mutex mutex_;
  StackPool pool_;
  SpanInterner state_keys_;
  struct Slot {
    Shared entry;
    std::list<Key>::iterator age;
  };
  std::unordered_map<Key, Slot, KeyHash> entries_;
  std::list<Key> ages_;  // most recently used first
  size_t entry_bytes_ = 0;
  uint64_t last_id_ = 0;
  std::vector<StackPool::Config> path_;  // by depth of the walk
  Grammar::CacheStats stats_;
};

}  // namespace synod
