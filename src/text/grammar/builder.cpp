#include "text/grammar/builder.h"

#include <algorithm>
#include <deque>
#include <map>

#include "base/error.h"
#include "text/grammar/automaton.h"

namespace synod {

using Kind = TermTree::Kind;

namespace {

constexpr char32_t kMaxCodePoint = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

void push_without_surrogates(std::vector<CodePointRange>& out, CodePointRange range) {
  if (range.low > range.high) return;
  if (range.low < kFirstSurrogate)
    out.push_back({range.low, std::min<char32_t>(range.high, kFirstSurrogate - 1)});
  if (range.high > kLastSurrogate)
    out.push_back({std::max<char32_t>(range.low, kLastSurrogate + 1), range.high});
}

}  // namespace

std::vector<CodePointRange> normalized(std::vector<CodePointRange> ranges, bool negated) {
  std::sort(ranges.begin(), ranges.end(), [](auto a, auto b) { return a.low < b.low; });
  std::vector<CodePointRange> merged;
  for (CodePointRange range : ranges) {
    range.high = std::min(range.high, kMaxCodePoint);
    if (range.low > range.high) continue;
    if (!merged.empty() && range.low <= merged.back().high + 1) {
      merged.back().high = std::max(merged.back().high, range.high);
    } else {
      merged.push_back(range);
    }
  }
  std::vector<CodePointRange> out;
  if (!negated) {
    for (const CodePointRange range : merged) push_without_surrogates(out, range);
    return out;
  }
  char32_t next = 0;
  for (const CodePointRange range : merged) {
    if (range.low > next) push_without_surrogates(out, {next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kMaxCodePoint) push_without_surrogates(out, {next, kMaxCodePoint});
  return out;
}

GrammarBuilder::GrammarBuilder(const GrammarLimits& limits) : limits_(limits) {}

Term GrammarBuilder::add(TermTree::Node node) {
  if (tree_.nodes.size() >= limits_.max_terms) {
    fail(Error::Kind::kUsage, "grammar: more than {} terms; simplify it", limits_.max_terms);
  }
  tree_.nodes.push_back(node);
  return {uint32_t(tree_.nodes.size() - 1)};
}

Term GrammarBuilder::empty() { return add({Kind::kEmpty}); }
Term GrammarBuilder::never() { return add({Kind::kNever}); }

void GrammarBuilder::count_text(size_t bytes) {
  text_bytes_ += bytes;
  if (text_bytes_ > limits_.max_states * 4) {
    fail(Error::Kind::kUsage, "grammar: more than {} bytes of literal text; simplify it",
         limits_.max_states * 4);
  }
}

Term GrammarBuilder::text(std::string_view utf8) {
  if (utf8.empty()) return empty();
  count_text(utf8.size());
  tree_.texts.emplace_back(utf8);
  return add({Kind::kText, uint32_t(tree_.texts.size() - 1)});
}

Term GrammarBuilder::any_of_texts(std::vector<std::string> texts) {
  if (texts.empty()) return never();
  for (const std::string& text : texts) count_text(text.size());
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  tree_.text_sets.push_back(std::move(texts));
  return add({Kind::kTexts, uint32_t(tree_.text_sets.size() - 1)});
}

Term GrammarBuilder::characters(std::vector<CodePointRange> ranges, bool negated) {
  auto set = normalized(std::move(ranges), negated);
  if (set.empty()) return never();
  tree_.range_sets.push_back(std::move(set));
  return add({Kind::kCharacters, uint32_t(tree_.range_sets.size() - 1)});
}

Term GrammarBuilder::any_character() { return characters({}, true); }

Term GrammarBuilder::bytes(uint8_t low, uint8_t high) {
  SYNOD_ASSERT(low <= high);
  return add({Kind::kBytes, low, high});
}

Term GrammarBuilder::sequence(std::vector<Term> parts) {
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts[0];
  tree_.lists.push_back(std::move(parts));
  return add({Kind::kSequence, uint32_t(tree_.lists.size() - 1)});
}

Term GrammarBuilder::choice(std::vector<Term> alternatives) {
  if (alternatives.empty()) return never();
  if (alternatives.size() == 1) return alternatives[0];
  tree_.lists.push_back(std::move(alternatives));
  return add({Kind::kChoice, uint32_t(tree_.lists.size() - 1)});
}

Term GrammarBuilder::repeat(Term part, int64_t min, int64_t max) {
  const bool unbounded = max < 0;
  const int64_t largest = unbounded ? min : max;
  if (min < 0 || (!unbounded && max < min) || largest > int64_t(limits_.max_repeat)) {
    fail(Error::Kind::kUsage, "grammar: repetition from {} to {}: expected 0 <= from <= to <= {}", min,
         unbounded ? std::string("any number") : std::to_string(max), limits_.max_repeat);
  }
  TermTree::Bounds bounds{uint32_t(min), unbounded ? TermTree::kUnbounded : uint32_t(max)};
  // (x?){m,n} is x{0,n} and (x*){m,n} is x*: no states for repetitions of nothing.
  const TermTree::Node inner = tree_.at(part);
  if (inner.kind == Kind::kRepeat && tree_.repeats[inner.b].min == 0 && bounds.max > 0) {
    const uint32_t inner_max = tree_.repeats[inner.b].max;
    if (inner_max == TermTree::kUnbounded) return part;
    if (inner_max == 1) {
      part = Term{inner.a};
      bounds.min = 0;
    }
  }
  if (bounds.max == 0) return empty();
  if (bounds.min == 1 && bounds.max == 1) return part;
  tree_.repeats.push_back(bounds);
  return add({Kind::kRepeat, part.index, uint32_t(tree_.repeats.size() - 1)});
}

Term GrammarBuilder::declare(std::string name) {
  tree_.rules.push_back({std::move(name), {}, {}, false});
  return add({Kind::kRule, uint32_t(tree_.rules.size() - 1)});
}

void GrammarBuilder::define(Term rule, Term body) { define(rule, body, {}); }

void GrammarBuilder::define(Term rule, Term body, std::string place) {
  SYNOD_ASSERT(tree_.at(rule).kind == Kind::kRule);
  TermTree::Rule& target = tree_.rules[tree_.at(rule).a];
  SYNOD_ASSERT(!target.defined);
  target.body = body;
  target.place = std::move(place);
  target.defined = true;
}

Term GrammarBuilder::token(int32_t id) {
  if (id < 0) fail(Error::Kind::kUsage, "grammar: token id {}: expected 0 or more", id);
  return add({Kind::kToken, uint32_t(id)});
}

uint32_t GrammarBuilder::token_set(std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  tree_.token_sets.push_back(std::move(ids));
  return uint32_t(tree_.token_sets.size() - 1);
}

Term GrammarBuilder::any_token_except(std::vector<int32_t> ids) {
  return add({Kind::kTextTokenExcept, token_set(std::move(ids))});
}

namespace {

// Aho-Corasick: node per prefix of a pattern, total transition function over the bytes that patterns use.
struct PatternNodes {
  std::vector<std::map<uint8_t, uint32_t>> next{1};
  std::vector<uint32_t> fail{0};
  std::vector<bool> hit{false};

  explicit PatternNodes(const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns) {
      uint32_t node = 0;
      for (const char c : pattern) {
        const auto [edge, added] = next[node].try_emplace(uint8_t(c), uint32_t(next.size()));
        node = edge->second;
        if (added) {
          next.emplace_back();
          fail.push_back(0);
          hit.push_back(false);
        }
      }
      hit[node] = true;
    }
    std::deque<uint32_t> queue;
    for (const auto& [byte, child] : next[0]) queue.push_back(child);
    while (!queue.empty()) {
      const uint32_t node = queue.front();
      queue.pop_front();
      if (hit[fail[node]]) hit[node] = true;
      for (const auto& [byte, child] : next[node]) {
        fail[child] = go(fail[node], byte);
        queue.push_back(child);
      }
    }
  }

  uint32_t go(uint32_t node, uint8_t byte) const {
    for (;;) {
      const auto edge = next[node].find(byte);
      if (edge != next[node].end()) return edge->second;
      if (node == 0) return 0;
      node = fail[node];
    }
  }
};

}  // namespace

// One rule per pattern prefix; right-linear, so that calls push nothing. `at_hit` follows a complete pattern,
// `anywhere` is an alternative wherever no pattern is complete.
Term GrammarBuilder::scan(const std::vector<std::string>& patterns, Term at_hit,
                          std::vector<ScanEdge> anywhere, bool may_end) {
  const PatternNodes nodes(patterns);
  std::vector<Term> rules;
  for (size_t n = 0; n < nodes.next.size(); ++n) rules.push_back(declare("text"));
  for (size_t n = 0; n < nodes.next.size(); ++n) {
    if (nodes.hit[n]) {
      define(rules[n], at_hit);
      continue;
    }
    std::vector<Term> alternatives;
    for (unsigned byte = 0; byte < 256;) {
      const uint32_t target = nodes.go(uint32_t(n), uint8_t(byte));
      unsigned last = byte;
      while (last + 1 < 256 && nodes.go(uint32_t(n), uint8_t(last + 1)) == target) ++last;
      alternatives.push_back(sequence({bytes(uint8_t(byte), uint8_t(last)), rules[target]}));
      byte = last + 1;
    }
    for (const ScanEdge& edge : anywhere) {
      alternatives.push_back(edge.then_restart ? sequence({edge.term, rules[0]}) : edge.term);
    }
    if (may_end) alternatives.push_back(empty());
    define(rules[n], choice(std::move(alternatives)));
  }
  return rules[0];
}

Term GrammarBuilder::until(std::string_view text) {
  if (text.empty()) fail(Error::Kind::kUsage, "grammar: until: expected a text that is not empty");
  return scan({std::string(text)}, empty(), {}, false);
}

Term GrammarBuilder::lazy(const Triggers& triggers, Term body, int64_t min_calls, int64_t max_calls) {
  constexpr int64_t kMaxCounted = 64;
  if (triggers.tokens.empty() && triggers.texts.empty()) {
    fail(Error::Kind::kUsage, "grammar: lazy: expected at least one trigger token or text");
  }
  for (const std::string& text : triggers.texts) {
    if (text.empty()) fail(Error::Kind::kUsage, "grammar: lazy: a trigger text is empty");
  }
  if (min_calls < 0 || (max_calls >= 0 && max_calls < min_calls) ||
      std::max(min_calls, max_calls) > kMaxCounted) {
    fail(Error::Kind::kUsage, "grammar: lazy: calls from {} to {}: expected 0 <= from <= to <= {}", min_calls,
         max_calls, kMaxCounted);
  }
  std::vector<Term> trigger_tokens;
  for (const int32_t id : triggers.tokens) trigger_tokens.push_back(token(id));
  trigger_ids_.insert(trigger_ids_.end(), triggers.tokens.begin(), triggers.tokens.end());
  const Term other_control = add({Kind::kControlExcept, token_set(triggers.tokens)});

  // Free text after `calls` bodies; counted up to the larger bound, the last one repeats when there is no
  // maximum.
  const int64_t last = max_calls >= 0 ? max_calls : min_calls;
  std::vector<Term> free;
  for (int64_t calls = 0; calls <= last; ++calls) free.push_back(declare("free text"));
  for (int64_t calls = 0; calls <= last; ++calls) {
    const bool may_call = max_calls < 0 || calls < max_calls;
    const Term after = may_call ? sequence({body, free[size_t(std::min(calls + 1, last))]}) : never();
    std::vector<ScanEdge> edges{{other_control, true}};
    if (may_call && !trigger_tokens.empty()) {
      edges.push_back({sequence({choice(trigger_tokens), after}), false});
    }
    define(free[size_t(calls)], scan(triggers.texts, after, std::move(edges), calls >= min_calls));
  }
  return free[0];
}

std::shared_ptr<const Grammar> GrammarBuilder::build(Term root,
                                                     std::shared_ptr<const Vocabulary> vocabulary) {
  for (const int32_t id : trigger_ids_) {
    // Free text would take it for text, and nothing would be enforced.
    if (id < vocabulary->size() && vocabulary->is_text(id)) {
      fail(Error::Kind::kUsage, "grammar: trigger token {} carries text; give its text as a trigger instead",
           id);
    }
  }
  auto automaton = std::make_unique<GrammarAutomaton>(compile_automaton(tree_, root, limits_));
  return std::make_shared<Grammar>(std::move(automaton), std::move(vocabulary), limits_);
}

}  // namespace synod
