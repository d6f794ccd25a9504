// GBNF to terms: rules, alternatives, groups, repetition, character classes, escapes, comments, `.`, and
// token references <name>, <[id]>, !<name>, !<[id]>. Recursive descent over bytes; a group is the only
// nesting and its depth is bounded.
#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "text/grammar/builder.h"
#include "text/utf8.h"

namespace synod {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-' || c == '_';
}

class GbnfParser {
 public:
  GbnfParser(GrammarBuilder& builder, std::string_view text, const Vocabulary* vocabulary)
      : b_(builder), text_(text), vocabulary_(vocabulary) {}

  Term parse(std::string_view root) {
    skip_space(true);
    while (!at_end()) rule();
    for (const auto& [name, known] : rules_) {
      if (!known.defined) complain(known.first_use, fmt::format("rule '{}' is used but not defined", name));
    }
    const auto found = rules_.find(std::string(root));
    if (found == rules_.end()) {
      fail(Error::Kind::kUsage, "grammar: expected a rule named '{}', found {}", root,
           rules_.empty() ? std::string("no rules at all")
                          : fmt::format("only others, such as '{}'", rules_.begin()->first));
    }
    return found->second.term;
  }

 private:
  struct Known {
    Term term;
    size_t first_use;
    bool defined;
  };

  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  bool at(char c) const { return !at_end() && text_[pos_] == c; }

  // Counts on from the last place asked for: rules are asked for in order.
  std::string place(size_t pos) const {
    if (pos < counted_.pos) counted_ = {};
    for (; counted_.pos < std::min(pos, text_.size()); ++counted_.pos) {
      const char c = text_[counted_.pos];
      if (c == '\n') {
        ++counted_.line;
        counted_.column = 1;
      } else if ((uint8_t(c) & 0xC0) != 0x80) {
        ++counted_.column;
      }
    }
    return fmt::format("line {}, column {}", counted_.line, counted_.column);
  }

  [[noreturn]] void complain(size_t pos, const std::string& what) const {
    fail(Error::Kind::kUsage, "grammar: {}: {}", place(pos), what);
  }

  std::string found_here() const {
    if (at_end()) return "the end of the grammar";
    const Utf8Char c = decode_utf8(text_, pos_);
    if (c.status != Utf8Status::kValid) return fmt::format("byte 0x{:02X}", uint8_t(text_[pos_]));
    if (c.value == '\n' || c.value == '\r') return "the end of the line";
    if (c.value < 0x20) return fmt::format("U+{:04X}", uint32_t(c.value));
    return fmt::format("'{}'", text_.substr(pos_, c.length));
  }

  void skip_space(bool newlines) {
    while (!at_end()) {
      const char c = text_[pos_];
      if (c == '#') {
        while (!at_end() && text_[pos_] != '\n' && text_[pos_] != '\r') ++pos_;
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
        ++pos_;
      } else {
        return;
      }
    }
  }

  std::string_view name() {
    const size_t begin = pos_;
    while (!at_end() && is_word(text_[pos_])) ++pos_;
    if (pos_ == begin) complain(pos_, fmt::format("expected a rule name, got {}", found_here()));
    return text_.substr(begin, pos_ - begin);
  }

  Known& rule_named(std::string_view rule_name, size_t use) {
    const auto [entry, added] = rules_.try_emplace(std::string(rule_name));
    if (added) entry->second = {b_.declare(entry->first), use, false};
    return entry->second;
  }

  void rule() {
    const size_t begin = pos_;
    const std::string_view rule_name = name();
    skip_space(false);
    if (text_.substr(pos_, 3) != "::=") {
      complain(pos_, fmt::format("expected '::=' after the rule name '{}', got {}", rule_name, found_here()));
    }
    pos_ += 3;
    skip_space(true);
    const Known known = rule_named(rule_name, begin);
    if (known.defined) complain(begin, fmt::format("rule '{}' is defined twice", rule_name));
    rules_.find(std::string(rule_name))->second.defined = true;
    const Term body = alternatives(0);
    b_.define(known.term, body, place(begin));
    if (text_.substr(pos_, 3) == "::=") {
      complain(begin, fmt::format("rule '{}' has no body before the next rule; an empty text is written \"\"",
                                  rule_name));
    }
    if (!at_end() && !at('\n') && !at('\r')) {
      complain(pos_, fmt::format("expected a newline or the end of the grammar after rule '{}', got {}",
                                 rule_name, found_here()));
    }
    skip_space(true);
  }

