// Piece text -> token id. Open addressing with stored hashes: a vocabulary of 262144 pieces is asked 1.5
// million times while its merges are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace synod {

class PieceIndex {
 public:
  // Of equal pieces the lowest id is found; empty pieces never are. `pieces` must outlive the index.
  explicit PieceIndex(std::span<const std::string> pieces);

  std::optional<int32_t> find(std::string_view piece) const;
  // Adds another spelling of `id`, unless the spelling is taken.
  void add_alias(std::string spelling, int32_t id);

 private:
  struct Slot {
    uint32_t hash;
    int32_t entry;  // id, or n_pieces + index of an alias, or -1 when free
  };
  struct Alias {
    std::string spelling;
    int32_t id;
  };

  std::string_view text_of(int32_t entry) const;
  void insert(std::string_view piece, int32_t entry);
  size_t slot_of(std::string_view piece, uint32_t hash) const;
  void grow();

  std::span<const std::string> pieces_;
  std::vector<Alias> aliases_;
  std::vector<Slot> slots_;  // size is a power of two, at most half full
  size_t n_used_ = 0;
};

}  // namespace synod
