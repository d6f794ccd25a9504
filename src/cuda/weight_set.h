// Everything constant that a model's ops read: collected from a dry forward, so no model has to list it.
#pragma once

#include <span>
#include <unordered_set>
#include <vector>

#include "base/tensor.h"
#include "ops/backend.h"
#include "quant/matrix.h"

namespace synod::cuda {

struct WeightSet {
  struct Entry {
    std::span<const Matrix> matrices;  // one, or the experts of a layer
    std::vector<Matrix> own;           // storage of a single matrix
    bool as_float = false;             // kept as f32 on the device
    std::span<const Matrix> all() const { return own.empty() ? matrices : std::span<const Matrix>(own); }
  };
  std::vector<Entry> matrices;
  std::vector<Tensor> constants;  // norms, scales, frequencies, tables: f32 or i32, host memory
};

// A backend that runs nothing and notes the constants of every op: operands with data in a forward call whose
// activations have none.
class WeightCollector final : public Backend {
 public:
  std::string_view name() const override { return "weights"; }
  Buffer allocate(int64_t) override { return {}; }
  Workspace& workspace() override { return workspace_; }
  bool is_dry() const override { return true; }
  void begin(const Label&) override {}
  void end() override {}
  StatusReport take_status() override { return {}; }

#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op) void run(const Op& op) override;
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

  const WeightSet& weights() const { return set_; }

 private:
  friend struct CollectOperands;
  void add(std::span<const Matrix> matrices, bool as_float, bool single);
  void add(const Tensor& constant);

  Workspace workspace_;
  WeightSet set_;
  std::unordered_set<const void*> seen_;
};

}  // namespace synod::cuda
