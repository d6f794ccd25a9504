// Gives equal sequences of 32-bit words the same small number. Never forgets until clear().
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace synod {

class SpanInterner {
 public:
  uint32_t intern(std::span<const uint32_t> words) {
    if ((size() + 1) * 2 > table_.size()) grow();
    const uint64_t hash = hash_of(words);
    size_t slot = hash & (table_.size() - 1);
    for (; table_[slot] != kFree; slot = (slot + 1) & (table_.size() - 1)) {
      if (std::ranges::equal(at(table_[slot]), words)) return table_[slot];
    }
    const auto id = uint32_t(size());
    table_[slot] = id;
    words_.insert(words_.end(), words.begin(), words.end());
    ends_.push_back(uint32_t(words_.size()));
    return id;
  }

  // Valid until the next intern().
  std::span<const uint32_t> at(uint32_t id) const {
    const size_t begin = id == 0 ? 0 : ends_[id - 1];
    return {words_.data() + begin, words_.data() + ends_[id]};
  }

  size_t size() const { return ends_.size(); }
  size_t bytes() const { return 4 * (words_.size() + ends_.size() + table_.size()); }
  void clear() {
    words_.clear();
    ends_.clear();
    table_.clear();
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;

  // FNV-1a over words with a final mix: inputs are small numbers, a table has to spread them, no more.
  static uint64_t hash_of(std::span<const uint32_t> words) {
    uint64_t hash = 0xcbf29ce484222325u ^ words.size();
    for (const uint32_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
  }

  void grow() {
    table_.assign(std::max<size_t>(16, table_.size() * 2), kFree);
    for (uint32_t id = 0; id < size(); ++id) {
      size_t slot = hash_of(at(id)) & (table_.size() - 1);
      while (table_[slot] != kFree) slot = (slot + 1) & (table_.size() - 1);
      table_[slot] = id;
    }
  }

  std::vector<uint32_t> words_, ends_, table_;
};

// A set of 64-bit keys that is emptied often and cheaply.
class KeySet {
 public:
  // True when `key` was not there.
  bool insert(uint64_t key) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    if (!place(key)) return false;
    ++size_;
    return true;
  }
  void clear() {
    size_ = 0;
    ++epoch_;
  }

 private:
  struct Slot {
    uint64_t key = 0, epoch = 0;
  };

  bool place(uint64_t key) {
    size_t slot = (key * 0x9E3779B97F4A7C15u >> 20) & (slots_.size() - 1);
    while (slots_[slot].epoch == epoch_) {
      if (slots_[slot].key == key) return false;
      slot = (slot + 1) & (slots_.size() - 1);
    }
    slots_[slot] = {key, epoch_};
    return true;
  }

  void grow() {
    std::vector<Slot> old(std::max<size_t>(64, slots_.size() * 2));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.epoch == epoch_) place(slot.key);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
  uint64_t epoch_ = 1;
};

}  // namespace synod
