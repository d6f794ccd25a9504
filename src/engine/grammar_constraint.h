// Grammars as the engine's constraints.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/constraint.h"
#include "text/grammar/grammar.h"

namespace synod {

class GrammarConstraint final : public Constraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const Grammar> grammar)
      : state_(std::move(grammar)), words_(state_.grammar().vocabulary().n_words()) {}

  std::span<const uint32_t> allowed() override {
    static_cast<void>(state_.mask(words_));  // no bit at all says the same
    return words_;
  }
  bool accept(int32_t id) override { return state_.accept(id); }

 private:
  GrammarState state_;
  std::vector<uint32_t> words_;
};

class GrammarConstraintFactory final : public ConstraintFactory {
 public:
  explicit GrammarConstraintFactory(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<Constraint> start() const override { return std::make_unique<GrammarConstraint>(grammar_); }

 private:
  std::shared_ptr<const Grammar> grammar_;
};

// For GenerationRequest::constraint.
inline std::shared_ptr<const ConstraintFactory> constrain(std::shared_ptr<const Grammar> grammar) {
  return std::make_shared<GrammarConstraintFactory>(std::move(grammar));
}

}  // namespace synod
