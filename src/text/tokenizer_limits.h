// Bounds on what a tokenizer file may ask for, and the spelling of byte pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace synod {

inline constexpr size_t kMaxVocabulary = size_t(1) << 22;  // the published ones have 2^17 and 2^18
inline constexpr size_t kMaxMerges = size_t(1) << 24;
inline constexpr size_t kMaxPieceBytes = size_t(1) << 16;

// 0xHH of a piece "<0xHH>" (upper-case digits), else nothing.
std::optional<uint8_t> byte_of_piece(std::string_view piece);

}  // namespace synod
