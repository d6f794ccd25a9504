// A vocabulary of the published sizes without the published files: bytes, punctuation as JSON and code use
// it, words with and without a leading blank, digits, runs of blanks, characters of several scripts, pieces
// of characters.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "text/grammar/vocabulary.h"
#include "text/utf8.h"

namespace synod::grammar_testing {

inline std::vector<std::string> synthetic_tokens(size_t n, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  const auto below = [&random](size_t limit) { return size_t(random() % limit); };
  std::vector<std::string> tokens(8);  // ids without text
  std::unordered_set<std::string> seen;
  const auto add = [&](const std::string& token) {
    if (tokens.size() < n && seen.insert(token).second) tokens.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, char(byte)));
  for (int blanks = 2; blanks <= 31; ++blanks) {
    add(std::string(size_t(blanks), ' '));
    add(std::string(size_t(blanks), '\n'));
    add("\n" + std::string(size_t(blanks), ' '));
  }
  const std::string marks = "\"\"\"\"{}[]:,.\\/()<>=-+*;'_ \n#";
  const auto marked = [&] {
    std::string token;
    for (size_t i = 1 + below(4); i > 0; --i) token += marks[below(marks.size())];
    return token;
  };
  const std::string syllables[] = {"an", "be", "co", "da", "en", "fi", "ga", "ho", "in", "ju",
                                   "ka", "lo", "mi", "ne", "or", "pa", "qu", "re", "st", "ti",
                                   "un", "ve", "wa", "xe", "yo", "za", "t",  "s"};
  const auto word = [&] {
    std::string token;
    for (size_t i = 1 + below(5); i > 0; --i) token += syllables[below(std::size(syllables))];
    return token;
  };
  constexpr char32_t kScripts[] = {0xC0,  0x391,  0x410,  0x5D0,  0x627,  0x905,
                                   0xE01, 0x3041, 0x4E00, 0xAC00, 0x1F600};
  const auto foreign = [&] {
    std::string token;
    const char32_t script = kScripts[below(std::size(kScripts))];
    for (size_t i = 1 + below(5); i > 0; --i) append_utf8(token, script + char32_t(below(60)));
    return token;
  };
  while (tokens.size() < n) {
    switch (below(20)) {
      case 0:
        add(marked());
        break;
      case 1:
        add(word() + marked());
        break;
      case 2:
        add(marked() + word());
        break;
      case 3:
        add(std::to_string(below(1'000'000)));
        break;
      case 4: {
        const std::string token = foreign();
        add(token.substr(below(2), token.size() - below(2)));
        break;
      }
      case 5:
      case 6:
      case 7:
      case 8:
        add(foreign());
        break;
      case 9: {
        std::string token = word();
        token[0] = char(token[0] - 'a' + 'A');
        add(token);
        break;
      }
      default:
        add((below(2) ? " " : "") + word());
    }
  }
  return tokens;
}

// Ids 0 to 7 carry no text; 1 ends the text.
inline std::shared_ptr<const Vocabulary> synthetic_vocabulary(size_t n) {
  const int32_t stops[] = {1};
  return std::make_shared<Vocabulary>(synthetic_tokens(n), stops);
}

constexpr const char* kArithmetic =
    "root ::= expr (\"=\" expr)? \"\\n\"\n"
    "expr ::= term ([-+] term)*\n"
    "term ::= factor ([*/] factor)*\n"
    "factor ::= ws (number | name | \"(\" expr ws \")\")\n"
    "number ::= [0-9]+ (\".\" [0-9]+)?\n"
    "name ::= [a-z] [a-z0-9_]*\n"
    "ws ::= [ \\t]*\n";

constexpr const char* kPersonSchema = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 40},
    "role": {"enum": ["admin", "editor", "reader"]},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "score": {"type": "number"},
    "notes": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    "address": {
      "type": "object",
      "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
      "required": ["street", "zip"]
    }
  },
  "required": ["name", "role", "age", "notes", "address"],
  "additionalProperties": false
})";

constexpr const char* kPatternSchema =
    R"({"type": "string", "pattern": "^[A-Za-z0-9_.+-]+( [A-Za-z0-9_.+-]+)*@[a-z]+(\\.[a-z]{2,})+$"})";

}  // namespace synod::grammar_testing
