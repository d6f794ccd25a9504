// The reference backend: float32 storage, float64 sums, plain loops, one thread. It defines what every other
// backend must compute, and its results do not depend on how a prompt is cut.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend.h"

namespace synod {

class RefBackend final : public Backend {
 public:
  RefBackend();
  std::string_view name() const override { return "ref"; }
  Buffer allocate(int64_t bytes) override { return Buffer::host(bytes); }
  Workspace& workspace() override { return workspace_; }
  void begin(const Label& label) override { labels_.push_back(label); }
  void end() override { labels_.pop_back(); }
  StatusReport take_status() override;

  using Backend::run;
#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op)
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

 private:
  void raise(Status status);

  Workspace workspace_;
  std::vector<Label> labels_;
  StatusReport status_;
};

}  // namespace synod
