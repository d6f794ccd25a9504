// Grammars put together from parts: literal text, token ids, schemas, GBNF rules. Output formats of model
// families (tool calls) are written with it:
//
//   GrammarBuilder b;
//   Term call = b.sequence({b.token(tool_call_id), b.text("call:get_weather"), b.json_schema(schema),
//                           b.token(tool_call_end_id)});
//   auto required = b.build(b.repeat(call, 1, n_calls), vocabulary);
//   auto automatic = b.build(b.lazy({.tokens = {tool_call_id}}, rest_of_call, 0, n_calls), vocabulary);
//
// Terms are cheap handles into the builder; one term may be used in many places. All errors are kUsage.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/terms.h"

namespace synod {

class GrammarBuilder {
 public:
  explicit GrammarBuilder(const GrammarLimits& limits = {});

  Term empty();
  Term never();                      // matches nothing: whatever contains it in sequence is dropped
  Term text(std::string_view utf8);  // these bytes; never becomes a control token
  Term any_of_texts(std::vector<std::string> texts);  // compiled as a trie: thousands are fine
  // Code points in any of `ranges` (inclusive; surrogates are left out), or, negated, in none.
  Term characters(std::vector<CodePointRange> ranges, bool negated = false);
  Term any_character();
  Term bytes(uint8_t low, uint8_t high);  // one byte, for formats that are not UTF-8
  Term sequence(std::vector<Term> parts);
  Term choice(std::vector<Term> alternatives);
  // `max` < 0: unbounded. Bounds up to limits.max_repeat.
  Term repeat(Term part, int64_t min, int64_t max = -1);
  Term optional(Term part) { return repeat(part, 0, 1); }

  // Named rules, for recursion: declare, use, define. Left recursion is refused by build().
  Term declare(std::string name);
  void define(Term rule, Term body);
  void define(Term rule, Term body, std::string place);  // `place` (line, pointer) appears in messages

  // Exactly this token. It is a token of its own even where its text would also match.
  Term token(int32_t id);
  Term any_token_except(std::vector<int32_t> ids);  // any text token but these

  // A whole GBNF grammar or schema as a term. The vocabulary resolves <name> and checks <[id]> (may be null
  // where the text names no tokens).
  Term gbnf(std::string_view text, const Vocabulary* vocabulary = nullptr, std::string_view root = "root");
  Term json_space(const JsonOptions& options = {});  // what may stand between JSON tokens
  Term json_schema(std::string_view schema, const JsonOptions& options = {});
  Term json_value(const JsonOptions& options = {});
  Term json_object(const JsonOptions& options = {});

  // Any bytes that do not contain `text`, then `text` itself (excluded from nothing else): raw parameter
  // values that end at a closing mark.
  Term until(std::string_view text);

  // Lazily enforced: anything goes, control tokens included, until a trigger; from there on `body`; after the
  // body anything again, for at most `max_calls` triggers (< 0: no limit; then triggers are free text's
  // enemy: they can no longer be produced). The text may end in the free parts, never inside a body, and not
  // before `min_calls`.
  struct Triggers {
    std::vector<int32_t> tokens;     // the token itself is consumed; body follows it
    std::vector<std::string> texts;  // consumed likewise, across token borders; none may contain another
  };
  Term lazy(const Triggers& triggers, Term body, int64_t min_calls = 0, int64_t max_calls = -1);

  std::shared_ptr<const Grammar> build(Term root, std::shared_ptr<const Vocabulary> vocabulary);

  const TermTree& tree() const { return tree_; }
  const GrammarLimits& limits() const { return limits_; }

 private:
  struct ScanEdge {
    Term term;
    bool then_restart;  // go on scanning after it
  };
  Term add(TermTree::Node node);
  void count_text(size_t bytes);
  uint32_t token_set(std::vector<int32_t> ids);
  Term scan(const std::vector<std::string>& patterns, Term at_hit, std::vector<ScanEdge> anywhere,
            bool may_end);

  GrammarLimits limits_;
  TermTree tree_;
  size_t text_bytes_ = 0;
  std::vector<int32_t> trigger_ids_;
};

}  // namespace synod
