// A grammar as a pushdown automaton over bytes: states in one array, grouped by nothing but their edges. A
// call edge goes to its target when the called rule ends. Every state kept can reach the end of its rule
// (compile_automaton drops the others), so whatever is alive can be completed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/terms.h"

namespace synod {

struct GrammarAutomaton {
  using State = uint32_t;

  enum class EdgeKind : uint8_t {
    kBytes,  // low..high
    kEmpty,
    kCall,             // rule `argument`
    kToken,            // id `argument`
    kTextTokenExcept,  // token_sets[argument]
    kControlExcept,    // token_sets[argument]
  };
  struct Edge {
    EdgeKind kind;
    uint8_t low, high;
    State target;
    uint32_t argument;
  };
  struct Rule {
    State start;
    std::string name, place;
  };

  std::vector<uint32_t> first_edge;  // edges of state s: edges[first_edge[s]] .. edges[first_edge[s + 1] - 1]
  std::vector<Edge> edges;
  std::vector<uint8_t> is_end;        // the rule may return here
  std::vector<uint8_t> only_returns;  // nothing but the end is reachable without reading or calling: a tail
  std::vector<Rule> rules;            // rules[0] is the whole grammar
  std::vector<std::vector<int32_t>> token_sets;  // sorted
  bool names_tokens = false;

  // Bytes that no edge tells apart have one class.
  std::array<uint8_t, 256> byte_class{};
  std::vector<uint8_t> class_byte;  // one byte of each class
  size_t n_classes() const { return class_byte.size(); }

  size_t n_states() const { return is_end.size(); }
  std::span<const Edge> edges_of(State state) const {
    return {edges.data() + first_edge[state], edges.data() + first_edge[state + 1]};
  }
};

// Throws kUsage: undefined rules, left recursion, a root that matches no finite text, too many states.
GrammarAutomaton compile_automaton(const TermTree& tree, Term root, const GrammarLimits& limits);

}  // namespace synod
