// UTF-8 by the letter of the Unicode standard (table 3-7): no overlong forms, no surrogates, nothing past
// U+10FFFF. Damaged text is cut into maximal subparts, so that streaming and whole decoding agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace synod {

enum class Utf8Status : uint8_t {
  kValid,
  kInvalid,    // `length` bytes can never become a character
  kTruncated,  // `length` bytes at the end of the text could still become one
};

struct Utf8Char {
  char32_t value;   // only for kValid
  uint32_t length;  // bytes, 1..4
  Utf8Status status;
};

// The character at `pos` < text.size().
Utf8Char decode_utf8(std::string_view text, size_t pos);

// `value` must be a Unicode scalar value.
void append_utf8(std::string& out, char32_t value);

// How damaged text is replaced. Both keep every valid character.
enum class Utf8Repair : uint8_t {
  kPerByte,     // one U+FFFD for every byte that belongs to no character
  kPerSubpart,  // one U+FFFD for every maximal subpart
};

// Appends `bytes` as valid UTF-8 and returns how many bytes were used: all of them, or, unless `at_end`, all
// but a last sequence that is still incomplete (at most 3 bytes).
size_t append_repaired(std::string& out, std::string_view bytes, Utf8Repair repair, bool at_end);

}  // namespace synod
