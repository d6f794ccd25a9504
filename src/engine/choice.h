// One choice of a request while it is generated: its tokens, what restricts the next one, what ends it. Knows
// neither cache nor batch; one row of logits in, one token out.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/drafter.h"
#include "engine/reasoning.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"
#include "text/tokenizer.h"

namespace synod {

// What is the same for every choice of an engine.
struct ChoiceContext {
  const Tokenizer* tokenizer = nullptr;
  std::span<const int32_t> stop_ids;  // the model's
  int64_t context_length = 0;
  std::shared_ptr<Sampler::Scratch> scratch;  // of all choices of a thread; null = each has its own
};

class Choice {
 public:
  // `request` outlives it; its prompt is where the choice begins. Throws what the constraint's start()
  // throws.
  Choice(const GenerationRequest& request, const ChoiceContext& context, int64_t index);

  int64_t index() const { return index_; }
  std::span<const int32_t> ids() const { return ids_; }  // prompt and output
  int64_t n_generated() const { return static_cast<int64_t>(ids_.size()) - n_prompt_; }
  int64_t reasoning_tokens() const { return reasoning_.tokens(); }
  bool finished() const { return finish_.has_value(); }
  const ChoiceFinishedEvent& finish() const { return *finish_; }

  // True when the next token is not the plain arg-max of the row, so that its logits are needed.
  bool needs_logits() const;
  // Chooses from a row and accepts the token, adding what can be told to `out`. `logits` f32 [vocabulary] are
  // modified (empty when they were not needed); `greedy` is the row's uncapped arg-max.
  void next(std::span<float> logits, int32_t greedy, TokensEvent& out);
  // Ends it from outside; releases held-back text.
  void end(FinishReason reason, TokensEvent& out);

  // Tokens to verify together with the next one. Kept until the step is over.
  void plan_draft(int64_t most);
  void drop_draft() { draft_.clear(); }
  std::span<const int32_t> draft() const { return draft_; }
  // `accepted` of the `n_drafted` tokens that were verified were chosen.
  void draft_was(int64_t accepted, int64_t n_drafted);
  double acceptance() const {
    return acceptance_;
  }  // chance that a drafted token is accepted, as seen so far
  void pause_draft() { draft_again_at_ = n_generated() + kDraftPause; }

 private:
  static constexpr int64_t kDraftPause = 64;  // tokens without drafts after they did not pay
  enum class ConstraintPhase { kWaiting, kFirst, kActive };

  bool constrained() const { return constraint_ != nullptr && phase_ != ConstraintPhase::kWaiting; }
  bool bans_stops() const { return n_generated() < request_.min_tokens && !constrained(); }
  std::optional<int32_t> choose(std::span<float> logits, int32_t greedy);
  void follow_constraint(int32_t id);
  bool is_stop(int32_t id) const;

  const GenerationRequest& request_;
  const ChoiceContext& context_;
  int64_t index_;
  int64_t n_prompt_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> stop_ids_;
  Sampler sampler_;
  TextStream text_;
  ReasoningTracker reasoning_;
  std::unique_ptr<Constraint> constraint_;
  ConstraintPhase phase_ = ConstraintPhase::kActive;
  std::vector<uint32_t> first_mask_;  // the constraint's, and what opens the reasoning channel
  std::deque<int32_t> forced_;
  std::optional<ChoiceFinishedEvent> finish_;

  std::unique_ptr<Drafter> drafter_;
  std::vector<int32_t> draft_;
  double acceptance_ = 0.5;
  int64_t draft_again_at_ = 0;
};

}  // namespace synod
