#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "base/error.h"
#include "text/utf8.h"

namespace synod::jinja {

void syntax_error(int line, const std::string& message) { bad_file("line {}: {}", line, message); }

namespace {

using Kind = Token::Kind;

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Without the white space at its end.
std::string_view right_stripped(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    at += c.length;
    if (c.status != Utf8Status::kValid || !is_space(c.value)) end = at;
  }
  return text.substr(0, end);
}

class Lexer {
 public:
  Lexer(std::string_view source, const Whitespace& whitespace) : source_(source), whitespace_(whitespace) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) template_text();
    tokens_.push_back({Kind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  // Up to the next tag and through it.
  void template_text() {
    const size_t begin = at_;
    size_t open = source_.find('{', at_);
    while (open != std::string_view::npos) {
      const char next = open + 1 < source_.size() ? source_[open + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      open = source_.find('{', open + 1);
    }
    if (open == std::string_view::npos) {
      data(source_.substr(begin));
      at_ = source_.size();
      return;
    }
    const char kind = source_[open + 1];
    size_t after = open + 2;
    const char sign = after < source_.size() ? source_[after] : '\0';
    std::string_view text = source_.substr(begin, open - begin);
    if (sign == '-') {
      ++after;
      text = right_stripped(text);
    } else if (sign == '+') {
      ++after;
    } else if (kind != '{' && whitespace_.lstrip_blocks) {
      text = left_stripped_line(text, begin);
    }
    data(text);
    count_lines(source_.substr(begin + text.size(), open - begin - text.size()));
    at_ = after;
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      tokens_.push_back({Kind::kOutputBegin, "", line_});
      expression("}}", Kind::kOutputEnd);
    } else if (!raw_block()) {
      tokens_.push_back({Kind::kBlockBegin, "", line_});
      expression("%}", Kind::kBlockEnd);
    }
  }

  // Drops blanks between the beginning of the line and a tag.
  std::string_view left_stripped_line(std::string_view text, size_t begin) const {
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const bool at_line_start = line > 0 || begin == 0 || source_[begin - 1] == '\n';
    if (!at_line_start) return text;
    for (const char c : text.substr(line)) {
      if (c != ' ' && c != '\t') return text;
    }
    return text.substr(0, line);
  }

  void data(std::string_view text) {
    if (!text.empty()) tokens_.push_back({Kind::kData, std::string(text), line_});
    count_lines(text);
  }

  void count_lines(std::string_view text) {
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  void advance(size_t to) {
    count_lines(source_.substr(at_, to - at_));
    at_ = to;
  }

  // Behind a tag that ends at `end` with `sign` before it.
  void after_tag(size_t end, char sign, bool is_block) {
    advance(end);
    if (sign == '-') {
      size_t to = at_;
      while (to < source_.size()) {
        const Utf8Char c = decode_utf8(source_, to);
        if (c.status != Utf8Status::kValid || !is_space(c.value)) break;
        to += c.length;
      }
      advance(to);
    } else if (is_block && sign != '+' && whitespace_.trim_blocks && at_ < source_.size() &&
               source_[at_] == '\n') {
      advance(at_ + 1);
    }
  }

  void comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string_view::npos) syntax_error(line_, "a comment without end: expected #}");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    after_tag(close + 2, sign, true);
  }

  // {% raw %} ... {% endraw %}: the text between is data.
  bool raw_block() {
    size_t at = at_;
    const auto blanks = [&] {
      while (at < source_.size() && is_ascii_space(source_[at])) ++at;
    };
    const auto word = [&](std::string_view text) {
      blanks();
      if (source_.substr(at, text.size()) != text) return false;
      at += text.size();
      blanks();
      return true;
    };
    const auto close = [&]() -> std::optional<char> {
      const char sign =
          at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
      if (sign != '\0') ++at;
      if (source_.substr(at, 2) != "%}") return std::nullopt;
      at += 2;
      return sign;
    };
    if (!word("raw")) return false;
    const auto sign = close();
    if (!sign) return false;
    after_tag(at, *sign, true);
    const size_t begin = at_;
    for (size_t open = source_.find("{%", at_); open != std::string_view::npos;
         open = source_.find("{%", open + 1)) {
      at = open + 2;
      const char left = at < source_.size() ? source_[at] : '\0';
      if (left == '-' || left == '+') ++at;
      if (!word("endraw")) continue;
      const auto right = close();
      if (!right) continue;
      std::string_view text = source_.substr(begin, open - begin);
      if (left == '-') {
        text = right_stripped(text);
      } else if (left != '+' && whitespace_.lstrip_blocks) {
        text = left_stripped_line(text, begin);
      }
      if (!text.empty()) tokens_.push_back({Kind::kData, std::string(text), line_});
      after_tag(at, *right, true);
      return true;
    }
    syntax_error(line_, "a raw block without end: expected {% endraw %}");
  }

  void expression(std::string_view close, Kind end_kind) {
    std::string brackets;  // those that are open
    while (true) {
      size_t to = at_;
      while (to < source_.size() && is_ascii_space(source_[to])) ++to;
      advance(to);
      if (at_ >= source_.size()) {
        syntax_error(line_, fmt::format("a tag without end: expected {}", close));
      }
      if (brackets.empty()) {
        const char sign = source_[at_] == '-' || source_[at_] == '+' ? source_[at_] : '\0';
        const size_t at = at_ + (sign != '\0' ? 1 : 0);
        if (source_.substr(at, 2) == close && (sign != '+' || end_kind == Kind::kBlockEnd)) {
          tokens_.push_back({end_kind, "", line_});
          after_tag(at + 2, sign, end_kind == Kind::kBlockEnd);
          return;
        }
      }
      const char c = source_[at_];
      if (c == '"' || c == '\'') {
        string(c);
      } else if (is_digit(c)) {
        number();
      } else if (is_name_start(c)) {
        const size_t begin = at_;
        while (at_ < source_.size() && (is_name_start(source_[at_]) || is_digit(source_[at_]))) ++at_;
        tokens_.push_back({Kind::kName, std::string(source_.substr(begin, at_ - begin)), line_});
      } else {
        operators(brackets);
      }
    }
  }

  void operators(std::string& brackets) {
    constexpr std::array<std::string_view, 6> kTwo = {"**", "//", "==", "!=", "<=", ">="};
    std::string_view text = source_.substr(at_, 2);
    if (std::find(kTwo.begin(), kTwo.end(), text) == kTwo.end()) text = source_.substr(at_, 1);
    const char c = text[0];
    if (text.size() == 1 && std::string_view("+-*/%~|.:,=<>()[]{}").find(c) == std::string_view::npos) {
      syntax_error(line_, fmt::format("unexpected character '{}'",
                                      c >= ' ' && c < 127 ? std::string(1, c) : std::string("?")));
    }
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) {
        syntax_error(line_, fmt::format("unexpected '{}': {}", c,
                                        brackets.empty() ? "no bracket is open"
                                                         : fmt::format("expected '{}'", brackets.back())));
      }
      brackets.pop_back();
    }
    tokens_.push_back({Kind::kOperator, std::string(text), line_});
    at_ += text.size();
  }

  void number() {
    const size_t begin = at_;
    bool is_float = false;
    std::string digits;
    if (source_[at_] == '0' && at_ + 1 < source_.size() &&
        (source_[at_ + 1] == 'x' || source_[at_ + 1] == 'X')) {
      at_ += 2;
      digits = "0x";
      while (at_ < source_.size() &&
             (std::isxdigit(static_cast<unsigned char>(source_[at_])) != 0 || source_[at_] == '_')) {
        if (source_[at_] != '_') digits += source_[at_];
        ++at_;
      }
    } else {
      const auto take_digits = [&] {
        while (at_ < source_.size() && (is_digit(source_[at_]) || source_[at_] == '_')) {
          if (source_[at_] != '_') digits += source_[at_];
          ++at_;
        }
      };
      const auto digit_at = [&](size_t at) { return at < source_.size() && is_digit(source_[at]); };
      take_digits();
      if (at_ < source_.size() && source_[at_] == '.' && digit_at(at_ + 1)) {
        is_float = true;
        digits += source_[at_++];
        take_digits();
      }
      if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
        const bool sign = at_ + 1 < source_.size() && (source_[at_ + 1] == '+' || source_[at_ + 1] == '-');
        if (digit_at(at_ + (sign ? 2 : 1))) {
          is_float = true;
          digits += source_.substr(at_, sign ? 2 : 1);
          at_ += sign ? 2 : 1;
          take_digits();
        }
      }
    }
    if (at_ - begin > 300) syntax_error(line_, "a number of more than 300 digits");
    tokens_.push_back({is_float ? Kind::kFloat : Kind::kInteger, digits, line_});
  }

  // Python's escapes.
  void string(char quote) {
    const int line = line_;
    std::string text;
    size_t at = at_ + 1;
    while (true) {
      if (at >= source_.size()) syntax_error(line, "a string without end");
      const char c = source_[at];
      if (c == quote) break;
      if (c != '\\' || at + 1 >= source_.size()) {
        text += c;
        ++at;
        continue;
      }
      at = escape(at + 1, text);
    }
    tokens_.push_back({Kind::kString, std::move(text), line});
    advance(at + 1);
  }

  // The escape whose letter is at `at`; the position behind it.
  size_t escape(size_t at, std::string& text) {
    const char c = source_[at];
    const auto hex = [&](size_t n) -> size_t {
      char32_t value = 0;
      for (size_t i = 1; i <= n; ++i) {
        const char h = at + i < source_.size() ? source_[at + i] : '\0';
        if (std::isxdigit(static_cast<unsigned char>(h)) == 0) {
          syntax_error(line_, fmt::format("\\{}: expected {} hexadecimal digits", c, n));
        }
        value = value * 16 + static_cast<char32_t>(is_digit(h) ? h - '0' : (h | 32) - 'a' + 10);
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) value = 0xFFFD;
      append_utf8(text, value);
      return at + n + 1;
    };
    switch (c) {
      case 'n':
        text += '\n';
        return at + 1;
      case 't':
        text += '\t';
        return at + 1;
      case 'r':
        text += '\r';
        return at + 1;
      case 'a':
        text += '\a';
        return at + 1;
      case 'b':
        text += '\b';
        return at + 1;
      case 'f':
        text += '\f';
        return at + 1;
      case 'v':
        text += '\v';
        return at + 1;
      case '\\':
      case '\'':
      case '"':
        text += c;
        return at + 1;
      case '\n':
        return at + 1;
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        break;
    }
    if (c < '0' || c > '7') {  // not an escape: both stay
      text += '\\';
      return at;
    }
    char32_t value = 0;
    size_t end = at;
    while (end < at + 3 && end < source_.size() && source_[end] >= '0' && source_[end] <= '7') {
      value = value * 8 + static_cast<char32_t>(source_[end++] - '0');
    }
    append_utf8(text, value);
    return end;
  }

  std::string_view source_;
  Whitespace whitespace_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const Whitespace& whitespace) {
  std::string text;  // with one kind of line end
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!pair) text += source[i] == '\r' ? '\n' : source[i];
  }
  // One newline at the very end is the file's, not the template's.
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(text, whitespace).run();
}

}  // namespace synod::jinja