  // Outside of groups a rule ends with its line, unless the next line starts with '|'.
  bool another_alternative(bool nested) {
    if (at('|')) return true;
    if (nested) return false;
    const size_t before = pos_;
    skip_space(true);
    if (at('|')) return true;
    pos_ = before;
    return false;
  }

  Term alternatives(int depth) {
    if (depth > b_.limits().max_depth) {
      complain(pos_, fmt::format("groups nested deeper than {}", b_.limits().max_depth));
    }
    std::vector<Term> list{sequence(depth)};
    while (another_alternative(depth > 0)) {
      ++pos_;
      skip_space(true);
      list.push_back(sequence(depth));
    }
    return b_.choice(std::move(list));
  }

  Term sequence(int depth) {
    std::vector<Term> parts;
    bool repeatable = false;  // the last part can take a repetition
    for (;;) {
      const size_t begin = pos_;
      std::optional<Term> item = symbol(depth);
      if (!item) {
        const auto bounds = repetition();
        if (!bounds) break;
        if (!repeatable) complain(begin, fmt::format("'{}' has nothing before it to repeat", text_[begin]));
        parts.back() = repeat(parts.back(), *bounds, begin);
      } else {
        parts.push_back(*item);
        repeatable = true;
      }
      skip_space(depth > 0);
    }
    return b_.sequence(std::move(parts));
  }

  Term repeat(Term part, std::pair<int64_t, int64_t> bounds, size_t begin) {
    const auto [min, max] = bounds;
    if (max >= 0 && max < min) {
      complain(begin,
               fmt::format("repetition {{{},{}}}: the second bound is smaller than the first", min, max));
    }
    if (std::max(min, max) > int64_t(b_.limits().max_repeat)) {
      complain(begin, fmt::format("repetition: expected bounds of at most {}, got {}", b_.limits().max_repeat,
                                  std::max(min, max)));
    }
    return b_.repeat(part, min, max);
  }

  std::optional<Term> symbol(int depth) {
    if (at_end()) return std::nullopt;
    const char c = text_[pos_];
    if (c == '"') return literal();
    if (c == '[') return character_class();
    if (c == '<' || c == '!') return token();
    if (c == '.') {
      ++pos_;
      return b_.any_character();
    }
    if (c == '(') {
      const size_t begin = pos_++;
      skip_space(true);
      const Term group = alternatives(depth + 1);
      if (!at(')')) {
        complain(pos_, fmt::format("expected ')' for the group that begins at {}, got {}", place(begin),
                                   found_here()));
      }
      ++pos_;
      return group;
    }
    if (!is_word(c)) return std::nullopt;
    const size_t begin = pos_;
    return rule_named(name(), begin).term;
  }

  // {min, max}, max -1 for unbounded.
  std::optional<std::pair<int64_t, int64_t>> repetition() {
    if (at('*')) return ++pos_, std::pair<int64_t, int64_t>{0, -1};
    if (at('+')) return ++pos_, std::pair<int64_t, int64_t>{1, -1};
    if (at('?')) return ++pos_, std::pair<int64_t, int64_t>{0, 1};
    if (!at('{')) return std::nullopt;
    ++pos_;
    skip_space(true);
    const int64_t min = number();
    int64_t max = min;
    skip_space(true);
    if (at(',')) {
      ++pos_;
      skip_space(true);
      max = !at_end() && is_digit(text_[pos_]) ? number() : -1;
      skip_space(true);
    }
    if (!at('}')) complain(pos_, fmt::format("expected '}}' after the repetition, got {}", found_here()));
    ++pos_;
    return std::pair{min, max};
  }

  int64_t number() {
    constexpr int64_t kLargest = 1'000'000'000;
    if (at_end() || !is_digit(text_[pos_]))
      complain(pos_, fmt::format("expected a number, got {}", found_here()));
    const size_t begin = pos_;
    int64_t value = 0;
    for (; !at_end() && is_digit(text_[pos_]); ++pos_) {
      value = value * 10 + (text_[pos_] - '0');
      if (value > kLargest) complain(begin, fmt::format("expected a number of at most {}", kLargest));
    }
    return value;
  }

