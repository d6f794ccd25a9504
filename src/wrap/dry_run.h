// DryRun: checks every op's shapes and counts bytes without weights or memory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace synod {

class DryRun final : public Backend {
 public:
  std::string_view name() const override { return "dry-run"; }
  Buffer allocate(int64_t) override { return {}; }
  Workspace& workspace() override { return workspace_; }
  bool is_dry() const override { return true; }
  void begin(const Label& label) override { labels_.push_back(label); }
  void end() override { labels_.pop_back(); }
  StatusReport take_status() override { return {}; }

#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op) void run(const Op& op) override;
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

  int64_t n_ops() const { return n_ops_; }
  int64_t weight_bytes_read() const { return weight_bytes_; }  // by the ops so far, experts as routed at most

 private:
  template <typename Op>
  void count(const Op& op);
  template <typename Op>
  void count_fused(const Op& op);

  Workspace workspace_;
  bool lowering_ = false;  // inside a fused op
  std::vector<Label> labels_;
  int depth_ = 0;  // of fused ops being lowered
  int64_t n_ops_ = 0;
  int64_t weight_bytes_ = 0;
};

}  // namespace synod
