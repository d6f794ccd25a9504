#include "text/grammar/automaton_builder.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace synod {

using Kind = TermTree::Kind;
using EdgeKind = GrammarAutomaton::EdgeKind;

namespace {

constexpr uint64_t kRecursive = UINT64_MAX;
constexpr uint64_t kInlineStates = 48;  // a rule this small is compiled in place
constexpr uint64_t kInlineTotal =
    512;  // ... unless it is repeated so often that it would take more than this
constexpr int kInlineDepth = 32;
constexpr uint64_t kHoistStates = 3;  // a repeated term larger than this becomes a rule
constexpr uint64_t kHoistCopies = 8;
constexpr uint64_t kBlocksFrom = 4096;  // longer repetitions are counted in blocks, each a call
constexpr uint64_t kBlock = 1024;
constexpr uint64_t kHuge = uint64_t(1) << 40;

uint64_t saturating_multiply(uint64_t a, uint64_t b) { return b != 0 && a > kHuge / b ? kHuge : a * b; }

}  // namespace

AutomatonBuilder::AutomatonBuilder(const TermTree& tree, const GrammarLimits& limits)
    : tree_(tree), limits_(limits) {}

AutomatonBuilder::State AutomatonBuilder::add_state() {
  if (edges_.size() >= limits_.max_states) {
    fail(Error::Kind::kUsage,
         "grammar: needs more than {} states; use smaller repetition bounds, fewer alternatives or shorter "
         "lists",
         limits_.max_states);
  }
  edges_.emplace_back();
  return State(edges_.size() - 1);
}

void AutomatonBuilder::add_edge(State from, Edge edge) {
  constexpr size_t kEdgesPerState = 8;
  if (++n_edges_ > limits_.max_states * kEdgesPerState) {
    fail(Error::Kind::kUsage,
         "grammar: needs more than {} edges; use smaller repetition bounds or character classes",
         limits_.max_states * kEdgesPerState);
  }
  edges_[from].push_back(edge);
}

void AutomatonBuilder::add_bytes(State from, uint8_t low, uint8_t high, State to) {
  add_edge(from, {EdgeKind::kBytes, low, high, to, 0});
}

void AutomatonBuilder::add_empty(State from, State to) { add_edge(from, {EdgeKind::kEmpty, 0, 0, to, 0}); }

void AutomatonBuilder::call(uint32_t rule, State begin, State end) {
  add_edge(begin, {EdgeKind::kCall, 0, 0, end, rule});
}

// Weights of rules bottom-up over the call graph; a rule on a cycle keeps kRecursive. Iterative: rules may be
// nested thousands deep.
void AutomatonBuilder::find_sizes() {
  const size_t n = tree_.rules.size();
  weights_.assign(tree_.nodes.size(), 0);
  rule_weight_.assign(n, kRecursive);
  std::vector<std::vector<uint32_t>> callers(n);
  std::vector<uint32_t> open_calls(n, 0);
  for (uint32_t r = 0; r < n; ++r) {
    std::vector<Term> stack{tree_.rules[r].body};
    std::unordered_map<uint32_t, bool> seen;
    while (!stack.empty()) {
      const Term term = stack.back();
      stack.pop_back();
      if (!seen.try_emplace(term.index, true).second) continue;
      const TermTree::Node& node = tree_.at(term);
      if (node.kind == Kind::kSequence || node.kind == Kind::kChoice) {
        for (const Term part : tree_.lists[node.a]) stack.push_back(part);
      } else if (node.kind == Kind::kRepeat) {
        stack.push_back(Term{node.a});
      } else if (node.kind == Kind::kRule) {
        callers[node.a].push_back(r);
        ++open_calls[r];
      }
    }
  }
  std::vector<uint32_t> ready;
  for (uint32_t r = 0; r < n; ++r) {
    if (open_calls[r] == 0) ready.push_back(r);
  }
  while (!ready.empty()) {
    const uint32_t r = ready.back();
    ready.pop_back();
    rule_weight_[r] = weight(tree_.rules[r].body);
    for (const uint32_t caller : callers[r]) {
      if (--open_calls[caller] == 0) ready.push_back(caller);
    }
  }
}

uint64_t AutomatonBuilder::weight(Term term) {
  uint64_t& known = weights_[term.index];
  if (known == 0) known = std::max<uint64_t>(1, compute_weight(term));
  return weights_[term.index];
}

