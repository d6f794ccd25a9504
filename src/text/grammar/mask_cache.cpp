#include "text/grammar/mask_cache.h"

#include <algorithm>

#include "base/error.h"

namespace synod {

using Config = StackPool::Config;
using EdgeKind = GrammarAutomaton::EdgeKind;

namespace {

void set_bit(std::span<uint32_t> words, int32_t id) { words[size_t(id) / 32] |= uint32_t(1) << (id & 31); }

bool any_bit(std::span<const uint32_t> words) {
  return std::any_of(words.begin(), words.end(), [](uint32_t word) { return word != 0; });
}

}  // namespace

MaskCache::MaskCache(const GrammarAutomaton& automaton, const Vocabulary& vocabulary, size_t limit_bytes)
    : automaton_(automaton), vocabulary_(vocabulary), limit_bytes_(limit_bytes), pool_(automaton) {
  uint16_t deepest = 0;
  for (const uint16_t depth : vocabulary_.trie().depth) deepest = std::max(deepest, depth);
  path_.resize(size_t(deepest) + 1);
}

Grammar::CacheStats MaskCache::stats() const {
  const std::lock_guard lock(mutex_);
  Grammar::CacheStats stats = stats_;
  stats.bytes = entry_bytes_ + pool_.bytes() + state_keys_.bytes();
  return stats;
}

bool MaskCache::mask(const StackGraph& graph, std::span<uint32_t> words) {
  SYNOD_ASSERT(words.size() >= vocabulary_.n_words());
  const std::lock_guard lock(mutex_);
  std::fill(words.begin(), words.end(), 0);
  if (pool_.bytes() + state_keys_.bytes() > limit_bytes_) {
    // Numbers of the pool mean nothing afterwards, so the keys go too.
    pool_.clear();
    state_keys_.clear();
    stats_.evictions += entries_.size();
    entries_.clear();
    ages_.clear();
    entry_bytes_ = 0;
  }
  pool_.reset_work();
  bool any = graph.complete && !vocabulary_.stop_ids().empty();
  if (!fast_mask(graph, words)) {
    std::fill(words.begin(), words.end(), 0);
    exact_mask(graph, words);
  }
  any = any || any_bit(words);
  if (graph.complete) {
    for (const int32_t id : vocabulary_.stop_ids()) set_bit(words, id);
  }
  return any;
}

// False when the cached answers do not apply: stacks near the depth limit, or too many ways down.
bool MaskCache::fast_mask(const StackGraph& graph, std::span<uint32_t> words) {
  constexpr size_t kMaxVisits = 4096;
  size_t n_visits = 0;
  std::vector<const StackGraph::Frame*> roots;
  std::vector<bool> was_root(graph.frames.size(), false);
  for (const StackGraph::Frame& top : graph.tops) roots.push_back(&top);
  std::vector<std::pair<Shared, const StackGraph::Frame*>> ways;  // an entry with exits, and a frame below it
  KeySet visited;
  const auto add_ways = [&](const Shared& entry, const StackGraph::Frame& frame) {
    if (entry->exits.empty()) return;
    for (const uint32_t below : frame.below) {
      if (below == StackGraph::kBottom) continue;
      if (visited.insert(entry->id << 24 ^ below)) ways.emplace_back(entry, &graph.frames[below]);
    }
  };
  for (size_t i = 0; i < roots.size(); ++i) {
    const StackGraph::Frame& frame = *roots[i];
    const Shared entry = find(nullptr, frame.states);
    if (++n_visits > kMaxVisits || frame.depth + entry->growth > StackPool::kMaxDepth) return false;
    apply(*entry, words);
    add_ways(entry, frame);
    if (!entry->returns_at_once) continue;
    for (const uint32_t below : frame.below) {
      if (below == StackGraph::kBottom || was_root[below]) continue;
      was_root[below] = true;
      roots.push_back(&graph.frames[below]);
    }
  }
  while (!ways.empty()) {
    const auto [above, frame] = ways.back();
    ways.pop_back();
    const Shared entry = find(above.get(), frame->states);
    if (++n_visits > kMaxVisits || frame->depth + entry->growth > StackPool::kMaxDepth) return false;
    apply(*entry, words);
    add_ways(entry, *frame);
  }
  return true;
}

// Plain walk with the whole stacks; nothing is kept.
void MaskCache::exact_mask(const StackGraph& graph, std::span<uint32_t> words) {
  StackPool pool(automaton_);
  const Config start = pool.import(graph);
  std::vector<int32_t> allowed;
  Entry unused;
  constexpr uint32_t kRoot[] = {0};
  walk(pool, vocabulary_.trie(), kRoot, start, unused, allowed);
  allow_tokens(pool, start, allowed);
  for (const int32_t id : allowed) set_bit(words, id);
}

MaskCache::Shared MaskCache::find(const Entry* above, std::span<const uint32_t> states) {
  const Key key{above ? above->id : 0, state_keys_.intern(states)};
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    ++stats_.hits;
    ages_.splice(ages_.begin(), ages_, found->second.age);
    return found->second.entry;
  }
  ++stats_.misses;
  auto entry = std::make_shared<const Entry>(make(above, states));
  store(key, entry);
  return entry;
}

