#include "text/grammar/grammar.h"

#include "base/error.h"
#include "text/grammar/automaton.h"
#include "text/grammar/builder.h"
#include "text/grammar/mask_cache.h"
#include "text/grammar/stack_pool.h"

namespace synod {

using EdgeKind = GrammarAutomaton::EdgeKind;

std::shared_ptr<const Grammar> Grammar::from_gbnf(std::string_view text,
                                                  std::shared_ptr<const Vocabulary> vocabulary,
                                                  const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  const Term root = builder.gbnf(text, vocabulary.get());
  return builder.build(root, std::move(vocabulary));
}

std::shared_ptr<const Grammar> Grammar::from_json_schema(std::string_view schema,
                                                         std::shared_ptr<const Vocabulary> vocabulary,
                                                         const JsonOptions& options,
                                                         const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  const Term root = builder.sequence({builder.json_space(options), builder.json_schema(schema, options)});
  return builder.build(root, std::move(vocabulary));
}

std::shared_ptr<const Grammar> Grammar::json_object(std::shared_ptr<const Vocabulary> vocabulary,
                                                    const JsonOptions& options) {
  GrammarBuilder builder;
  const Term root = builder.sequence({builder.json_space(options), builder.json_object(options)});
  return builder.build(root, std::move(vocabulary));
}

Grammar::Grammar(std::unique_ptr<const GrammarAutomaton> automaton,
                 std::shared_ptr<const Vocabulary> vocabulary, const GrammarLimits& limits)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)), limits_(limits) {
  for (const GrammarAutomaton::Edge& edge : automaton_->edges) {
    if (edge.kind == EdgeKind::kToken && edge.argument >= uint32_t(vocabulary_->size())) {
      fail(Error::Kind::kUsage, "grammar: token id {}: expected 0 to {}", edge.argument,
           vocabulary_->size() - 1);
    }
  }
  cache_ = std::make_unique<MaskCache>(*automaton_, *vocabulary_, limits_.cache_bytes);
  StackPool pool(*automaton_);
  const uint32_t start[] = {automaton_->rules[0].start};
  const StackPool::Config config = pool.start(start);
  start_ = std::make_shared<const StackGraph>(pool.export_kernel(pool.returns(config)));
}

Grammar::~Grammar() = default;

size_t Grammar::n_states() const { return automaton_->n_states(); }

Grammar::CacheStats Grammar::cache_stats() const { return cache_->stats(); }

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), position_(grammar_->start_) {}

namespace {

// A token that is text and that the grammar also names by id may be meant either way: both stay open.
std::optional<StackPool::Config> after_token(StackPool& pool, const StackGraph& from,
                                             const Vocabulary& vocabulary, bool names_tokens, int32_t id) {
  const StackPool::Config start = pool.import(from);
  std::vector<StackPool::Pair> kernel;
  StackPool::Config by_id = StackPool::kDead;
  if (names_tokens) {
    by_id = pool.step_token(start, id, vocabulary.is_text(id), vocabulary.is_stop(id));
    if (by_id != StackPool::kDead) kernel = pool.kernel();
  }
  StackPool::Config by_text = StackPool::kDead;
  if (vocabulary.is_text(id)) {
    by_text = start;
    for (const char c : vocabulary.bytes_of(id)) {
      if (by_text == StackPool::kDead) break;
      by_text = pool.step_once(by_text, uint8_t(c));
    }
  }
  if (by_text == StackPool::kDead) {
    if (by_id == StackPool::kDead) return std::nullopt;
    return pool.close(kernel);
  }
  if (by_id == StackPool::kDead) return by_text;
  kernel.insert(kernel.end(), pool.kernel().begin(), pool.kernel().end());
  return pool.close(kernel);
}

}  // namespace

bool GrammarState::accept(int32_t id) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (finished_ || id < 0 || id >= vocabulary.size()) return false;
  StackPool pool(grammar_->automaton());
  const bool names_tokens = grammar_->automaton().names_tokens;
  if (vocabulary.is_text(id) || names_tokens) {
    if (const auto next = after_token(pool, *position_, vocabulary, names_tokens, id)) {
      position_ = std::make_shared<const StackGraph>(pool.export_kernel(pool.returns(*next)));
      finished_ = vocabulary.is_stop(id);
      return true;
    }
  }
  if (!vocabulary.is_stop(id) || !position_->complete) return false;
  finished_ = true;
  return true;
}

bool GrammarState::allows(int32_t id) const {
  GrammarState copy = *this;
  return copy.accept(id);
}

bool GrammarState::mask(std::span<uint32_t> words) const {
  if (finished_) {
    std::fill(words.begin(), words.end(), 0);
    return false;
  }
  return grammar_->cache_->mask(*position_, words);
}

bool GrammarState::is_complete() const { return finished_ || position_->complete; }

std::string GrammarState::forced_text(size_t limit) const {
  std::string text;
  if (finished_) return text;
  StackPool pool(grammar_->automaton());
  StackPool::Config at = pool.import(*position_);
  while (text.size() < limit) {
    const auto byte = pool.only_byte(at);
    if (!byte) break;
    text.push_back(char(*byte));
    at = pool.step_once(at, *byte);
  }
  return text;
}

}  // namespace synod
