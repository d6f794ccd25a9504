// Which prefixes are in memory: pages shared between equal beginnings of live and recent sequences.
//
// A tree of blocks of kPageTokens tokens, found by a chained hash of token ids and verified id by id (a
// collision is a miss, never a wrong row). A block owns the pages of unbounded groups that its tokens fill.
// To resume at its end one also needs the last rows of the windowed groups (a sliding window, a compressor's
// open rows): that is the block's state, references to the pages that hold RowGroup::boundary_rows. Nothing
// is copied: a full page is immutable.
//
// The end of a sequence is rarely a block's end. It is kept as a tail: the tokens after the last block with
// the partial pages as they are; who continues from it copies the pages when it writes (KvCache). A tail can
// be entered up to kRollbackSlack tokens before its end.
//
// States and tails are what one can resume from; they are evicted least recently used first, and a block
// without state goes with its last descendant. Other shapes: one entry per sequence with all its pages (as a
// slot) makes branching prompts compete; states for every block only at powers of two would save window pages
// but lose the place where prompts part. Eviction by use finds that place without being told.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/kv_cache.h"

namespace synod {

// Chained hash of the blocks before and `block` ([kPageTokens] ids). `parent` of the first block:
// kPrefixRoot.
inline constexpr uint64_t kPrefixRoot = 0x9AE16A3B2F90404FU;
uint64_t chain_hash(uint64_t parent, std::span<const int32_t> block);

// A block with its pages, as another tier stores or brings it.
struct PrefixBlock {
  uint64_t hash = 0, parent = 0;
  std::span<const int32_t> tokens;  // [kPageTokens]
  std::span<const PageRun> pages;   // per group: unbounded groups' pages of this block, else empty
  std::span<const PageRun> state;   // per group: windowed groups' pages; empty span = no state
};

class PrefixIndex {
 public:
  explicit PrefixIndex(KvCache& cache);
  ~PrefixIndex();  // drops all pages
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // A sequence that holds the longest known beginning of `ids`, at most `most` tokens; nullopt when none.
  std::optional<SequenceId> resume(std::span<const int32_t> ids, int64_t most);

  // Call between KvCache::grow and trim: records the blocks of `sequence` that ended after `old_length`.
  // `ids` are all its tokens.
  void record_blocks(SequenceId sequence, std::span<const int32_t> ids, int64_t old_length);
  // Records the whole sequence as it is, with its tail.
  void record_tail(SequenceId sequence, std::span<const int32_t> ids);

  // Drops the least recently used state or tail. False when there is none.
  bool evict();
  void clear();

  // A second tier. `has` answers from memory; `fetch` brings a block: it allocates pages, fills them and
  // returns true, or returns false (missing, damaged) and leaves nothing behind.
  struct Fetched {
    std::vector<PageRun> pages, state;  // as in PrefixBlock
  };
  struct Tier {
    std::function<bool(uint64_t hash, bool with_state)> has;
    std::function<bool(uint64_t hash, uint64_t parent, std::span<const int32_t> tokens, bool with_state,
                       Fetched& out)>
        fetch;
  };
  void set_tier(Tier tier) { tier_ = std::move(tier); }
  // The known blocks of `ids`, first to last.
  void visit_chain(std::span<const int32_t> ids, const std::function<void(const PrefixBlock&)>& visit) const;

  int64_t entries() const;  // states and tails
  int64_t evictions() const { return evictions_; }

 private:
  struct Node;
  struct Tail;
  struct Entry {  // what the order of eviction refers to
    Node* node = nullptr;
    Tail* tail = nullptr;
  };

  bool windowed(size_t group) const { return cache_.spec().groups[group].window > 0; }
  Node* find(const Node& parent, std::span<const int32_t> block) const;
  Node* add(Node& parent, std::span<const int32_t> block, std::vector<PageRun> pages);
  void set_state(Node& node, SequenceId sequence);
  // The nodes of the first `n_blocks` blocks; those that are missing take their pages from `sequence`. Null
  // after a collision of hashes.
  Node* ensure_chain(SequenceId sequence, std::span<const int32_t> ids, int64_t n_blocks,
                     const std::function<void(Node&)>& visit = {});
  void fetch_from_tier(std::span<const int32_t> ids, int64_t most);
  PageRun block_shape(size_t group, int64_t depth) const;  // ids of pages are not set
  PageRun state_shape(size_t group, int64_t depth) const;
  bool has_shape(const Fetched& fetched, int64_t depth, bool with_state) const;
  void touch(uint64_t& tick, Entry entry);
  void drop_state(Node& node);
  void drop_tail(Tail& tail);
  void prune(Node* node);
  void drop_runs(std::vector<PageRun>& runs);
  SequenceId adopt(const Node& node, const Tail* tail);
  PrefixBlock describe(const Node& node) const;

  KvCache& cache_;
  Tier tier_;
  std::unique_ptr<Node> root_;
  std::unordered_map<uint64_t, std::unique_ptr<Node>> nodes_;
  std::map<uint64_t, Entry> order_;  // by tick, oldest first
  uint64_t tick_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace synod
