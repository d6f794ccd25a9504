#include "text/grammar/automaton.h"

#include <algorithm>
#include <bitset>
#include <map>

#include "base/error.h"
#include "text/grammar/automaton_builder.h"

namespace synod {

using State = GrammarAutomaton::State;
using Edge = GrammarAutomaton::Edge;
using EdgeKind = GrammarAutomaton::EdgeKind;

namespace {

// Work through states backwards from the ends. A state is `good` when it is an end of its rule or an edge
// leads to a good state; a call counts when the called rule's start is good too and `call_counts`; reading
// edges count when `reading_counts`. With both: states that can be completed. With calls only: rules that
// match the empty text.
std::vector<uint8_t> backwards(const GrammarAutomaton& a, bool reading_counts) {
  const size_t n = a.n_states();
  struct In {
    State from;
    uint32_t rule;  // of a call; kNoRule otherwise
  };
  constexpr uint32_t kNoRule = UINT32_MAX;
  std::vector<std::vector<In>> incoming(n);                                   // by target
  std::vector<std::vector<std::pair<State, State>>> waiting(a.rules.size());  // calls whose target is good
  std::vector<uint32_t> rule_at(n, kNoRule);
  for (uint32_t r = 0; r < a.rules.size(); ++r) rule_at[a.rules[r].start] = r;
  for (State s = 0; s < n; ++s) {
    for (const Edge& edge : a.edges_of(s)) {
      if (edge.kind == EdgeKind::kCall) {
        incoming[edge.target].push_back({s, edge.argument});
      } else if (edge.kind == EdgeKind::kEmpty || reading_counts) {
        incoming[edge.target].push_back({s, kNoRule});
      }
    }
  }
  std::vector<uint8_t> good(n, 0);
  std::vector<State> work;
  const auto mark = [&](State s) {
    if (!good[s]) {
      good[s] = 1;
      work.push_back(s);
    }
  };
  for (State s = 0; s < n; ++s) {
    if (a.is_end[s]) mark(s);
  }
  while (!work.empty()) {
    const State s = work.back();
    work.pop_back();
    for (const In& in : incoming[s]) {
      if (in.rule == kNoRule || good[a.rules[in.rule].start]) {
        mark(in.from);
      } else {
        waiting[in.rule].emplace_back(in.from, s);
      }
    }
    if (rule_at[s] != kNoRule) {
      for (const auto& [from, target] : waiting[rule_at[s]]) mark(from);
      waiting[rule_at[s]].clear();
    }
  }
  return good;
}

void drop_dead_edges(GrammarAutomaton& a, const std::vector<uint8_t>& alive) {
  std::vector<Edge> kept;
  kept.reserve(a.edges.size());
  std::vector<uint32_t> first;
  first.reserve(a.first_edge.size());
  for (State s = 0; s < a.n_states(); ++s) {
    first.push_back(uint32_t(kept.size()));
    for (const Edge& edge : a.edges_of(s)) {
      if (!alive[edge.target]) continue;
      if (edge.kind == EdgeKind::kCall && !alive[a.rules[edge.argument].start]) continue;
      kept.push_back(edge);
    }
  }
  first.push_back(uint32_t(kept.size()));
  a.edges = std::move(kept);
  a.first_edge = std::move(first);
}

std::string described(const GrammarAutomaton::Rule& rule) {
  return rule.place.empty() ? fmt::format("'{}'", rule.name)
                            : fmt::format("'{}' ({})", rule.name, rule.place);
}

// Rule r begins with rule q when q is called from a state that r's start reaches without reading. A cycle of
// that relation is left recursion: the stacks would grow without end.
void refuse_left_recursion(const GrammarAutomaton& a, const std::vector<uint8_t>& nullable_tail) {
  const size_t n_rules = a.rules.size();
  std::vector<std::vector<uint32_t>> begins_with(n_rules);
  std::vector<uint32_t> seen(a.n_states(), UINT32_MAX);
  for (uint32_t r = 0; r < n_rules; ++r) {
    std::vector<State> stack{a.rules[r].start};
    seen[stack[0]] = r;
    while (!stack.empty()) {
      const State s = stack.back();
      stack.pop_back();
      for (const Edge& edge : a.edges_of(s)) {
        bool passes = edge.kind == EdgeKind::kEmpty;
        if (edge.kind == EdgeKind::kCall) {
          begins_with[r].push_back(edge.argument);
          passes = nullable_tail[a.rules[edge.argument].start];
        }
        if (passes && seen[edge.target] != r) {
          seen[edge.target] = r;
          stack.push_back(edge.target);
        }
      }
    }
  }
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> mark(n_rules, kNew);
  std::vector<std::pair<uint32_t, size_t>> path;  // rule, next successor
  for (uint32_t r = 0; r < n_rules; ++r) {
    if (mark[r] != kNew) continue;
    path.emplace_back(r, 0);
    mark[r] = kOpen;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == begins_with[rule].size()) {
        mark[rule] = kDone;
        path.pop_back();
        continue;
      }
      const uint32_t successor = begins_with[rule][next++];
      if (mark[successor] == kOpen) {
        fail(Error::Kind::kUsage,
             "grammar: rule {} is left-recursive: it can begin with itself; write it with a repetition "
             "instead",
             described(a.rules[successor]));
      }
      if (mark[successor] == kNew) {
        mark[successor] = kOpen;
        path.emplace_back(successor, 0);
      }
    }
  }
}

