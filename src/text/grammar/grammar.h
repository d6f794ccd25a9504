// Constrained output: a grammar compiled against a vocabulary, and the state of one text that follows it.
//
//   auto grammar = Grammar::from_json_schema(schema, vocabulary);   // shared by requests, thread-safe
//   GrammarState state(grammar);                                    // one per text; a copy is a fork or a
//   bookmark state.mask(words);  id = sample(...);  state.accept(id);
//
// How it works. Sources (GBNF, JSON Schema, the builder) become one tree of terms, and the tree one automaton
// over bytes: per rule a non-deterministic automaton whose edges read a byte range, read a token id, or call
// a rule. A text is at a set of (state, stack of return states): the stacks are kept as a graph with shared
// tails, so that ambiguity costs polynomial time, and a call in tail position pushes nothing.
//
// A mask must decide 262,144 tokens in well under a millisecond. What a token may do depends on the top frame
// alone until the frame returns. So for each set of top states the vocabulary's trie is walked once with an
// unknown bottom: tokens that survive are allowed whatever lies below; trie nodes at which the frame returns
// are "exits", from which the walk goes on in the frame below. Both results are cached, the second under
// (first result, states below), so depth of nesting and history do not matter: a warm mask is a handful of
// look-ups and ORs. The cache is bounded and least recently used entries go first.
//
// A second shape would have been to determinize whole stacks (a mask per configuration). Simpler, but every
// nesting is then a new configuration and warm-up never ends. A third, Earley items per position, costs a
// closure per token and needs history; stacks need none and a copy is cheap.
//
// Ids: text tokens follow the bytes, whole or part of a character. Ids without text (control tokens) are
// allowed only where the grammar names them. Stop ids are allowed exactly where the text is complete.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/vocabulary.h"

namespace synod {

struct GrammarAutomaton;
struct StackGraph;
class MaskCache;

struct GrammarLimits {
  size_t max_source_bytes = size_t(1) << 20;  // GBNF or schema text
  size_t max_states = size_t(1) << 18;        // of the automaton; about 40 bytes each
  size_t max_terms = size_t(1) << 20;         // nodes of the tree
  int max_depth = 256;                        // nested groups, nested schemas
  uint32_t max_repeat = 100'000;              // {m,n}, maxLength, maxItems
  size_t cache_bytes = size_t(64) << 20;      // masks, and again for the tables under them
};

struct JsonOptions {
  bool spaces = true;          // accept white space between JSON tokens (bounded); false: compact
  bool any_key_order = false;  // objects of at most 8 declared properties take them in any order
};

class Grammar {
 public:
  // All throw kUsage: GBNF errors name line and column, schema errors the JSON pointer. White space may
  // precede the JSON value (options.spaces), nothing may follow it.
  static std::shared_ptr<const Grammar> from_gbnf(std::string_view text,
                                                  std::shared_ptr<const Vocabulary> vocabulary,
                                                  const GrammarLimits& limits = {});
  static std::shared_ptr<const Grammar> from_json_schema(std::string_view schema,
                                                         std::shared_ptr<const Vocabulary> vocabulary,
                                                         const JsonOptions& options = {},
                                                         const GrammarLimits& limits = {});
  // Any JSON object (response_format json_object).
  static std::shared_ptr<const Grammar> json_object(std::shared_ptr<const Vocabulary> vocabulary,
                                                    const JsonOptions& options = {});

  Grammar(std::unique_ptr<const GrammarAutomaton> automaton, std::shared_ptr<const Vocabulary> vocabulary,
          const GrammarLimits& limits);
  ~Grammar();

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const GrammarAutomaton& automaton() const { return *automaton_; }
  size_t n_states() const;

  struct CacheStats {
    size_t hits = 0, misses = 0, evictions = 0, bytes = 0;
  };
  CacheStats cache_stats() const;

 private:
  friend class GrammarState;
  std::unique_ptr<const GrammarAutomaton> automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  GrammarLimits limits_;
  std::unique_ptr<MaskCache> cache_;  // locks itself
  std::shared_ptr<const StackGraph> start_;
};

// Where one text stands. Copies are cheap (one shared pointer): keep one to roll back, to fork, to speculate.
// Calls on different states may run on different threads.
class GrammarState {
 public:
  explicit GrammarState(std::shared_ptr<const Grammar> grammar);

  // The token was chosen. False, and the state unchanged, when the grammar does not allow it. A stop id
  // finishes the text; after that nothing is allowed.
  bool accept(int32_t id);
  bool allows(int32_t id) const;  // would accept() succeed?

  // Sets bit (id & 31) of words[id / 32] for every allowed id and clears the rest. `words` has at least
  // vocabulary().n_words() elements; those beyond are cleared. False when nothing at all is allowed: the text
  // is finished, or the vocabulary cannot spell what the grammar asks for. Throws kUsage when the grammar is
  // too ambiguous for the work limit.
  bool mask(std::span<uint32_t> words) const;

  bool is_complete() const;                       // may end here: stop ids are allowed
  bool is_finished() const { return finished_; }  // a stop id was accepted
  // Bytes that every continuation starts with, at most `limit` (for drafting). Empty where there is a choice,
  // a possible end, or a token id.
  std::string forced_text(size_t limit = 64) const;

  const Grammar& grammar() const { return *grammar_; }

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const StackGraph> position_;
  bool finished_ = false;
};

}  // namespace synod
