#include "engine/step_times.h"

#include <algorithm>

namespace synod {
namespace {

constexpr double kForget = 0.98;        // weight that a decode step keeps when the next one comes
constexpr double kPrefillForget = 0.8;  // of the time of a prompt token
constexpr int64_t kLeastPrefill = 8;    // tokens of a step that says something about prefill
constexpr int64_t kFirstQuantum = 64, kLeastQuantum = 8;

}  // namespace

void StepTimes::observe(int64_t prefill_tokens, int64_t decode_rows, double seconds) {
  if (prefill_tokens == 0) {
    const auto rows = static_cast<double>(decode_rows);
    for (double* sum : {&n_, &x_, &y_, &xx_, &xy_}) *sum *= kForget;
    n_ += 1;
    x_ += rows;
    y_ += seconds;
    xx_ += rows * rows;
    xy_ += rows * seconds;
    return;
  }
  if (prefill_tokens < kLeastPrefill) return;
  // The decoding rows are charged what they cost alone; they read the same weights, so this is an upper
  // bound.
  const double decode = decode_rows == 0 ? 0.0 : static_cast<double>(decode_rows) * per_row();
  const double token = std::max(seconds - decode, seconds * 0.1) / static_cast<double>(prefill_tokens);
  prefill_token_seconds_ = prefill_token_seconds_ == 0.0
                               ? token
                               : kPrefillForget * prefill_token_seconds_ + (1 - kPrefillForget) * token;
}

double StepTimes::per_row() const {
  if (n_ == 0) return 0;
  const double mean = y_ / n_;
  const double variance = n_ * xx_ - x_ * x_;
  if (variance <= 1e-3 * n_ * n_) return 0.25 * mean / std::max(1.0, x_ / n_);
  return std::clamp((n_ * xy_ - x_ * y_) / variance, 0.0, mean);
}

double StepTimes::base() const {
  if (n_ == 0) return 0;
  return std::max(0.0, (y_ - per_row() * x_) / n_);
}

int64_t StepTimes::prefill_quantum(double gap, int64_t decode_rows) const {
  if (prefill_token_seconds_ == 0.0) return kFirstQuantum;
  const double left = gap - base() - static_cast<double>(decode_rows) * per_row();
  const double tokens = left / prefill_token_seconds_;
  return std::max(kLeastQuantum, static_cast<int64_t>(std::min(tokens, 1e9)));
}

bool StepTimes::draft_pays(int64_t n_drafted, double acceptance, int64_t n_streams) const {
  double expected = 0, chance = 1;  // accepted tokens: the first k that all agree
  for (int64_t i = 0; i < n_drafted; ++i) expected += chance *= acceptance;
  const double step = base() + static_cast<double>(n_streams) * per_row();
  if (step <= 0) return true;  // nothing known: try
  // A stream's share of a step is what an accepted token saves; others wait for the extra rows too.
  const double extra = static_cast<double>(n_drafted) * per_row();
  return expected * step / static_cast<double>(n_streams) > extra;
}

}  // namespace synod