void MaskCache::store(const Key& key, Shared entry) {
  entry_bytes_ += entry->bytes();
  ages_.push_front(key);
  entries_.emplace(key, Slot{std::move(entry), ages_.begin()});
  while (entry_bytes_ > limit_bytes_ && ages_.size() > 1) {
    const auto oldest = entries_.find(ages_.back());
    entry_bytes_ -= oldest->second.entry->bytes();
    entries_.erase(oldest);
    ages_.pop_back();
    ++stats_.evictions;
  }
}

MaskCache::Entry MaskCache::make(const Entry* above, std::span<const uint32_t> states) {
  Entry entry;
  entry.id = ++last_id_;
  const Config start = pool_.start(states);
  std::vector<int32_t> allowed;
  if (above) {
    entry.sliced = above->sliced;
    walk(pool_, entry.sliced ? vocabulary_.unsliced_trie() : vocabulary_.trie(), above->exits, start, entry,
         allowed);
  } else {
    entry.returns_at_once = pool_.returns(start);
    entry.sliced = allow_slices(start, entry);
    constexpr uint32_t kRoot[] = {0};
    walk(pool_, entry.sliced ? vocabulary_.unsliced_trie() : vocabulary_.trie(), kRoot, start, entry,
         allowed);
    allow_tokens(pool_, start, allowed);
  }
  if (allowed.size() < vocabulary_.n_words()) {
    allowed.shrink_to_fit();
    entry.few = std::move(allowed);
  } else {
    entry.dense.assign(vocabulary_.n_words(), 0);
    for (const int32_t id : allowed) set_bit(entry.dense, id);
  }
  entry.exits.shrink_to_fit();
  return entry;
}

// True when `start` treats plain characters alike until it refuses them all, or for as long as any sliced
// token is.
bool MaskCache::allow_slices(Config start, Entry& entry) {
  const size_t longest = vocabulary_.longest_plain();
  Config at = start;
  size_t n = 0;
  while (n < longest) {
    const Config next = pool_.plain_step(at);
    if (next == StackPool::kMixed) return false;
    if (next == StackPool::kDead) break;
    entry.growth = std::max(entry.growth, pool_.growth(next));
    at = next;
    ++n;
  }
  entry.slice = n;
  return true;
}

// Scans the subtrees below the nodes `from` (ascending). A node that is itself in `from` adds `start` to
// whatever the walk has there, so that nested starts cost one walk.
void MaskCache::walk(StackPool& pool, const Vocabulary::Trie& trie, std::span<const uint32_t> from,
                     Config start, Entry& entry, std::vector<int32_t>& allowed) {
  const bool start_returns = pool.returns(start);
  entry.growth = std::max(entry.growth, pool.growth(start));
  for (size_t k = 0; k < from.size();) {
    const uint32_t root = from[k++];
    path_[trie.depth[root]] = start;
    if (start_returns && root != 0) entry.exits.push_back(root);
    const uint32_t stop = trie.end[root];
    for (uint32_t node = root + 1; node < stop;) {
      const uint16_t depth = trie.depth[node];
      Config next = pool.step(path_[depth - 1], trie.byte[node]);
      const bool alive = next != StackPool::kDead;
      bool exits = false;
      if (alive) {
        allowed.insert(allowed.end(), trie.ids.begin() + trie.first_token[node],
                       trie.ids.begin() + trie.first_token[node + 1]);
        exits = pool.returns(next);
        entry.growth = std::max(entry.growth, pool.growth(next));
      }
      if (k < from.size() && from[k] == node) {
        ++k;
        exits = exits || start_returns;
        next = pool.unite(next, start);
      }
      if (exits) entry.exits.push_back(node);
      if (!pool.has_items(next) && (k == from.size() || from[k] >= trie.end[node])) {
        node = trie.end[node];
        continue;
      }
      path_[depth] = next;
      ++node;
    }
  }
}

void MaskCache::allow_tokens(const StackPool& pool, Config config, std::vector<int32_t>& allowed) const {
  if (!automaton_.names_tokens) return;
  for (const StackPool::Item& item : pool.items(config)) {
    for (const uint32_t state : pool.states(item.states)) {
      for (const GrammarAutomaton::Edge& edge : automaton_.edges_of(state)) {
        if (edge.kind == EdgeKind::kToken) {
          allowed.push_back(int32_t(edge.argument));
        } else if (edge.kind == EdgeKind::kTextTokenExcept || edge.kind == EdgeKind::kControlExcept) {
          const bool text = edge.kind == EdgeKind::kTextTokenExcept;
          const auto& except = automaton_.token_sets[edge.argument];
          for (int32_t id = 0; id < vocabulary_.size(); ++id) {
            if (vocabulary_.is_text(id) == text && !vocabulary_.is_stop(id) &&
                !std::binary_search(except.begin(), except.end(), id)) {
              allowed.push_back(id);
            }
          }
        }
      }
    }
  }
}

void MaskCache::apply(const Entry& entry, std::span<uint32_t> words) const {
  const auto merge = [&words](std::span<const uint32_t> other) {
    for (size_t i = 0; i < other.size(); ++i) words[i] |= other[i];
  };
  if (entry.slice > 0) merge(vocabulary_.slice(entry.slice));
  if (!entry.dense.empty()) merge(entry.dense);
  for (const int32_t id : entry.few) set_bit(words, id);
}

}  // namespace synod
