// The published patterns, written by hand because their look-ahead and backtracking are quadratic in runs of
// blanks when a general engine runs them:
//   1. \p{N}{1,3}
//   2. [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+
//   3. (a) [ASCII punctuation][A-Za-z]+          (b) [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//      (c) ?[\p{P}\p{S}]+[\r\n]*                 (d) \s*[\r\n]+   (e) \s+(?!\S)   (f) \s+
// Matches become pieces, and so does the text between two matches.
#include "text/deepseek_split.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace synod {
namespace {

enum ClassBits : uint16_t {
  kLetter = 1,
  kMark = 2,
  kNumber = 4,
  kPunctuationOrSymbol = 8,
  kSpace = 16,      // the White_Space property
  kLineBreak = 32,  // CR, LF
  kBlank = 64,      // U+0020
  kAsciiLetter = 128,
  kAsciiPunctuation = 256,
  kIdeographOrKana = 512,  // of the second split
};

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

uint16_t category_bits(char32_t c) {
  switch (utf8proc_category(utf8proc_int32_t(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kPunctuationOrSymbol;
    default:
      return 0;
  }
}

uint16_t classify(char32_t c) {
  uint16_t bits = category_bits(c);
  if (is_white_space(c)) bits |= kSpace;
  if (c == '\r' || c == '\n') bits |= kLineBreak;
  if (c == ' ') bits |= kBlank;
  if (c < 0x80 && (bits & kLetter)) bits |= kAsciiLetter;
  if (c < 0x80 && (bits & kPunctuationOrSymbol)) bits |= kAsciiPunctuation;
  if ((c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF)) bits |= kIdeographOrKana;
  return bits;
}

struct Char {
  uint32_t offset;  // bytes from the start of the text
  uint16_t bits;
};

class Splitter {
 public:
  explicit Splitter(std::string_view text) : text_(text) {
    chars_.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char next = decode_utf8(text, pos);
      const bool valid = next.status == Utf8Status::kValid;
      chars_.push_back({uint32_t(pos), valid ? class_of(next.value) : uint16_t(0)});
      pos += valid ? next.length : 1;
    }
  }

  std::vector<std::string_view> run() {
    split_numbers();
    return std::move(pieces_);
  }

 private:
  static uint16_t class_of(char32_t c) {
    static const std::array<uint16_t, 0x80> ascii = [] {
      std::array<uint16_t, 0x80> table{};
      for (size_t i = 0; i < table.size(); ++i) table[i] = classify(char32_t(i));
      return table;
    }();
    return c < ascii.size() ? ascii[c] : classify(c);
  }

  bool has(size_t at, size_t end, uint16_t bits) const { return at < end && (chars_[at].bits & bits) != 0; }

  // First place from `at` on without any of `bits`.
  size_t skip(size_t at, size_t end, uint16_t bits) const {
    while (has(at, end, bits)) ++at;
    return at;
  }

  void emit(size_t begin, size_t end) {
    if (begin == end) return;
    const size_t first = chars_[begin].offset;
    const size_t last = end < chars_.size() ? chars_[end].offset : text_.size();
    pieces_.push_back(text_.substr(first, last - first));
  }

  void split_numbers() {
    size_t gap = 0;
    for (size_t at = 0; at < chars_.size();) {
      if (!has(at, chars_.size(), kNumber)) {
        ++at;
        continue;
      }
      split_scripts(gap, at);
      const size_t end = skip(at, std::min(at + 3, chars_.size()), kNumber);
      emit(at, end);  // the later splits match nothing in it
      gap = at = end;
    }
    split_scripts(gap, chars_.size());
  }

  void split_scripts(size_t begin, size_t end) {
    size_t gap = begin;
    for (size_t at = begin; at < end;) {
      const size_t run_end = skip(at, end, kIdeographOrKana);
      if (run_end == at) {
        ++at;
        continue;
      }
      split_words(gap, at);
      split_words(at, run_end);  // kana marks and the middle dot are cut off here
      gap = at = run_end;
    }
    split_words(gap, end);
  }

  void split_words(size_t begin, size_t end) {
    size_t gap = begin;
    for (size_t at = begin; at < end;) {
      const size_t match_end = match_word(at, end);
      if (match_end == at) {
        ++at;
        continue;
      }
      emit(gap, at);
      emit(at, match_end);
      gap = at = match_end;
    }
    emit(gap, end);
  }

  // End of the match of the third pattern at `at`, or `at`.
  size_t match_word(size_t at, size_t end) const {
    const uint16_t bits = chars_[at].bits;
    if ((bits & kAsciiPunctuation) && has(at + 1, end, kAsciiLetter)) {
      return skip(at + 1, end, kAsciiLetter);  // (a)
    }
    const bool may_lead = (bits & (kLineBreak | kLetter | kPunctuationOrSymbol)) == 0;
    if (may_lead && has(at + 1, end, kLetter | kMark)) return skip(at + 1, end, kLetter | kMark);  // (b)
    if (bits & (kLetter | kMark)) return skip(at, end, kLetter | kMark);                           // (b)
    const size_t symbol = (bits & kBlank) ? at + 1 : at;
    if (has(symbol, end, kPunctuationOrSymbol)) {
      return skip(skip(symbol, end, kPunctuationOrSymbol), end, kLineBreak);  // (c)
    }
    return (bits & kSpace) ? match_space(at, end) : at;
  }

  // A run of n blanks is looked at no more than three times: up to its last line break, up to its last blank,
  // and that blank.
  size_t match_space(size_t at, size_t end) const {
    const size_t run_end = skip(at, end, kSpace);
    for (size_t i = run_end; i > at; --i) {
      if (chars_[i - 1].bits & kLineBreak) return i;  // (d)
    }
    const bool at_end = run_end == end;
    return at_end || run_end - at == 1 ? run_end : run_end - 1;  // (e), (f)
  }

  std::string_view text_;
  std::vector<Char> chars_;
  std::vector<std::string_view> pieces_;
};

}  // namespace

std::vector<std::string_view> split_deepseek(std::string_view text) { return Splitter(text).run(); }

}  // namespace synod
