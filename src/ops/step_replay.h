// Steps that repeat. A backend that records ops before it runs them is one of these as well: when a call runs
// the same ops as the one before it, they need not be issued again.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "ops/cache_rows.h"

namespace synod {

// The memory of its caller that a forward call names. Two calls of one model and kind whose batch and outputs
// have equal shapes issue the same ops; only contents and addresses of what is listed here differ.
struct StepCall {
  const void* model = nullptr;
  uint64_t kind = 0;
  const BatchView* batch = nullptr;
  std::span<const std::vector<RowTable>> tables;  // page tables, in an order that does not change
  std::array<Tensor, 3> operands;                 // rows, greedy and logits of the call; some may be absent
};

class StepReplay {
 public:
  virtual ~StepReplay() = default;
  // True: the next join() runs the ops of the last step with the contents of `call`, which must stand until
  // then. False: they must be issued, and up to the next join() belong to `call`.
  [[nodiscard]] virtual bool replay(const StepCall& call) = 0;
};

}  // namespace synod
