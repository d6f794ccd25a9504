// What steps cost on this machine, learned while running: chooses the prefill quantum and says whether drafts
// pay.
#pragma once

#include <cstdint>

namespace synod {

class StepTimes {
 public:
  // A step of `prefill_tokens` prompt tokens and `decode_rows` rows of decoding streams took `seconds`.
  void observe(int64_t prefill_tokens, int64_t decode_rows, double seconds);

  // Prompt tokens that fit in `gap` seconds beside `decode_rows` rows; 64 before anything is known.
  int64_t prefill_quantum(double gap, int64_t decode_rows) const;

  // Time of a decode step: base + rows * per_row. Before two different row counts were seen, a row is taken
  // to cost a quarter of a step.
  double base() const;
  double per_row() const;
  // Does verifying `n_drafted` tokens pay when each is accepted with probability `acceptance` (as are those
  // before it) and `n_streams` share the step?
  bool draft_pays(int64_t n_drafted, double acceptance, int64_t n_streams) const;

 private:
  // Exponentially weighted sums of a least-squares line, decode-only steps.
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  double prefill_token_seconds_ = 0;
};

}  // namespace synod