uint64_t AutomatonBuilder::compute_weight(Term term) {
  const TermTree::Node& node = tree_.at(term);
  uint64_t total = 0;
  switch (node.kind) {
    case Kind::kEmpty:
    case Kind::kNever:
    case Kind::kCharacters:
    case Kind::kBytes:
    case Kind::kToken:
    case Kind::kTextTokenExcept:
    case Kind::kControlExcept:
      return 1;
    case Kind::kText:
      return tree_.texts[node.a].size();
    case Kind::kTexts:
      for (const std::string& text : tree_.text_sets[node.a]) total += text.size();
      return total;
    case Kind::kSequence:
    case Kind::kChoice:
      for (const Term part : tree_.lists[node.a]) total = std::min(kHuge, total + weight(part));
      return total;
    case Kind::kRepeat: {
      const TermTree::Bounds bounds = tree_.repeats[node.b];
      const uint64_t copies = bounds.max == TermTree::kUnbounded ? uint64_t(bounds.min) + 1 : bounds.max;
      return saturating_multiply(weight(Term{node.a}), copies);
    }
    case Kind::kRule: {
      const uint64_t inner = rule_weight_[node.a];
      return inner <= kInlineStates ? inner : 1;
    }
  }
  return total;
}

uint32_t AutomatonBuilder::add_rule(std::string name, std::string place, Pending::What what, uint32_t index) {
  const State begin = add_state();
  const State end = add_state();
  ends_.push_back(end);
  rules_.push_back({begin, std::move(name), std::move(place)});
  const auto rule = uint32_t(rules_.size() - 1);
  pending_.push_back({rule, what, index, begin, end});
  return rule;
}

uint32_t AutomatonBuilder::rule_of(uint32_t tree_rule) {
  const auto found = tree_rules_.find(tree_rule);
  if (found != tree_rules_.end()) return found->second;
  const TermTree::Rule& source = tree_.rules[tree_rule];
  const uint32_t rule = add_rule(source.name, source.place, Pending::What::kTerm, source.body.index);
  tree_rules_.emplace(tree_rule, rule);
  return rule;
}

uint32_t AutomatonBuilder::rule_of_term(Term term) {
  const auto found = term_rules_.find(term.index);
  if (found != term_rules_.end()) return found->second;
  const uint32_t rule = add_rule("repeated part", {}, Pending::What::kTerm, term.index);
  term_rules_.emplace(term.index, rule);
  return rule;
}

uint32_t AutomatonBuilder::rule_of_block(Term term) {
  const auto found = block_rules_.find(term.index);
  if (found != block_rules_.end()) return found->second;
  const uint32_t rule = add_rule("repeated block", {}, Pending::What::kBlock, term.index);
  block_rules_.emplace(term.index, rule);
  return rule;
}

// Equal sets share a rule, whoever asked first.
uint32_t AutomatonBuilder::rule_of_wide(uint32_t range_set) {
  std::vector<std::pair<uint32_t, uint32_t>> key;
  for (const CodePointRange range : tree_.range_sets[range_set]) {
    if (range.high >= 0x80) key.emplace_back(std::max<uint32_t>(range.low, 0x80), range.high);
  }
  const auto found = wide_rules_.find(key);
  if (found != wide_rules_.end()) return found->second;
  const uint32_t rule = add_rule("characters", {}, Pending::What::kWide, range_set);
  wide_rules_.emplace(std::move(key), rule);
  return rule;
}

GrammarAutomaton AutomatonBuilder::run(Term root) {
  for (const TermTree::Rule& rule : tree_.rules) {
    if (!rule.defined) fail(Error::Kind::kUsage, "grammar: rule '{}' is used but not defined", rule.name);
  }
  find_sizes();
  add_rule("root", {}, Pending::What::kTerm, root.index);
  while (!pending_.empty()) {
    const Pending next = pending_.back();
    pending_.pop_back();
    if (next.what == Pending::What::kWide) {
      compile_utf8(tree_.range_sets[next.index], next.begin, next.end);
    } else if (next.what == Pending::What::kBlock) {
      add_empty(compile_exactly(Term{next.index}, kBlock, next.begin, kBlock), next.end);
    } else {
      compile(Term{next.index}, next.begin, next.end, 1);
    }
  }
  GrammarAutomaton out;
  out.first_edge.reserve(edges_.size() + 1);
  for (auto& list : edges_) {
    out.first_edge.push_back(uint32_t(out.edges.size()));
    out.edges.insert(out.edges.end(), list.begin(), list.end());
    list = {};
  }
  out.first_edge.push_back(uint32_t(out.edges.size()));
  out.is_end.assign(edges_.size(), 0);
  for (const State end : ends_) out.is_end[end] = 1;
  out.rules = std::move(rules_);
  out.token_sets = tree_.token_sets;
  return out;
}

