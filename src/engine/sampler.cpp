#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace synod {

void SamplerOptions::check() const {
  const auto refuse = [](const char* option, const char* range, double got) {
    fail(Error::Kind::kUsage, "{} must be {}, got {}", option, range, got);
  };
  if (!(temperature >= 0.0F) || !std::isfinite(temperature)) refuse("temperature", "at least 0", temperature);
  if (top_k < 0) refuse("top-k", "at least 0", static_cast<double>(top_k));
  if (!(top_p > 0.0F && top_p <= 1.0F)) refuse("top-p", "above 0 and at most 1", top_p);
  if (!(min_p >= 0.0F && min_p < 1.0F)) refuse("min-p", "at least 0 and below 1", min_p);
}

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  options.check();
}

int32_t Sampler::sample(std::span<const float> logits) {
  choices_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) choices_.push_back({static_cast<int32_t>(i), logits[i], 0.0});
  }
  std::erase_if(choices_, [&](const Choice& c) {
    return std::ranges::find(options_.suppress, c.id) != options_.suppress.end();
  });
  if (choices_.empty()) fail(Error::Kind::kNumeric, "sampling: no finite logit among {}", logits.size());

  // The order is total (logit, then id), so equal logits cannot make the result depend on the sort.
  const auto before = [](const Choice& a, const Choice& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (options_.temperature == 0.0F) return std::min_element(choices_.begin(), choices_.end(), before)->id;

  size_t keep = choices_.size();
  if (options_.top_k > 0) keep = std::min(keep, static_cast<size_t>(options_.top_k));
  std::partial_sort(choices_.begin(), choices_.begin() + static_cast<std::ptrdiff_t>(keep), choices_.end(),
                    before);
  choices_.resize(keep);

  const double largest = choices_.front().logit;
  double sum = 0.0;
  for (Choice& c : choices_) sum += c.p = std::exp(static_cast<double>(c.logit) - largest);
  for (Choice& c : choices_) c.p /= sum;

  double mass = 0.0;
  for (keep = 0; keep < choices_.size() && mass < options_.top_p; ++keep) mass += choices_[keep].p;
  choices_.resize(std::max<size_t>(keep, 1));
  const double floor = options_.min_p * choices_.front().p;
  while (choices_.back().p < floor) choices_.pop_back();

  double total = 0.0;
  for (Choice& c : choices_) total += c.p = std::exp((c.logit - largest) / options_.temperature);
  constexpr double kUnit = 1.0 / 9007199254740992.0;  // 2^-53
  double rest = static_cast<double>(random_() >> 11) * kUnit * total;
  for (const Choice& c : choices_) {
    rest -= c.p;
    if (rest < 0.0) return c.id;
  }
  return choices_.back().id;
}

}  // namespace synod
