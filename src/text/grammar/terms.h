// The tree between the sources (GBNF, JSON Schema, GrammarBuilder) and the automaton. It is also what the
// tests' plain matcher reads, so that the automaton has something independent to be compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace synod {

struct CodePointRange {
  char32_t low, high;  // inclusive
};

struct Term {
  uint32_t index = 0;
};

struct TermTree {
  enum class Kind : uint8_t {
    kEmpty,
    kNever,
    kText,             // texts[a]
    kTexts,            // any of text_sets[a]
    kCharacters,       // range_sets[a]: sorted, disjoint, no surrogates
    kBytes,            // one byte from a to b
    kSequence,         // lists[a]
    kChoice,           // lists[a]
    kRepeat,           // term a, repeats[b]
    kRule,             // rules[a]
    kToken,            // id a
    kTextTokenExcept,  // token_sets[a]: any text token that is not in it
    kControlExcept,    // token_sets[a]: any id without text that is not in it and ends nothing
  };
  struct Node {
    Kind kind;
    uint32_t a = 0, b = 0;
  };
  static constexpr uint32_t kUnbounded = UINT32_MAX;
  struct Bounds {
    uint32_t min, max;  // max may be kUnbounded
  };
  struct Rule {
    std::string name;
    std::string place;  // where it is defined, for messages; may be empty
    Term body;
    bool defined = false;
  };

  std::vector<Node> nodes;
  std::vector<std::string> texts;
  std::vector<std::vector<std::string>> text_sets;
  std::vector<std::vector<CodePointRange>> range_sets;
  std::vector<std::vector<Term>> lists;
  std::vector<Bounds> repeats;
  std::vector<std::vector<int32_t>> token_sets;  // sorted
  std::vector<Rule> rules;

  const Node& at(Term term) const { return nodes[term.index]; }
};

// Sorted, merged, without surrogates; the complement when `negated`.
std::vector<CodePointRange> normalized(std::vector<CodePointRange> ranges, bool negated);

}  // namespace synod