// States from which only the end can be reached without reading or calling: a call that goes there is a tail
// call.
std::vector<uint8_t> tails(const GrammarAutomaton& a) {
  enum : uint8_t { kUnknown, kNo, kYes, kOpen };
  std::vector<uint8_t> verdict(a.n_states(), kUnknown);
  for (State first = 0; first < a.n_states(); ++first) {
    if (verdict[first] != kUnknown) continue;
    std::vector<State> path{first};
    while (!path.empty()) {
      const State s = path.back();
      bool pushed = false, yes = true;
      for (const Edge& edge : a.edges_of(s)) {
        if (edge.kind != EdgeKind::kEmpty || verdict[edge.target] == kNo) {
          yes = false;
          break;
        }
      }
      if (yes) {
        for (const Edge& edge : a.edges_of(s)) {
          if (verdict[edge.target] == kUnknown) {
            verdict[s] = kOpen;
            verdict[edge.target] = kOpen;
            path.push_back(edge.target);
            pushed = true;
            break;
          }
          // A cycle of empty edges: not a tail is the safe answer.
          if (verdict[edge.target] == kOpen) yes = false;
        }
      }
      if (pushed) continue;
      verdict[s] = yes && (a.is_end[s] || !a.edges_of(s).empty()) ? kYes : kNo;
      path.pop_back();
    }
  }
  for (uint8_t& v : verdict) v = v == kYes;
  return verdict;
}

void find_byte_classes(GrammarAutomaton& a) {
  std::bitset<257> border;
  border[0] = true;
  for (const Edge& edge : a.edges) {
    if (edge.kind != EdgeKind::kBytes) continue;
    border[edge.low] = true;
    border[size_t(edge.high) + 1] = true;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (border[byte]) a.class_byte.push_back(uint8_t(byte));
    a.byte_class[byte] = uint8_t(a.class_byte.size() - 1);
  }
}

}  // namespace

GrammarAutomaton compile_automaton(const TermTree& tree, Term root, const GrammarLimits& limits) {
  GrammarAutomaton a = AutomatonBuilder(tree, limits).run(root);
  const std::vector<uint8_t> alive = backwards(a, true);
  if (!alive[a.rules[0].start]) {
    fail(Error::Kind::kUsage,
         "grammar: nothing matches: every alternative of the root needs an endless text or is empty");
  }
  drop_dead_edges(a, alive);
  refuse_left_recursion(a, backwards(a, false));
  a.only_returns = tails(a);
  find_byte_classes(a);
  for (const Edge& edge : a.edges) {
    a.names_tokens = a.names_tokens || edge.kind == EdgeKind::kToken ||
                     edge.kind == EdgeKind::kTextTokenExcept || edge.kind == EdgeKind::kControlExcept;
  }
  return a;
}

}  // namespace synod
