#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace synod {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr int kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};  // -1 where no byte is written so

  constexpr Alphabet() {
    for (auto& entry : byte) entry = -1;
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      character[size_t(b)] = stands_for_itself(b) ? char32_t(b) : next++;
      byte[character[size_t(b)]] = int16_t(b);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

char32_t byte_to_character(unsigned char byte) { return kAlphabet.character[byte]; }

std::optional<std::string> bytes_from_alphabet(std::string_view piece) {
  std::string bytes;
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Char next = decode_utf8(piece, pos);
    if (next.status != Utf8Status::kValid || next.value >= kAlphabetEnd) return std::nullopt;
    const int16_t byte = kAlphabet.byte[next.value];
    if (byte < 0) return std::nullopt;
    bytes.push_back(char(byte));
    pos += next.length;
  }
  return bytes;
}

}  // namespace synod
