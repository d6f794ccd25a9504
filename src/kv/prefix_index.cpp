#include "kv/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/cache_geometry.h"

namespace synod {
namespace {

constexpr size_t kMaxTails = 32;  // of one block; the oldest goes

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

int64_t common_length(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return at.first - a.begin();
}

std::span<const int32_t> block_of(std::span<const int32_t> ids, int64_t block) {
  return ids.subspan(static_cast<size_t>(block * kPageTokens), static_cast<size_t>(kPageTokens));
}

}  // namespace

uint64_t chain_hash(uint64_t parent, std::span<const int32_t> block) {
  uint64_t hash = parent;
  for (const int32_t id : block) {
    hash = mix(hash * 0x9E3779B97F4A7C15U + static_cast<uint32_t>(id) + 0x632BE59BD9B4E019U);
  }
  return hash;
}

struct PrefixIndex::Tail {
  Node* node = nullptr;
  std::vector<int32_t> tokens;  // [1, kPageTokens)
  std::vector<PageRun> pages;   // per group, after the node's block
  int64_t floor = 0;
  uint64_t tick = 0;
};

struct PrefixIndex::Node {
  uint64_t hash = kPrefixRoot;
  Node* parent = nullptr;
  int64_t depth = 0;  // blocks from the root, own one included
  std::vector<int32_t> tokens;
  std::vector<PageRun> pages;  // per group; of unbounded groups
  bool has_state = false;
  std::vector<PageRun> state;  // per group; of windowed groups
  uint64_t state_tick = 0;
  int64_t n_children = 0;
  int64_t pins = 0;
  std::vector<std::unique_ptr<Tail>> tails;
};

PrefixIndex::PrefixIndex(KvCache& cache) : cache_(cache), root_(std::make_unique<Node>()) {}

PrefixIndex::~PrefixIndex() { clear(); }

void PrefixIndex::touch(uint64_t& tick, Entry entry) {
  if (tick != 0) order_.erase(tick);
  tick = ++tick_;
  order_[tick] = entry;
}

void PrefixIndex::drop_runs(std::vector<PageRun>& runs) {
  for (size_t g = 0; g < runs.size(); ++g) cache_.drop(static_cast<int>(g), runs[g]);
  runs.clear();
}

PrefixIndex::Node* PrefixIndex::find(const Node& parent, std::span<const int32_t> block) const {
  const auto it = nodes_.find(chain_hash(parent.hash, block));
  if (it == nodes_.end()) return nullptr;
  Node* node = it->second.get();
  return node->parent == &parent && std::ranges::equal(node->tokens, block) ? node : nullptr;
}

PrefixIndex::Node* PrefixIndex::add(Node& parent, std::span<const int32_t> block,
                                    std::vector<PageRun> pages) {
  auto node = std::make_unique<Node>();
  node->hash = chain_hash(parent.hash, block);
  node->parent = &parent;
  node->depth = parent.depth + 1;
  node->tokens.assign(block.begin(), block.end());
  node->pages = std::move(pages);
  ++parent.n_children;
  return (nodes_[node->hash] = std::move(node)).get();
}

// Pages of an unbounded group that the block's rows fill.
PageRun PrefixIndex::block_shape(size_t g, int64_t depth) const {
  PageRun run;
  if (windowed(g)) return run;
  const RowGroup& group = cache_.spec().groups[g];
  run.first = page_count(group, (depth - 1) * kPageTokens);
  run.pages.resize(static_cast<size_t>(page_count(group, depth * kPageTokens) - run.first));
  return run;
}

// Pages of a windowed group that hold its boundary rows.
PageRun PrefixIndex::state_shape(size_t g, int64_t depth) const {
  PageRun run;
  const RowGroup& group = cache_.spec().groups[g];
  if (!windowed(g) || group.boundary_rows == 0) return run;
  const int64_t length = depth * kPageTokens;
  run.first = std::max<int64_t>(0, row_count(group, length) - group.boundary_rows) / group.rows_per_page;
  run.pages.resize(static_cast<size_t>(page_count(group, length) - run.first));
  return run;
}

bool PrefixIndex::has_shape(const Fetched& fetched, int64_t depth, bool with_state) const {
  const auto same = [](const PageRun& run, const PageRun& shape) {
    return run.pages.size() == shape.pages.size() && (run.pages.empty() || run.first == shape.first);
  };
  const size_t n = cache_.spec().groups.size();
  if (fetched.pages.size() != n || (with_state && fetched.state.size() != n)) return false;
  for (size_t g = 0; g < n; ++g) {
    if (!same(fetched.pages[g], block_shape(g, depth))) return false;
    if (with_state && !same(fetched.state[g], state_shape(g, depth))) return false;
  }
  return true;
}

PrefixIndex::Node* PrefixIndex::ensure_chain(SequenceId sequence, std::span<const int32_t> ids,
                                             int64_t n_blocks, const std::function<void(Node&)>& visit) {
  Node* node = root_.get();
  for (int64_t b = 0; b < n_blocks; ++b) {
    const std::span<const int32_t> block = block_of(ids, b);
    Node* next = find(*node, block);
    if (next == nullptr) {
      if (nodes_.contains(chain_hash(node->hash, block))) return nullptr;
      std::vector<PageRun> pages(cache_.spec().groups.size());
      for (size_t g = 0; g < pages.size(); ++g) {
        const PageRun shape = block_shape(g, b + 1);
        pages[g] = cache_.share(sequence, static_cast<int>(g), shape.first, shape.end());
        SYNOD_ASSERT(pages[g].pages.size() == shape.pages.size());  // unbounded groups keep every page
      }
      next = add(*node, block, std::move(pages));
    }
    node = next;
    if (visit) visit(*node);
  }
  return node;
}

// Takes the pages of the last boundary_rows rows before the node's end, if the sequence still has them.
void PrefixIndex::set_state(Node& node, SequenceId sequence) {
  if (!node.has_state) {
    std::vector<PageRun> state(cache_.spec().groups.size());
    for (size_t g = 0; g < state.size(); ++g) {
      const PageRun shape = state_shape(g, node.depth);
      state[g] = cache_.share(sequence, static_cast<int>(g), shape.first, shape.end());
      if (state[g].pages.size() != shape.pages.size()) {
        drop_runs(state);
        return;
      }
    }
    node.state = std::move(state);
    node.has_state = true;
  }
  touch(node.state_tick, {.node = &node});
}

void PrefixIndex::record_blocks(SequenceId sequence, std::span<const int32_t> ids, int64_t old_length) {
  const int64_t n_blocks = cache_.length(sequence) / kPageTokens;
  const int64_t known = old_length / kPageTokens;
  if (n_blocks == known) return;
  Node* last = ensure_chain(sequence, ids, n_blocks, [&](Node& node) {
    if (node.depth > known) set_state(node, sequence);
  });
  if (last != nullptr) prune(last);  // a state may be impossible
}

void PrefixIndex::record_tail(SequenceId sequence, std::span<const int32_t> ids) {
  const int64_t length = cache_.length(sequence);
  const int64_t n_blocks = length / kPageTokens;
  Node* node = ensure_chain(sequence, ids, n_blocks);
  if (node == nullptr) return;
  if (length == n_blocks * kPageTokens) {
    if (node != root_.get()) set_state(*node, sequence);
    prune(node);
    return;
  }
  const std::span<const int32_t> tokens = ids.subspan(static_cast<size_t>(n_blocks * kPageTokens),
                                                      static_cast<size_t>(length - n_blocks * kPageTokens));
  for (const auto& tail : node->tails) {
    if (std::ranges::equal(tail->tokens, tokens)) return touch(tail->tick, {.tail = tail.get()});
  }
  auto tail = std::make_unique<Tail>();
  tail->node = node;
  tail->tokens.assign(tokens.begin(), tokens.end());
  tail->floor = cache_.floor(sequence);
  for (size_t g = 0; g < cache_.spec().groups.size(); ++g) {
    const RowGroup& group = cache_.spec().groups[g];
    const int64_t first = windowed(g) ? std::max(cache_.first_page(sequence, static_cast<int>(g)),
                                                 first_page_kept(group, length))
                                      : page_count(group, n_blocks * kPageTokens);
    tail->pages.push_back(cache_.share(sequence, static_cast<int>(g), first, page_count(group, length)));
  }
  touch(tail->tick, {.tail = tail.get()});
  node->tails.push_back(std::move(tail));
  if (node->tails.size() > kMaxTails) {
    drop_tail(**std::ranges::min_element(node->tails, {}, [](const auto& t) { return t->tick; }));
  }
}

// Pages of the chain up to `node`, then those of its state or of the tail.
SequenceId PrefixIndex::adopt(const Node& node, const Tail* tail) {
  std::vector<const Node*> chain;
  for (const Node* n = &node; n->parent != nullptr; n = n->parent) chain.push_back(n);
  std::vector<PageRun> runs(cache_.spec().groups.size());
  const auto append = [&](size_t g, const PageRun& run) {
    if (run.pages.empty()) return;
    if (runs[g].pages.empty()) runs[g].first = run.first;
    SYNOD_ASSERT(runs[g].end() == run.first || runs[g].pages.empty());
    cache_.share(static_cast<int>(g), run);
    runs[g].pages.insert(runs[g].pages.end(), run.pages.begin(), run.pages.end());
  };
  for (size_t g = 0; g < runs.size(); ++g) {
    for (auto it = chain.rbegin(); it != chain.rend(); ++it) append(g, (*it)->pages[g]);
    if (tail != nullptr) append(g, tail->pages[g]);
    if (tail == nullptr && node.has_state) append(g, node.state[g]);
  }
  const int64_t length = node.depth * kPageTokens;
  if (tail == nullptr) return cache_.adopt(length, std::move(runs), length);
  return cache_.adopt(length + static_cast<int64_t>(tail->tokens.size()), std::move(runs), tail->floor);
}

std::optional<SequenceId> PrefixIndex::resume(std::span<const int32_t> ids, int64_t most) {
  fetch_from_tier(ids, most);
  Node* best = nullptr;  // deepest with a state
  Tail* best_tail = nullptr;
  int64_t tail_length = 0;
  Node* node = root_.get();
  while (node != nullptr) {
    const int64_t length = node->depth * kPageTokens;
    if (length > most) break;
    if (node->has_state) best = node;
    const std::span<const int32_t> rest = ids.subspan(static_cast<size_t>(length));
    for (const auto& tail : node->tails) {
      const int64_t usable = std::min(common_length(tail->tokens, rest), most - length);
      const auto size = static_cast<int64_t>(tail->tokens.size());
      if (usable <= 0 || size - usable > kRollbackSlack || length + usable < tail->floor) continue;
      if (length + usable > tail_length) {
        best_tail = tail.get();
        tail_length = length + usable;
      }
    }
    node =
        static_cast<int64_t>(rest.size()) < kPageTokens ? nullptr : find(*node, block_of(ids, node->depth));
  }
  const int64_t state_length = best == nullptr ? 0 : best->depth * kPageTokens;
  if (best_tail != nullptr && tail_length > state_length) {
    touch(best_tail->tick, {.tail = best_tail});
    const SequenceId sequence = adopt(*best_tail->node, best_tail);
    if (cache_.truncate(sequence, tail_length)) return sequence;
    cache_.release(sequence);
  }
  if (best == nullptr) return std::nullopt;
  touch(best->state_tick, {.node = best});
  return adopt(*best, nullptr);
}

// Brings what the tier knows of `ids` beyond the deepest state in memory.
void PrefixIndex::fetch_from_tier(std::span<const int32_t> ids, int64_t most) {
  if (!tier_.has) return;
  const int64_t n_blocks = most / kPageTokens;
  std::vector<uint64_t> hashes;
  uint64_t hash = kPrefixRoot;
  int64_t deepest = 0;  // block count of the deepest place to resume at, in memory or in the tier
  bool in_memory = true;
  Node* node = root_.get();
  for (int64_t b = 0; b < n_blocks; ++b) {
    hash = chain_hash(hash, block_of(ids, b));
    if (node != nullptr) node = find(*node, block_of(ids, b));
    const bool on_tier = tier_.has(hash, false);
    if (node == nullptr && !on_tier) break;
    hashes.push_back(hash);
    const bool state_in_memory = node != nullptr && node->has_state;
    if (!state_in_memory && !tier_.has(hash, true)) continue;
    deepest = b + 1;
    in_memory = state_in_memory;
  }
  if (deepest == 0 || in_memory) return;

  std::vector<Node*> pinned;  // loading needs memory, which may evict what was just loaded
  const auto pin = [&](Node* n) {
    ++n->pins;
    pinned.push_back(n);
  };
  node = root_.get();
  for (int64_t b = 0; b < deepest; ++b) {
    const std::span<const int32_t> block = block_of(ids, b);
    const bool last = b + 1 == deepest;
    Node* next = find(*node, block);
    if (next != nullptr) pin(next);
    if (next == nullptr || last) {
      Fetched fetched;
      const uint64_t own = hashes[static_cast<size_t>(b)];
      if (next == nullptr && nodes_.contains(own)) break;
      if (!tier_.fetch(own, node->hash, block, last, fetched)) break;
      if (!has_shape(fetched, b + 1, last)) {
        drop_runs(fetched.pages);
        drop_runs(fetched.state);
        break;
      }
      if (next == nullptr) {
        next = add(*node, block, std::move(fetched.pages));
        pin(next);
      } else {
        drop_runs(fetched.pages);
      }
      if (last && !next->has_state) {
        next->state = std::move(fetched.state);
        next->has_state = true;
        touch(next->state_tick, {.node = next});
      } else {
        drop_runs(fetched.state);
      }
    }
    node = next;
  }
  for (Node* n : pinned) --n->pins;
  if (!pinned.empty()) prune(pinned.back());
}

void PrefixIndex::drop_state(Node& node) {
  order_.erase(node.state_tick);
  node.state_tick = 0;
  node.has_state = false;
  drop_runs(node.state);
  prune(&node);
}

void PrefixIndex::drop_tail(Tail& tail) {
  order_.erase(tail.tick);
  drop_runs(tail.pages);
  Node* node = tail.node;
  std::erase_if(node->tails, [&](const auto& t) { return t.get() == &tail; });
  prune(node);
}

// Removes blocks that lead nowhere, upwards.
void PrefixIndex::prune(Node* node) {
  while (node->parent != nullptr && !node->has_state && node->n_children == 0 && node->tails.empty() &&
         node->pins == 0) {
    Node* parent = node->parent;
    drop_runs(node->pages);
    --parent->n_children;
    nodes_.erase(node->hash);
    node = parent;
  }
}

bool PrefixIndex::evict() {
  if (order_.empty()) return false;
  const Entry entry = order_.begin()->second;
  ++evictions_;
  if (entry.node != nullptr) {
    drop_state(*entry.node);
  } else {
    drop_tail(*entry.tail);
  }
  return true;
}

void PrefixIndex::clear() {
  const int64_t evictions = evictions_;
  while (evict()) {
  }
  evictions_ = evictions;
}

int64_t PrefixIndex::entries() const { return static_cast<int64_t>(order_.size()); }

PrefixBlock PrefixIndex::describe(const Node& node) const {
  PrefixBlock block{.hash = node.hash,
                    .parent = node.parent->hash,
                    .tokens = node.tokens,
                    .pages = node.pages,
                    .state = {}};
  if (node.has_state) block.state = node.state;
  return block;
}

void PrefixIndex::visit_chain(std::span<const int32_t> ids,
                              const std::function<void(const PrefixBlock&)>& visit) const {
  const Node* node = root_.get();
  for (int64_t b = 0; b < static_cast<int64_t>(ids.size()) / kPageTokens; ++b) {
    node = find(*node, block_of(ids, b));
    if (node == nullptr) return;
    visit(describe(*node));
  }
}

}  // namespace synod
