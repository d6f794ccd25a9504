// The byte alphabet of byte-level BPE: every byte is written as one printable character, so that pieces are
// text. Bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68, ascending, are U+0100, U+0101,
// ...
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace synod {

char32_t byte_to_character(unsigned char byte);

// Bytes of a piece written in the alphabet; nothing when it holds any other character.
std::optional<std::string> bytes_from_alphabet(std::string_view piece);

}  // namespace synod
