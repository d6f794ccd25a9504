// Regular expressions of JSON Schema. Parsed to a small tree; without a length limit the tree becomes terms
// one to one, with a limit its automaton is multiplied by a counter of characters.
#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "text/grammar/json_terms.h"
#include "text/utf8.h"

namespace synod {

namespace {

using Ranges = std::vector<CodePointRange>;

struct Regex {
  enum class Kind : uint8_t { kEmpty, kClass, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kEmpty;
  Ranges ranges;              // kClass, normalized
  std::vector<size_t> parts;  // indices; kRepeat: one
  int64_t min = 0, max = -1;
};

constexpr int kMaxGroups = 64;

// What some dialect (Python's reads Unicode) takes for a digit, or for a word character: \D and \W leave it
// all out, so that what is written matches whoever checks it.
const Ranges& wide_class(bool words) {
  const auto make = [](bool with_words) {
    Ranges ranges;
    for (utf8proc_int32_t c = 0; c <= 0x10FFFF; ++c) {
      const utf8proc_category_t category = utf8proc_category(c);
      bool inside = category == UTF8PROC_CATEGORY_ND;
      if (with_words) {
        inside = c == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
                 (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
      }
      if (!inside) continue;
      const auto value = char32_t(c);
      if (!ranges.empty() && ranges.back().high + 1 == value) {
        ranges.back().high = value;
      } else {
        ranges.push_back({value, value});
      }
    }
    return ranges;
  };
  static const Ranges kDigits = make(false), kWords = make(true);
  return words ? kWords : kDigits;
}

class PatternParser {
 public:
  PatternParser(std::string_view text, const std::string& where, uint32_t max_repeat)
      : text_(text), where_(where), max_repeat_(max_repeat) {}

  std::vector<Regex> nodes;

  size_t parse() {
    std::vector<size_t> branches;
    do {
      branches.push_back(anchored_branch());
    } while (take('|'));
    if (pos_ < text_.size()) complain("unmatched ')'");
    return choice(std::move(branches));
  }

 private:
  [[noreturn]] void complain(std::string_view what) const {
    fail(Error::Kind::kUsage, "{}: the pattern '{}' at character {}: {}", where_, text_, pos_ + 1, what);
  }
  bool at_end() const { return pos_ >= text_.size(); }
  bool at(char c) const { return !at_end() && text_[pos_] == c; }
  bool take(char c) {
    if (!at(c)) return false;
    ++pos_;
    return true;
  }

  size_t add(Regex node) {
    constexpr size_t kMaxNodes = 100'000;
    if (nodes.size() >= kMaxNodes) complain("too long");
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  }
  size_t character_class(Ranges ranges, bool negated = false) {
    Regex node;
    node.kind = Regex::Kind::kClass;
    node.ranges = normalized(std::move(ranges), negated);
    return add(std::move(node));
  }
  size_t sequence(std::vector<size_t> parts) {
    if (parts.size() == 1) return parts[0];
    Regex node;
    node.kind = parts.empty() ? Regex::Kind::kEmpty : Regex::Kind::kSequence;
    node.parts = std::move(parts);
    return add(std::move(node));
  }
  size_t choice(std::vector<size_t> parts) {
    if (parts.size() == 1) return parts[0];
    Regex node;
    node.kind = Regex::Kind::kChoice;
    node.parts = std::move(parts);
    return add(std::move(node));
  }
  size_t repeat(size_t part, int64_t min, int64_t max) {
    Regex node;
    node.kind = Regex::Kind::kRepeat;
    node.parts = {part};
    node.min = min;
    node.max = max;
    return add(std::move(node));
  }

  // A pattern is searched for: without an anchor anything may stand before or after.
  size_t anchored_branch() {
    std::vector<size_t> parts;
    if (!take('^')) parts.push_back(repeat(character_class({}, true), 0, -1));
    const std::vector<size_t> inner = branch(0);
    parts.insert(parts.end(), inner.begin(), inner.end());
    if (!take('$')) parts.push_back(repeat(character_class({}, true), 0, -1));
    if (!at_end() && !at('|') && !at(')')) complain("'$' is supported at the end only");
    return sequence(std::move(parts));
  }

  size_t alternatives(int depth) {
    if (depth > kMaxGroups) complain("groups nested too deep");
    std::vector<size_t> branches;
    do {
      branches.push_back(sequence(branch(depth)));
    } while (take('|'));
    return choice(std::move(branches));
  }

  std::vector<size_t> branch(int depth) {
    std::vector<size_t> parts;
    while (!at_end() && !at('|') && !at(')')) {
      if (at('$') && depth == 0) break;
      size_t part = atom(depth);
      while (!at_end()) {
        int64_t min = 0, max = -1;
        if (take('*')) {
        } else if (take('+')) {
          min = 1;
        } else if (take('?')) {
          max = 1;
        } else if (!at('{') || !braces(min, max)) {
          break;
        }
        take('?');  // laziness changes which match is found, not whether there is one
        part = repeat(part, min, max);
      }
      parts.push_back(part);
    }
    return parts;
  }

  // {m}, {m,}, {m,n}; anything else is a literal brace.
  bool braces(int64_t& min, int64_t& max) {
    size_t p = pos_ + 1;
    const auto number = [&](int64_t& value) {
      const size_t begin = p;
      value = 0;
      for (; p < text_.size() && text_[p] >= '0' && text_[p] <= '9'; ++p) {
        value = std::min<int64_t>(value * 10 + (text_[p] - '0'), int64_t(1) << 40);
      }
      return p > begin;
    };
    if (!number(min)) return false;
    max = min;
    if (p < text_.size() && text_[p] == ',') {
      ++p;
      if (!number(max)) max = -1;
    }
    if (p >= text_.size() || text_[p] != '}') return false;
    if (max >= 0 && max < min) complain("the second bound is smaller than the first");
    if (std::max(min, max) > int64_t(max_repeat_)) {
      complain(fmt::format("expected repetition bounds of at most {}", max_repeat_));
    }
    pos_ = p + 1;
    return true;
  }

  size_t atom(int depth) {
    const char c = text_[pos_];
    if (c == '(') return group(depth);
    if (c == '[') return bracket();
    if (c == '.') {
      ++pos_;
      return character_class({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}, true);
    }
    if (c == '\\') {
      Ranges ranges;
      const bool negated = escape(ranges);
      return character_class(std::move(ranges), negated);
    }
    if (c == '^' || c == '$') complain("anchors are supported at the very beginning and end only");
    if (c == '*' || c == '+' || c == '?') complain("nothing to repeat");
    const char32_t value = character();
    return character_class({{value, value}});
  }

  size_t group(int depth) {
    ++pos_;
    if (take('?')) {
      if (take('<')) {
        if (at('=') || at('!')) complain("look-around is not supported");
        while (!at_end() && !at('>')) ++pos_;
        if (!take('>')) complain("a group name is never closed");
      } else if (!take(':')) {
        complain("look-around and flags are not supported");
      }
    }
    const size_t inner = alternatives(depth + 1);
    if (!take(')')) complain("expected ')'");
    return inner;
  }

  char32_t character() {
    const Utf8Char c = decode_utf8(text_, pos_);
    if (c.status != Utf8Status::kValid) complain("not valid UTF-8");
    pos_ += c.length;
    return c.value;
  }

  char32_t hex(int n_digits) {
    char32_t value = 0;
    for (int i = 0; i < n_digits; ++i, ++pos_) {
      const char c = at_end() ? '\0' : text_[pos_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) complain(fmt::format("expected {} hexadecimal digits", n_digits));
      value = value << 4 | char32_t(digit);
    }
    return value;
  }

  static void append(Ranges& out, const Ranges& more) { out.insert(out.end(), more.begin(), more.end()); }

  // Appends what the escape stands for. True when it stands for the complement (only outside of brackets).
  bool escape(Ranges& out, bool in_bracket = false) {
    static const Ranges kDigits{{'0', '9'}};
    static const Ranges kWords{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    // What either ECMAScript or Python calls white space; \s gives only what both do.
    static const Ranges kWideSpaces{{0x09, 0x0D},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                    {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                    {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    static const Ranges kSpaces{{0x09, 0x0D}, {0x20, 0x20}};
    ++pos_;
    if (at_end()) complain("the pattern ends with '\\'");
    const auto single = [&out](char32_t value) {
      out.push_back({value, value});
      return false;
    };
    const auto complement = [&](const Ranges& of) {
      append(out, in_bracket ? normalized(of, true) : of);
      return !in_bracket;
    };
    const char c = text_[pos_];
    if (c >= '1' && c <= '9') complain("back-references are not supported");
    switch (c) {
      case 'd':
        return ++pos_, append(out, kDigits), false;
      case 'w':
        return ++pos_, append(out, kWords), false;
      case 's':
        return ++pos_, append(out, kSpaces), false;
      case 'D':
        return ++pos_, complement(wide_class(false));
      case 'W':
        return ++pos_, complement(wide_class(true));
      case 'S':
        return ++pos_, complement(kWideSpaces);
      case 'n':
        return ++pos_, single('\n');
      case 'r':
        return ++pos_, single('\r');
      case 't':
        return ++pos_, single('\t');
      case 'f':
        return ++pos_, single('\f');
      case 'v':
        return ++pos_, single('\v');
      case '0':
        return ++pos_, single(0);
      case 'x':
        return ++pos_, single(hex(2));
      case 'u':
        return ++pos_, single(unicode());
      case 'b':
        if (in_bracket) return ++pos_, single('\b');
        complain("word borders are not supported");
      default:
        break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      complain(fmt::format("the escape \\{} is not supported", c));
    }
    return single(character());
  }

  char32_t unicode() {
    if (take('{')) {
      char32_t value = 0;
      int n = 0;
      while (!at_end() && !at('}') && n++ < 6) value = value << 4 | hex(1);
      if (!take('}') || n == 0 || value > 0x10FFFF) complain("expected a code point in braces");
      return value;
    }
    const char32_t unit = hex(4);
    if (unit < 0xD800 || unit > 0xDBFF || text_.substr(pos_, 2) != "\\u") return unit;
    pos_ += 2;
    const char32_t low = hex(4);
    if (low < 0xDC00 || low > 0xDFFF) complain("a high surrogate without a low one");
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
  }

  size_t bracket() {
    ++pos_;
    const bool negated = take('^');
    Ranges ranges;
    while (!at(']')) {
      if (at_end()) complain("'[' is never closed");
      const size_t before = ranges.size();
      bool single = true;
      if (at('\\')) {
        escape(ranges, true);
        single = ranges.size() == before + 1 && ranges.back().low == ranges.back().high;
      } else {
        const char32_t value = character();
        ranges.push_back({value, value});
      }
      if (!at('-') || pos_ + 1 >= text_.size() || text_[pos_ + 1] == ']') continue;
      if (!single) complain("a class cannot begin a range");
      ++pos_;
      Ranges end;
      if (at('\\')) {
        escape(end, true);
      } else {
        const char32_t value = character();
        end.push_back({value, value});
      }
      if (end.size() != 1 || end[0].low != end[0].high) complain("a class cannot end a range");
      if (end[0].low < ranges.back().low) complain("a range ends before it begins");
      ranges.back().high = end[0].high;
    }
    ++pos_;
    return character_class(std::move(ranges), negated);
  }

  std::string_view text_;
  const std::string& where_;
  uint32_t max_repeat_;
  size_t pos_ = 0;
};

// One character of the class as JSON spells it: raw, or escaped where it must be.
Term spelled(JsonTerms& json, const Ranges& ranges) {
  Ranges raw;
  std::vector<std::string> escapes;
  for (CodePointRange range : ranges) {
    for (char32_t c = range.low; c <= range.high && c <= '\\'; ++c) {
      if (c >= 0x20 && c != '"' && c != '\\') continue;
      escapes.emplace_back();
      JsonTerms::append_escaped(escapes.back(), c);
    }
    const auto keep = [&](char32_t low, char32_t high) {
      const CodePointRange part{std::max(range.low, low), std::min(range.high, high)};
      if (part.low <= part.high) raw.push_back(part);
    };
    keep(0x20, '!');
    keep('#', '[');
    keep(']', 0x10FFFF);
  }
  std::vector<Term> terms;
  if (!raw.empty()) terms.push_back(json.builder().characters(std::move(raw)));
  if (!escapes.empty()) terms.push_back(json.builder().any_of_texts(std::move(escapes)));
  return json.builder().choice(std::move(terms));
}

Term as_terms(JsonTerms& json, const std::vector<Regex>& nodes, size_t index) {
  const Regex& node = nodes[index];
  GrammarBuilder& b = json.builder();
  std::vector<Term> parts;
  if (node.kind != Regex::Kind::kClass) {
    for (const size_t part : node.parts) parts.push_back(as_terms(json, nodes, part));
  }
  switch (node.kind) {
    case Regex::Kind::kEmpty:
      return b.empty();
    case Regex::Kind::kClass:
      return spelled(json, node.ranges);
    case Regex::Kind::kSequence:
      return b.sequence(std::move(parts));
    case Regex::Kind::kChoice:
      return b.choice(std::move(parts));
    case Regex::Kind::kRepeat:
      return b.repeat(parts[0], node.min, node.max);
  }
  return b.never();
}

// Thompson's construction, for the product with a counter.
struct PatternAutomaton {
  struct State {
    std::vector<size_t> empty;                       // targets
    std::vector<std::pair<size_t, size_t>> classes;  // class node, target
  };
  const std::vector<Regex>& nodes;
  size_t limit;
  std::vector<State> states;

  bool too_large() const { return states.size() > limit; }

  size_t add() {
    states.emplace_back();
    return states.size() - 1;
  }

  void build(size_t index, size_t from, size_t to) {
    if (too_large()) return;
    const Regex& node = nodes[index];
    switch (node.kind) {
      case Regex::Kind::kEmpty:
        states[from].empty.push_back(to);
        return;
      case Regex::Kind::kClass:
        states[from].classes.emplace_back(index, to);
        return;
      case Regex::Kind::kSequence:
        for (size_t i = 0; i < node.parts.size(); ++i) {
          const size_t next = i + 1 == node.parts.size() ? to : add();
          build(node.parts[i], from, next);
          from = next;
        }
        return;
      case Regex::Kind::kChoice:
        for (const size_t part : node.parts) build(part, from, to);
        return;
      case Regex::Kind::kRepeat: {
        size_t at = add();
        states[from].empty.push_back(at);
        const int64_t copies = node.max < 0 ? node.min : node.max;
        for (int64_t i = 0; i < copies && !too_large(); ++i) {
          if (i >= node.min) states[at].empty.push_back(to);
          const size_t next = add();
          build(node.parts[0], at, next);
          at = next;
        }
        if (node.max < 0) {
          const size_t again = add();
          build(node.parts[0], at, again);
          states[again].empty.push_back(at);
        }
        states[at].empty.push_back(to);
        return;
      }
    }
  }

  std::vector<size_t> closure(size_t from) const {
    std::vector<size_t> list{from};
    std::set<size_t> seen{from};
    for (size_t i = 0; i < list.size(); ++i) {
      for (const size_t target : states[list[i]].empty) {
        if (seen.insert(target).second) list.push_back(target);
      }
    }
    return list;
  }
};

// One rule per (state, characters so far); the counter stops at the smaller bound when there is no larger
// one.
Term with_length(JsonTerms& json, const std::vector<Regex>& nodes, size_t root, Count length,
                 const std::string& where) {
  constexpr size_t kMaxProduct = 50'000;
  const auto layers = size_t(length.max < 0 ? length.min : length.max) + 1;
  PatternAutomaton automaton{nodes, kMaxProduct / std::min(layers, kMaxProduct) + 2, {}};
  const size_t start = automaton.add(), end = automaton.add();
  automaton.build(root, start, end);
  if (automaton.too_large() || automaton.states.size() * layers > kMaxProduct) {
    fail(Error::Kind::kUsage, "{}: the pattern together with its length limit needs more than {} states",
         where, kMaxProduct);
  }
  GrammarBuilder& b = json.builder();
  std::map<std::pair<size_t, size_t>, Term> rules;
  std::vector<std::pair<size_t, size_t>> work;
  const auto rule = [&](size_t state, size_t count) {
    const auto [entry, added] = rules.try_emplace({state, count});
    if (added) {
      entry->second = b.declare("pattern");
      work.emplace_back(state, count);
    }
    return entry->second;
  };
  const Term first = rule(start, 0);
  std::map<size_t, Term> spellings;
  while (!work.empty()) {
    const auto [state, count] = work.back();
    work.pop_back();
    std::vector<Term> alternatives;
    for (const size_t reached : automaton.closure(state)) {
      if (reached == end && count >= length.min) alternatives.push_back(b.empty());
      if (length.max >= 0 && int64_t(count) >= length.max) continue;
      const size_t next_count = length.max < 0 ? std::min<size_t>(count + 1, length.min) : count + 1;
      for (const auto& [class_node, target] : automaton.states[reached].classes) {
        const auto [spelling, added] = spellings.try_emplace(class_node);
        if (added) spelling->second = spelled(json, nodes[class_node].ranges);
        alternatives.push_back(b.sequence({spelling->second, rule(target, next_count)}));
      }
    }
    b.define(rules.at({state, count}), b.choice(std::move(alternatives)));
  }
  return first;
}

}  // namespace

Term json_pattern(JsonTerms& json, std::string_view pattern, const std::optional<Count>& length,
                  const std::string& where) {
  PatternParser parser(pattern, where, json.builder().limits().max_repeat);
  const size_t root = parser.parse();
  if (length && (length->min > 0 || length->max >= 0)) {
    return with_length(json, parser.nodes, root, *length, where);
  }
  return as_terms(json, parser.nodes, root);
}

}  // namespace synod
