// Terms to states. Small rules that are not recursive are compiled in place (fewer stacks at run time); long
// repetitions of anything but a single byte call a rule of their own, so that a copy costs one state, and
// very long ones are counted in blocks.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/grammar/automaton.h"

namespace synod {

class AutomatonBuilder {
 public:
  using State = GrammarAutomaton::State;
  using Edge = GrammarAutomaton::Edge;

  AutomatonBuilder(const TermTree& tree, const GrammarLimits& limits);
  GrammarAutomaton run(Term root);

 private:
  // A term is compiled between two states that exist: it adds only edges out of `begin` and into `end`, so
  // that alternatives can share both. `copies` says how often this place is repeated.
  void compile(Term term, State begin, State end, uint64_t copies);
  void compile_text(std::string_view text, State begin, State end);
  void compile_texts(const std::vector<std::string>& texts, State begin, State end);
  void compile_characters(uint32_t set, State begin, State end);
  void compile_repeat(const TermTree::Node& node, State begin, State end, uint64_t copies);
  void compile_once(Term part, State from, State to, uint64_t copies);
  State compile_exactly(Term part, uint64_t n, State at, uint64_t copies);
  void compile_utf8(const std::vector<CodePointRange>& ranges, State begin, State end);
  void call(uint32_t rule, State begin, State end);

  State add_state();
  void add_edge(State from, Edge edge);
  void add_bytes(State from, uint8_t low, uint8_t high, State to);
  void add_empty(State from, State to);

  uint32_t rule_of(uint32_t tree_rule);       // automaton rule of a tree rule, compiled later
  uint32_t rule_of_term(Term term);           // anonymous rule for a hoisted term
  uint32_t rule_of_block(Term term);          // kBlock copies of a term
  uint32_t rule_of_wide(uint32_t range_set);  // characters beyond ASCII of a set

  void find_sizes();
  uint64_t weight(Term term);  // states that compiling in place takes, saturating
  uint64_t compute_weight(Term term);

  const TermTree& tree_;
  const GrammarLimits& limits_;
  std::vector<uint64_t> rule_weight_;  // kRecursive when it cannot be inlined
  std::vector<uint64_t> weights_;      // by term, 0: not computed
  std::vector<std::vector<Edge>> edges_;
  size_t n_edges_ = 0;
  int inline_depth_ = 0;
  uint64_t inlined_ = 0;  // states compiled in place of calls so far
  std::vector<State> ends_;
  std::vector<GrammarAutomaton::Rule> rules_;
  struct Pending {
    uint32_t rule;
    enum class What { kTerm, kBlock, kWide } what;
    uint32_t index;
    State begin, end;
  };
  uint32_t add_rule(std::string name, std::string place, Pending::What what, uint32_t index);

  std::vector<Pending> pending_;
  std::unordered_map<uint32_t, uint32_t> tree_rules_, term_rules_, block_rules_;
  std::map<std::vector<std::pair<uint32_t, uint32_t>>, uint32_t> wide_rules_;
};

}  // namespace synod