  // One character, escapes resolved. \xHH is the code point U+00HH.
  char32_t character() {
    if (at_end()) complain(pos_, "expected a character, got the end of the grammar");
    if (!at('\\')) {
      const Utf8Char c = decode_utf8(text_, pos_);
      if (c.status != Utf8Status::kValid) complain(pos_, "the grammar is not valid UTF-8");
      pos_ += c.length;
      return c.value;
    }
    const size_t begin = pos_++;
    const char kind = peek();
    ++pos_;
    switch (kind) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return char32_t(kind);
      case 'x':
        return hex(2, begin);
      case 'u':
        return hex(4, begin);
      case 'U':
        return hex(8, begin);
      default:
        pos_ = begin;
        complain(begin,
                 "unknown escape; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
    }
  }

  char32_t hex(int n_digits, size_t begin) {
    uint32_t value = 0;
    for (int i = 0; i < n_digits; ++i, ++pos_) {
      const char c = peek();
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) complain(begin, fmt::format("expected {} hexadecimal digits in the escape", n_digits));
      value = value << 4 | uint32_t(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      complain(begin, fmt::format("U+{:04X} is not a character", value));
    }
    return value;
  }

  Term literal() {
    const size_t begin = pos_++;
    std::string text;
    while (!at('"')) {
      if (at_end()) complain(begin, "this '\"' is never closed");
      append_utf8(text, character());
    }
    ++pos_;
    return b_.text(text);
  }

  Term character_class() {
    const size_t begin = pos_++;
    const bool negated = at('^');
    if (negated) ++pos_;
    std::vector<CodePointRange> ranges;
    while (!at(']')) {
      if (at_end()) complain(begin, "this '[' is never closed");
      const size_t first = pos_;
      const char32_t low = character();
      char32_t high = low;
      if (at('-') && peek(1) != ']') {
        ++pos_;
        if (at_end()) complain(begin, "this '[' is never closed");
        high = character();
      }
      if (high < low) complain(first, "the range ends before it begins");
      ranges.push_back({low, high});
    }
    ++pos_;
    return b_.characters(std::move(ranges), negated);
  }

  Term token() {
    const size_t begin = pos_;
    const bool negated = at('!');
    if (negated) ++pos_;
    if (!at('<')) complain(pos_, fmt::format("expected '<' and a token after '!', got {}", found_here()));
    ++pos_;
    int32_t id = -1;
    if (at('[')) {
      ++pos_;
      const int64_t value = number();
      if (peek() != ']' || peek(1) != '>') complain(pos_, "expected ']>' after the token id");
      pos_ += 2;
      if (vocabulary_ && value >= vocabulary_->size()) {
        complain(begin, fmt::format("token id {}: expected 0 to {}", value, vocabulary_->size() - 1));
      }
      id = int32_t(value);
    } else {
      const size_t close = text_.find('>', pos_);
      if (close == std::string_view::npos) complain(begin, "this '<' is never closed");
      const std::string_view whole = text_.substr(pos_ - 1, close + 2 - pos_);
      pos_ = close + 1;
      if (!vocabulary_) complain(begin, "tokens cannot be named here");
      id = vocabulary_->find_named(whole);
      if (id < 0) complain(begin, fmt::format("the vocabulary has no single token '{}'", whole));
    }
    return negated ? b_.any_token_except({id}) : b_.token(id);
  }

  GrammarBuilder& b_;
  std::string_view text_;
  const Vocabulary* vocabulary_;
  size_t pos_ = 0;
  struct Counted {
    size_t pos = 0, line = 1, column = 1;
  };
  mutable Counted counted_;
  std::map<std::string, Known> rules_;
};

}  // namespace

Term GrammarBuilder::gbnf(std::string_view text, const Vocabulary* vocabulary, std::string_view root) {
  if (text.size() > limits_.max_source_bytes) {
    fail(Error::Kind::kUsage, "grammar: expected at most {} bytes, got {}", limits_.max_source_bytes,
         text.size());
  }
  return GbnfParser(*this, text, vocabulary).parse(root);
}

}  // namespace synod
