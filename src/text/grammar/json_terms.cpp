#include "text/grammar/json_terms.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "text/utf8.h"

namespace synod {

namespace {

constexpr int64_t kMaxBlanks = 4;  // on one line
constexpr int64_t kMaxNewlines = 2;
constexpr int64_t kMaxIndent = 64;       // after a newline
constexpr int64_t kMaxWholeDigits = 18;  // every reader's integers hold them
constexpr int64_t kMaxFractionDigits = 20;
constexpr int64_t kMaxExponentDigits = 2;

}  // namespace

JsonTerms::JsonTerms(GrammarBuilder& builder, const JsonOptions& options) : b_(builder), options_(options) {}

Term JsonTerms::space() {
  if (!options_.spaces) return b_.empty();
  if (space_) return *space_;
  const Term blank = b_.characters({{' ', ' '}, {'\t', '\t'}});
  const Term newline = b_.any_of_texts({"\n", "\r\n"});
  space_ = b_.declare("space");
  b_.define(*space_,
            b_.choice({b_.repeat(blank, 0, kMaxBlanks),
                       b_.sequence({b_.repeat(newline, 1, kMaxNewlines), b_.repeat(blank, 0, kMaxIndent)})}));
  return *space_;
}

Term JsonTerms::colon() {
  if (!options_.spaces) return b_.text(":");
  return b_.sequence({b_.optional(b_.text(" ")), b_.text(":"), space()});
}

Term JsonTerms::comma() { return b_.sequence({space(), b_.text(","), space()}); }

Term JsonTerms::character() {
  if (character_) return *character_;
  const Term plain = b_.characters({{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}});
  const Term hex = b_.characters({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
  const auto digits = [&](int64_t n) { return b_.repeat(hex, n, n); };
  const Term d = b_.characters({{'d', 'd'}, {'D', 'D'}});
  const Term not_d = b_.characters({{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}});
  const Term below_8 = b_.characters({{'0', '7'}});
  const Term high_half = b_.characters({{'8', '9'}, {'a', 'b'}, {'A', 'B'}});
  const Term low_half = b_.characters({{'c', 'f'}, {'C', 'F'}});
  const Term one_unit = b_.choice({b_.sequence({not_d, digits(3)}), b_.sequence({d, below_8, digits(2)})});
  const Term pair = b_.sequence({d, high_half, digits(2), b_.text("\\u"), d, low_half, digits(2)});
  const Term escape = b_.declare("escape");
  b_.define(escape, b_.sequence({b_.text("\\"),
                                 b_.choice({b_.any_of_texts({"\"", "\\", "/", "b", "f", "n", "r", "t"}),
                                            b_.sequence({b_.text("u"), b_.choice({one_unit, pair})})})}));
  character_ = b_.choice({plain, escape});
  return *character_;
}

Term JsonTerms::string_of(Term content) { return b_.sequence({b_.text("\""), content, b_.text("\"")}); }

Term JsonTerms::string(Count count) {
  if (count.min == 0 && count.max < 0) {
    if (!any_string_) {
      any_string_ = b_.declare("string");
      b_.define(*any_string_, string_of(b_.repeat(character(), 0)));
    }
    return *any_string_;
  }
  return string_of(b_.repeat(character(), count.min, count.max));
}

void JsonTerms::append_escaped(std::string& out, char32_t character) {
  switch (character) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      if (character < 0x20) {
        out += fmt::format("\\u{:04x}", uint32_t(character));
      } else {
        append_utf8(out, character);
      }
  }
}

std::string JsonTerms::escaped(std::string_view decoded) {
  std::string out;
  for (size_t pos = 0; pos < decoded.size();) {
    const Utf8Char c = decode_utf8(decoded, pos);
    append_escaped(out, c.status == Utf8Status::kValid ? c.value : char32_t(0xFFFD));
    pos += c.length;
  }
  return out;
}

Term JsonTerms::quoted(std::string_view decoded) { return b_.text("\"" + escaped(decoded) + "\""); }

// A trie of the names, one rule per node; whatever leaves the trie, or ends inside it, is another key.
Term JsonTerms::plain_key_except(const std::vector<std::string>& names) {
  struct Node {
    std::map<char32_t, uint32_t> next;
    bool is_name = false;
  };
  const std::vector<CodePointRange> plain{{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}};
  std::vector<Node> nodes(1);
  for (const std::string& name : names) {
    if (escaped(name) != name) continue;  // cannot be spelled without escapes
    uint32_t node = 0;
    for (size_t pos = 0; pos < name.size();) {
      const Utf8Char c = decode_utf8(name, pos);
      pos += c.length;
      const auto [edge, added] = nodes[node].next.try_emplace(c.value, uint32_t(nodes.size()));
      node = edge->second;
      if (added) nodes.emplace_back();
    }
    nodes[node].is_name = true;
  }
  const Term tail = b_.sequence({b_.repeat(b_.characters(plain), 0), b_.text("\"")});
  std::vector<Term> rules;
  for (size_t n = 0; n < nodes.size(); ++n) rules.push_back(b_.declare("other key"));
  for (size_t n = 0; n < nodes.size(); ++n) {
    std::vector<Term> alternatives;
    std::vector<CodePointRange> others{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    for (const auto& [character, child] : nodes[n].next) {
      alternatives.push_back(b_.sequence({b_.characters({{character, character}}), rules[child]}));
      others.push_back({character, character});
    }
    alternatives.push_back(b_.sequence({b_.characters(std::move(others), true), tail}));
    if (!nodes[n].is_name) alternatives.push_back(b_.text("\""));
    b_.define(rules[n], b_.choice(std::move(alternatives)));
  }
  return b_.sequence({b_.text("\""), rules[0]});
}

Term JsonTerms::integer() {
  if (integer_) return *integer_;
  const Term nonzero = b_.sequence({b_.characters({{'1', '9'}}), b_.repeat(digit(), 0, kMaxWholeDigits - 1)});
  integer_ = b_.declare("integer");
  b_.define(*integer_, b_.choice({b_.text("0"), b_.sequence({b_.optional(b_.text("-")), nonzero})}));
  return *integer_;
}

Term JsonTerms::number() {
  if (number_) return *number_;
  const Term whole = b_.choice(
      {b_.text("0"), b_.sequence({b_.characters({{'1', '9'}}), b_.repeat(digit(), 0, kMaxWholeDigits - 1)})});
  const Term fraction = b_.sequence({b_.text("."), b_.repeat(digit(), 1, kMaxFractionDigits)});
  const Term exponent = b_.sequence({b_.characters({{'e', 'e'}, {'E', 'E'}}),
                                     b_.optional(b_.characters({{'+', '+'}, {'-', '-'}})),
                                     b_.repeat(digit(), 1, kMaxExponentDigits)});
  number_ = b_.declare("number");
  b_.define(*number_,
            b_.sequence({b_.optional(b_.text("-")), whole, b_.optional(fraction), b_.optional(exponent)}));
  return *number_;
}

Term JsonTerms::boolean() { return b_.any_of_texts({"true", "false"}); }
Term JsonTerms::null() { return b_.text("null"); }

Term JsonTerms::list(Term open, Term item, Term close) {
  const Term more = b_.repeat(b_.sequence({comma(), item}), 0);
  return b_.sequence({open, space(), b_.choice({close, b_.sequence({item, more, space(), close})})});
}

Term JsonTerms::object() {
  if (object_) return *object_;
  object_ = b_.declare("object");
  const Term pair = b_.sequence({string({}), colon(), value()});
  b_.define(*object_, list(b_.text("{"), pair, b_.text("}")));
  return *object_;
}

Term JsonTerms::array() {
  if (array_) return *array_;
  array_ = b_.declare("array");
  b_.define(*array_, list(b_.text("["), value(), b_.text("]")));
  return *array_;
}

Term JsonTerms::value() {
  if (value_) return *value_;
  value_ = b_.declare("value");
  b_.define(*value_, b_.choice({object(), array(), string({}), number(), boolean(), null()}));
  return *value_;
}

}  // namespace synod
