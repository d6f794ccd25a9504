#include "text/utf8.h"

namespace synod {
namespace {

struct LeadByte {
  uint32_t n_tail;    // continuation bytes to come
  uint8_t low, high;  // range of the first of them
  char32_t value_bits;
};

// n_tail is 0 for bytes that start no sequence.
LeadByte classify_lead(uint8_t lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return {1, 0x80, 0xBF, char32_t(lead & 0x1F)};
  if (lead >= 0xE0 && lead <= 0xEF) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80;   // below would be overlong
    const uint8_t high = lead == 0xED ? 0x9F : 0xBF;  // above would be a surrogate
    return {2, low, high, char32_t(lead & 0x0F)};
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xF4 ? 0x8F : 0xBF;  // above would pass U+10FFFF
    return {3, low, high, char32_t(lead & 0x07)};
  }
  return {0, 0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t pos) {
  const auto lead = uint8_t(text[pos]);
  if (lead < 0x80) return {lead, 1, Utf8Status::kValid};
  const LeadByte info = classify_lead(lead);
  if (info.n_tail == 0) return {0, 1, Utf8Status::kInvalid};
  char32_t value = info.value_bits;
  uint8_t low = info.low, high = info.high;
  for (uint32_t i = 1; i <= info.n_tail; ++i) {
    if (pos + i >= text.size()) return {0, i, Utf8Status::kTruncated};
    const auto byte = uint8_t(text[pos + i]);
    if (byte < low || byte > high) return {0, i, Utf8Status::kInvalid};
    value = (value << 6) | (byte & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {value, info.n_tail + 1, Utf8Status::kValid};
}

void append_utf8(std::string& out, char32_t value) {
  if (value < 0x80) {
    out.push_back(char(value));
  } else if (value < 0x800) {
    out.push_back(char(0xC0 | (value >> 6)));
    out.push_back(char(0x80 | (value & 0x3F)));
  } else if (value < 0x10000) {
    out.push_back(char(0xE0 | (value >> 12)));
    out.push_back(char(0x80 | ((value >> 6) & 0x3F)));
    out.push_back(char(0x80 | (value & 0x3F)));
  } else {
    out.push_back(char(0xF0 | (value >> 18)));
    out.push_back(char(0x80 | ((value >> 12) & 0x3F)));
    out.push_back(char(0x80 | ((value >> 6) & 0x3F)));
    out.push_back(char(0x80 | (value & 0x3F)));
  }
}

size_t append_repaired(std::string& out, std::string_view bytes, Utf8Repair repair, bool at_end) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Char next = decode_utf8(bytes, pos);
    if (next.status == Utf8Status::kTruncated && !at_end) break;
    if (next.status == Utf8Status::kValid) {
      out.append(bytes.substr(pos, next.length));
    } else {
      const uint32_t n_marks = repair == Utf8Repair::kPerByte ? next.length : 1;
      for (uint32_t i = 0; i < n_marks; ++i) append_utf8(out, 0xFFFD);
    }
    pos += next.length;
  }
  return pos;
}

}  // namespace synod