void AutomatonBuilder::compile(Term term, State begin, State end, uint64_t copies) {
  const TermTree::Node& node = tree_.at(term);
  switch (node.kind) {
    case Kind::kEmpty:
      add_empty(begin, end);
      return;
    case Kind::kNever:
      return;
    case Kind::kText:
      compile_text(tree_.texts[node.a], begin, end);
      return;
    case Kind::kTexts:
      compile_texts(tree_.text_sets[node.a], begin, end);
      return;
    case Kind::kCharacters:
      compile_characters(node.a, begin, end);
      return;
    case Kind::kBytes:
      add_bytes(begin, uint8_t(node.a), uint8_t(node.b), end);
      return;
    case Kind::kSequence: {
      const auto& parts = tree_.lists[node.a];
      State at = begin;
      for (size_t i = 0; i < parts.size(); ++i) {
        const State next = i + 1 == parts.size() ? end : add_state();
        compile(parts[i], at, next, copies);
        at = next;
      }
      return;
    }
    case Kind::kChoice:
      for (const Term part : tree_.lists[node.a]) compile(part, begin, end, copies);
      return;
    case Kind::kRepeat:
      compile_repeat(node, begin, end, copies);
      return;
    case Kind::kRule: {
      const uint64_t size = rule_weight_[node.a];
      const bool small = size <= kInlineStates && saturating_multiply(size, copies) <= kInlineTotal;
      // A large grammar saves its states.
      if (small && inline_depth_ < kInlineDepth && inlined_ + size <= limits_.max_states / 4) {
        inlined_ += size;
        ++inline_depth_;
        compile(tree_.rules[node.a].body, begin, end, copies);
        --inline_depth_;
      } else {
        call(rule_of(node.a), begin, end);
      }
      return;
    }
    case Kind::kToken:
      add_edge(begin, {EdgeKind::kToken, 0, 0, end, node.a});
      return;
    case Kind::kTextTokenExcept:
      add_edge(begin, {EdgeKind::kTextTokenExcept, 0, 0, end, node.a});
      return;
    case Kind::kControlExcept:
      add_edge(begin, {EdgeKind::kControlExcept, 0, 0, end, node.a});
      return;
  }
}

void AutomatonBuilder::compile_text(std::string_view text, State begin, State end) {
  State at = begin;
  for (size_t i = 0; i < text.size(); ++i) {
    const State next = i + 1 == text.size() ? end : add_state();
    add_bytes(at, uint8_t(text[i]), uint8_t(text[i]), next);
    at = next;
  }
  if (text.empty()) add_empty(begin, end);
}

// `texts` is sorted: shared prefixes are neighbours.
void AutomatonBuilder::compile_texts(const std::vector<std::string>& texts, State begin, State end) {
  std::vector<State> path{begin};  // states along the previous text
  std::string_view previous;
  for (const std::string& text : texts) {
    size_t shared = 0;
    while (shared < previous.size() && shared < text.size() && previous[shared] == text[shared]) ++shared;
    path.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(add_state());
      add_bytes(path[i], uint8_t(text[i]), uint8_t(text[i]), path[i + 1]);
    }
    add_empty(path.back(), end);
    previous = text;
  }
}

void AutomatonBuilder::compile_characters(uint32_t set, State begin, State end) {
  bool wide = false;
  for (const CodePointRange range : tree_.range_sets[set]) {
    if (range.low < 0x80) {
      add_bytes(begin, uint8_t(range.low), uint8_t(std::min<char32_t>(range.high, 0x7F)), end);
    }
    wide = wide || range.high >= 0x80;
  }
  if (wide) call(rule_of_wide(set), begin, end);
}

void AutomatonBuilder::compile_once(Term part, State from, State to, uint64_t copies) {
  if (copies > kHoistCopies && weight(part) > kHoistStates) {
    call(rule_of_term(part), from, to);
  } else {
    compile(part, from, to, copies);
  }
}

// `n` copies, whole blocks of them as calls. Returns where they end.
AutomatonBuilder::State AutomatonBuilder::compile_exactly(Term part, uint64_t n, State at, uint64_t copies) {
  const bool in_blocks = n > kBlocksFrom;
  while (n > 0) {
    const State next = add_state();
    if (in_blocks && n >= kBlock) {
      call(rule_of_block(part), at, next);
      n -= kBlock;
    } else {
      compile_once(part, at, next, copies);
      --n;
    }
    at = next;
  }
  return at;
}

