#include "engine/choice.h"

#include <algorithm>
#include <utility>

#include "engine/logprobs.h"

namespace synod {
namespace {

bool any_bit(std::span<const uint32_t> words) {
  return std::ranges::any_of(words, [](uint32_t word) { return word != 0; });
}

}  // namespace

Choice::Choice(const GenerationRequest& request, const ChoiceContext& context, int64_t index)
    : request_(request),
      context_(context),
      index_(index),
      n_prompt_(static_cast<int64_t>(request.prompt.size())),
      ids_(request.prompt),
      stop_ids_(request.stop_ids),
      sampler_(request.sampling, index, context.scratch),
      text_(*context.tokenizer, request.keep_special, request.stop),
      reasoning_(request.reasoning) {
  if (!request.ignore_eos)
    stop_ids_.insert(stop_ids_.end(), context.stop_ids.begin(), context.stop_ids.end());
  sampler_.accept_prompt(request.prompt);
  if (request.constraint == nullptr) return;
  constraint_ = request.constraint->start();
  if (!request.constrain_after_reasoning) return;
  if (reasoning_.inside()) {
    phase_ = ConstraintPhase::kWaiting;
  } else if (!request.reasoning.open_ids.empty()) {
    phase_ = ConstraintPhase::kFirst;
  }
}

bool Choice::is_stop(int32_t id) const { return std::ranges::find(stop_ids_, id) != stop_ids_.end(); }

bool Choice::needs_logits() const {
  if (request_.logprobs || constrained()) return true;
  return !request_.sampling.plain_greedy() || bans_stops();
}

// Nothing when the constraint has no continuation.
std::optional<int32_t> Choice::choose(std::span<float> logits, int32_t greedy) {
  if (reasoning_.must_close() && forced_.empty()) {
    forced_.assign(request_.reasoning.close_ids.begin(), request_.reasoning.close_ids.end());
  }
  if (!forced_.empty()) {
    const int32_t id = forced_.front();
    forced_.pop_front();
    return id;
  }
  if (request_.sampling.plain_greedy() && !constrained() && !bans_stops()) return greedy;
  Sampler::Limits limits;
  if (bans_stops()) limits.banned = stop_ids_;
  if (constrained()) {
    limits.allowed = constraint_->allowed();
    if (phase_ == ConstraintPhase::kFirst) {
      first_mask_.assign(limits.allowed.begin(), limits.allowed.end());
      const auto open = static_cast<size_t>(request_.reasoning.open_ids.front());
      first_mask_[open / 32] |= 1U << (open % 32);
      limits.allowed = first_mask_;
    }
    if (!any_bit(limits.allowed)) return std::nullopt;
  }
  return sampler_.pick(logits, n_generated(), limits);
}

// The constraint starts with the first token, unless that opens the reasoning channel; then after it closed.
void Choice::follow_constraint(int32_t id) {
  if (constraint_ == nullptr) return;
  if (phase_ == ConstraintPhase::kFirst) {
    const bool opens = id == request_.reasoning.open_ids.front();
    phase_ = opens ? ConstraintPhase::kWaiting : ConstraintPhase::kActive;
    if (opens) return;
  } else if (phase_ == ConstraintPhase::kWaiting) {
    const std::span<const int32_t> output = ids().subspan(static_cast<size_t>(n_prompt_));
    const std::vector<int32_t>& close = request_.reasoning.close_ids;
    const bool closed = !close.empty() && output.size() >= close.size() &&
                        std::ranges::equal(output.last(close.size()), close);
    if (closed) phase_ = ConstraintPhase::kActive;
    return;
  }
  static_cast<void>(constraint_->accept(id));  // a token that was not allowed leaves nothing allowed
}

void Choice::next(std::span<float> logits, int32_t greedy, TokensEvent& out) {
  double log_sum = 0;
  TokenInfo info;
  std::vector<float> raw;  // picking modifies the row; the chosen token's own logit is the model's
  if (request_.logprobs) {
    log_sum = log_sum_exp(logits);
    info.top_logprobs = top_logprobs(logits, log_sum, request_.top_logprobs);
    raw.assign(logits.begin(), logits.end());
  }
  const std::optional<int32_t> chosen = choose(logits, greedy);
  if (!chosen) return end(FinishReason::kStop, out);
  const int32_t id = *chosen;
  if (request_.logprobs) {
    info.logprob = static_cast<float>(static_cast<double>(raw[static_cast<size_t>(id)]) - log_sum);
  }
  const bool watched = n_generated() >= request_.min_tokens;
  ids_.push_back(id);
  sampler_.accept(id);
  reasoning_.accept(ids().subspan(static_cast<size_t>(n_prompt_)));
  follow_constraint(id);
  info.id = id;
  const bool stops = watched && is_stop(id);
  // A model's vocabulary may be padded beyond the tokenizer's: such ids have no text.
  if (!stops && id < context_.tokenizer->vocab_size()) {
    const bool hidden = context_.tokenizer->kind(id) == TokenKind::kControl && !request_.keep_special;
    if (!hidden) info.bytes = context_.tokenizer->bytes_of(id);
    out.text += text_.push(id, watched);
  }
  out.tokens.push_back(std::move(info));
  if (stops) {
    end(FinishReason::kStop, out);
    finish_->stop_id = id;
  } else if (text_.stopped()) {
    end(FinishReason::kStop, out);
    finish_->stop_string = request_.stop[*text_.stopped()];
  } else if (n_generated() == request_.max_tokens ||
             static_cast<int64_t>(ids_.size()) >= context_.context_length) {
    end(FinishReason::kLength, out);
  }
}

void Choice::end(FinishReason reason, TokensEvent& out) {
  out.text += text_.finish();
  finish_ = ChoiceFinishedEvent{.choice = index_,
                                .reason = reason,
                                .stop_string = {},
                                .stop_id = {},
                                .completion_tokens = n_generated()};
  draft_.clear();
}

void Choice::plan_draft(int64_t most) {
  draft_.clear();
  if (n_generated() < draft_again_at_ || !forced_.empty() || reasoning_.must_close()) return;
  if (request_.max_tokens >= 0) most = std::min(most, request_.max_tokens - n_generated() - 1);
  most = std::min(most, context_.context_length - static_cast<int64_t>(ids_.size()) - 1);
  if (most <= 0) return;
  if (drafter_ == nullptr) drafter_ = std::make_unique<NgramDrafter>();
  drafter_->extend(ids_);
  draft_ = drafter_->draft(ids_, most);
}

void Choice::draft_was(int64_t accepted, int64_t n_drafted) {
  constexpr double kForget = 0.8;
  // Each accepted token is a success; a rejection is one failure (what follows it was never asked).
  for (int64_t i = 0; i < accepted; ++i) acceptance_ = kForget * acceptance_ + (1 - kForget);
  if (accepted < n_drafted) acceptance_ *= kForget;
  draft_.clear();
}

}  // namespace synod
