// Slots as llama.cpp's clients know them: numbers under which the text of the last request can be saved,
// restored and forgotten. The engine has none (equal beginnings are found whoever wrote them), so this only
// remembers token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace synod::server {

class SlotBook {
 public:
  explicit SlotBook(int64_t n_slots) : slots_(static_cast<size_t>(n_slots)) {}

  // A slot while a request runs. When it is over, the slot has its text.
  class Claim {
   public:
    Claim(SlotBook& book, int64_t slot) : book_(book), slot_(slot) {}
    ~Claim() { book_.leave(slot_, std::move(ids)); }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    int64_t slot() const { return slot_; }

    std::vector<int32_t> ids;  // prompt and output so far

   private:
    SlotBook& book_;
    int64_t slot_;
  };

  int64_t size() const { return static_cast<int64_t>(slots_.size()); }

  // Slot `wanted` (below size()), or the first that nobody claims; null when there is none.
  std::unique_ptr<Claim> claim(std::optional<int64_t> wanted) {
    const std::lock_guard lock(mutex_);
    size_t slot = static_cast<size_t>(wanted.value_or(0));
    while (!wanted && slot < slots_.size() && slots_[slot].n_claims > 0) ++slot;
    if (slot >= slots_.size()) return nullptr;
    ++slots_[slot].n_claims;
    return std::make_unique<Claim>(*this, static_cast<int64_t>(slot));
  }

  std::vector<int32_t> ids(int64_t slot) const {
    const std::lock_guard lock(mutex_);
    return slots_[static_cast<size_t>(slot)].ids;
  }
  // Returns the ids that were there.
  std::vector<int32_t> replace(int64_t slot, std::vector<int32_t> ids) {
    const std::lock_guard lock(mutex_);
    return std::exchange(slots_[static_cast<size_t>(slot)].ids, std::move(ids));
  }

 private:
  struct Slot {
    std::vector<int32_t> ids;
    int64_t n_claims = 0;  // two requests may name the same slot: the later end counts
  };

  void leave(int64_t slot, std::vector<int32_t> ids) {
    const std::lock_guard lock(mutex_);
    slots_[static_cast<size_t>(slot)].ids = std::move(ids);
    --slots_[static_cast<size_t>(slot)].n_claims;
  }

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace synod::server