void AutomatonBuilder::compile_repeat(const TermTree::Node& node, State begin, State end, uint64_t copies) {
  const Term part{node.a};
  const TermTree::Bounds bounds = tree_.repeats[node.b];
  const bool unbounded = bounds.max == TermTree::kUnbounded;
  const uint64_t total =
      saturating_multiply(unbounded ? std::max<uint64_t>(bounds.min, 1) : bounds.max, copies);
  State at = add_state();
  add_empty(begin, at);
  at = compile_exactly(part, bounds.min, at, total);
  if (unbounded) {
    const State again = add_state();
    compile_once(part, at, again, total);
    add_empty(again, at);
    add_empty(at, end);
    return;
  }
  uint64_t more = bounds.max - bounds.min;
  if (more <= kBlocksFrom) {
    for (; more > 0; --more) {
      add_empty(at, end);
      at = compile_exactly(part, 1, at, total);
    }
    add_empty(at, end);
    return;
  }
  // Any number of whole blocks, then less than a block: fewer only where no further block is allowed.
  std::vector<State> rest(kBlock);  // rest[n]: at most n copies more
  for (uint64_t n = 0; n < kBlock; ++n) {
    rest[n] = add_state();
    add_empty(rest[n], end);
    if (n > 0) compile_once(part, rest[n], rest[n - 1], total);
  }
  for (; more >= kBlock; more -= kBlock) {
    add_empty(at, rest[kBlock - 1]);
    const State next = add_state();
    call(rule_of_block(part), at, next);
    at = next;
  }
  add_empty(at, rest[more]);
}

// Splits every range where the number of bytes or a leading byte changes, until each piece is a product of
// byte ranges. Tails that accept any continuation are shared.
void AutomatonBuilder::compile_utf8(const std::vector<CodePointRange>& ranges, State begin, State end) {
  std::map<std::pair<State, int>, State> any_tail;  // (end, continuation bytes) -> state
  const auto tail = [&](int n) {
    State at = end;
    for (int i = 1; i <= n; ++i) {
      const auto [entry, added] = any_tail.try_emplace({end, i}, 0);
      if (added) {
        entry->second = add_state();
        add_bytes(entry->second, 0x80, 0xBF, at);
      }
      at = entry->second;
    }
    return at;
  };
  // Encodings of low..high, which share all bytes before `skip`, from state `from`.
  struct Piece {
    std::string low, high;
    size_t skip;
    State from;
  };
  std::vector<Piece> stack;
  constexpr char32_t kLengthLimits[] = {0x7FF, 0xFFFF, 0x10FFFF};
  for (const CodePointRange range : ranges) {
    char32_t low = std::max<char32_t>(range.low, 0x80);
    for (const char32_t limit : kLengthLimits) {
      if (low > range.high) break;
      if (low > limit) continue;
      const char32_t high = std::min(range.high, limit);
      Piece piece{{}, {}, 0, begin};
      append_utf8(piece.low, low);
      append_utf8(piece.high, high);
      stack.push_back(std::move(piece));
      low = high + 1;
    }
  }
  std::map<std::pair<State, uint8_t>, State> next_state;  // lead bytes in common
  while (!stack.empty()) {
    Piece piece = std::move(stack.back());
    stack.pop_back();
    const size_t length = piece.low.size();
    const size_t i = piece.skip;
    const auto low = uint8_t(piece.low[i]), high = uint8_t(piece.high[i]);
    const bool last = i + 1 == length;
    if (last) {
      add_bytes(piece.from, low, high, end);
      continue;
    }
    const auto rest_is = [&](const std::string& bytes, char value) {
      return std::all_of(bytes.begin() + long(i) + 1, bytes.end(), [value](char c) { return c == value; });
    };
    const bool from_start = rest_is(piece.low, '\x80'), to_end = rest_is(piece.high, '\xBF');
    if (low == high && !(from_start && to_end)) {
      const auto [entry, added] = next_state.try_emplace({piece.from, low}, 0);
      if (added) {
        entry->second = add_state();
        add_bytes(piece.from, low, low, entry->second);
      }
      stack.push_back({piece.low, piece.high, i + 1, entry->second});
      continue;
    }
    // A middle part whose tail is free, and what is left at both ends.
    uint8_t free_low = low, free_high = high;
    if (!from_start) {
      std::string top = piece.low.substr(0, i + 1) + std::string(length - i - 1, '\xBF');
      stack.push_back({piece.low, top, i, piece.from});
      ++free_low;
    }
    if (!to_end) {
      std::string bottom = piece.high.substr(0, i + 1) + std::string(length - i - 1, '\x80');
      stack.push_back({bottom, piece.high, i, piece.from});
      --free_high;
    }
    if (free_low <= free_high) add_bytes(piece.from, free_low, free_high, tail(int(length - i - 1)));
  }
}

}  // namespace synod
