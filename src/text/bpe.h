// The merging half of BPE: a table of ranked pairs, and the loop that applies it in O(n log n).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace synod {

// (left id, right id) -> rank and merged id.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  explicit MergeTable(size_t n_merges);

  // Ids are >= 0. A pair given twice keeps its last rank.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t merged);
  // kNoRank when the pair does not merge.
  uint32_t rank(int32_t left, int32_t right) const;
  int32_t merged(uint32_t rank) const { return merged_[rank]; }

 private:
  struct Slot {
    uint64_t pair;
    uint32_t rank;  // kNoRank: free
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;      // size is a power of two, at most half full
  std::vector<int32_t> merged_;  // by rank
};

// Working memory of one caller; reuse it over the pieces of a text.
class BpeMerger {
 public:
  explicit BpeMerger(const MergeTable& table) : table_(table) {}

  // Merges the adjacent pair of lowest rank, leftmost first, until no pair is in the table.
  // Appends the result to `out`. `symbols` are ids >= 0, fewer than 2^31.
  void merge(const std::vector<int32_t>& symbols, std::vector<int32_t>& out);

 private:
  struct Node {
    int32_t id;
    uint32_t prev, next;  // kEnd outside the text
    uint32_t rank;        // of the pair (this, next)
  };
  static constexpr uint32_t kEnd = UINT32_MAX;

  void link(const std::vector<int32_t>& symbols);
  void join(uint32_t at);
  void rerank(uint32_t at);

  const MergeTable& table_;
  std::vector<Node> nodes_;
  // rank << 32 | position: the order BPE asks for is the order of these numbers. An entry is stale when its
  // node has another rank by now; pairs only grow, so a node never returns to an earlier rank.
  std::vector<uint64_t> heap_;
};

}  // namespace synod
