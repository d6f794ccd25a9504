// Compare: runs every op on two backends and reports the first whose outputs differ by more than a bound.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace synod {

// Both backends must be host backends. Each op runs on `subject` (whose results go on) and, from the same
// inputs, on `reference` into copies of the outputs.
class Compare final : public Backend {
 public:
  Compare(Backend& subject, Backend& reference, float abs_tolerance, float rel_tolerance);

  std::string_view name() const override { return "compare"; }
  Buffer allocate(int64_t bytes) override { return subject_.allocate(bytes); }
  Workspace& workspace() override { return subject_.workspace(); }
  void begin(const Label& label) override;
  void end() override;
  void join() override { subject_.join(); }
  StatusReport take_status() override;

#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op) void run(const Op& op) override;
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

  struct Divergence {
    int64_t op_index = 0;
    std::string where;    // "layer 3 attention: rms_norm.out"
    int64_t element = 0;  // flat index of the worst value
    float got = 0, expected = 0;
  };
  const std::optional<Divergence>& first() const { return first_; }
  int64_t n_ops() const { return n_ops_; }

 private:
  template <typename Op>
  void compared(const Op& op);

  Backend& subject_;
  Backend& reference_;
  float abs_tolerance_, rel_tolerance_;
  std::vector<Label> labels_;
  int64_t n_ops_ = 0;
  std::optional<Divergence> first_;
};

}  // namespace synod
