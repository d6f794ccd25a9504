#include "text/piece_index.h"

#include <bit>
#include <functional>

namespace synod {
namespace {

uint32_t hash_of(std::string_view piece) { return uint32_t(std::hash<std::string_view>{}(piece)); }

}  // namespace

PieceIndex::PieceIndex(std::span<const std::string> pieces)
    : pieces_(pieces), slots_(std::bit_ceil(pieces.size() * 2 + 16), Slot{0, -1}) {
  for (size_t id = 0; id < pieces.size(); ++id) insert(pieces[id], int32_t(id));
}

std::optional<int32_t> PieceIndex::find(std::string_view piece) const {
  const Slot& slot = slots_[slot_of(piece, hash_of(piece))];
  if (slot.entry < 0) return std::nullopt;
  const auto entry = size_t(slot.entry);
  return entry < pieces_.size() ? slot.entry : aliases_[entry - pieces_.size()].id;
}

void PieceIndex::add_alias(std::string spelling, int32_t id) {
  if (find(spelling)) return;
  aliases_.push_back({std::move(spelling), id});
  insert(aliases_.back().spelling, int32_t(pieces_.size() + aliases_.size() - 1));
}

std::string_view PieceIndex::text_of(int32_t entry) const {
  const auto index = size_t(entry);
  return index < pieces_.size() ? pieces_[index] : aliases_[index - pieces_.size()].spelling;
}

void PieceIndex::insert(std::string_view piece, int32_t entry) {
  if (piece.empty()) return;
  if ((n_used_ + 1) * 2 > slots_.size()) grow();
  const uint32_t hash = hash_of(piece);
  Slot& slot = slots_[slot_of(piece, hash)];
  if (slot.entry >= 0) return;
  slot = {hash, entry};
  ++n_used_;
}

size_t PieceIndex::slot_of(std::string_view piece, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].entry >= 0 && (slots_[at].hash != hash || text_of(slots_[at].entry) != piece)) {
    at = (at + 1) & mask;
  }
  return at;
}

void PieceIndex::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{0, -1});
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.entry >= 0) slots_[slot_of(text_of(slot.entry), slot.hash)] = slot;
  }
}

}  // namespace synod
