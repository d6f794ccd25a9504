#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace synod {
namespace {

uint64_t pair_key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

}  // namespace

MergeTable::MergeTable(size_t n_merges)
    : slots_(std::bit_ceil(n_merges * 2 + 16), Slot{0, kNoRank}), merged_(n_merges, -1) {}

void MergeTable::add(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  const uint64_t pair = pair_key(left, right);
  slots_[slot_of(pair)] = {pair, rank};
  merged_[rank] = merged;
}

uint32_t MergeTable::rank(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].rank;
}

size_t MergeTable::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  // The golden ratio spreads consecutive ids; the high half of the product depends on every bit of the pair.
  size_t at = size_t((pair ^ (pair >> 29)) * 0x9E3779B97F4A7C15u >> 32) & mask;
  while (slots_[at].rank != kNoRank && slots_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

void BpeMerger::merge(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) {
  if (symbols.empty()) return;
  link(symbols);
  while (!heap_.empty()) {
    const uint64_t lowest = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    const auto at = uint32_t(lowest);
    if (nodes_[at].rank == uint32_t(lowest >> 32)) join(at);
  }
  // A merged node keeps the place of its left part, so the text always starts at node 0.
  for (uint32_t at = 0; at != kEnd; at = nodes_[at].next) out.push_back(nodes_[at].id);
}

void BpeMerger::link(const std::vector<int32_t>& symbols) {
  const size_t n = symbols.size();
  nodes_.resize(n);
  heap_.clear();
  for (size_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    const uint32_t rank = last ? MergeTable::kNoRank : table_.rank(symbols[i], symbols[i + 1]);
    nodes_[i] = {symbols[i], i == 0 ? kEnd : uint32_t(i - 1), last ? kEnd : uint32_t(i + 1), rank};
    if (rank != MergeTable::kNoRank) heap_.push_back(uint64_t(rank) << 32 | i);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void BpeMerger::join(uint32_t at) {
  Node& left = nodes_[at];
  Node& right = nodes_[left.next];
  left.id = table_.merged(left.rank);
  left.next = right.next;
  right.rank = MergeTable::kNoRank;
  if (left.next != kEnd) nodes_[left.next].prev = at;
  rerank(at);
  if (left.prev != kEnd) rerank(left.prev);
}

void BpeMerger::rerank(uint32_t at) {
  Node& node = nodes_[at];
  node.rank = node.next == kEnd ? MergeTable::kNoRank : table_.rank(node.id, nodes_[node.next].id);
  if (node.rank == MergeTable::kNoRank) return;
  heap_.push_back(uint64_t(node.rank) << 32 | at);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

}  // namespace synod
