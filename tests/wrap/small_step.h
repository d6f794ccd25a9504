// A small attention and expert layer that issues primitives, in-place and fused ops: input of the wrapper
// tests.
#pragma once

#include "ops/backend.h"
#include "ops/operands.h"

namespace synod::testing {

class SmallStep {
 public:
  static constexpr int64_t kTokens = 5, kModel = 32, kExpert = 16, kExperts = 4, kUsed = 2;

  SmallStep() {
    for (uint32_t e = 0; e < kExperts; ++e) {
      gate_.emplace_back(DType::kF32, kExpert, kModel, 10 + e, 0.2F);
      up_.emplace_back(DType::kF32, kExpert, kModel, 20 + e, 0.2F);
      down_.emplace_back(DType::kF32, kModel, kExpert, 30 + e, 0.2F);
    }
    for (const StoredMatrix& m : gate_) gates_.push_back(m);
    for (const StoredMatrix& m : up_) ups_.push_back(m);
    for (const StoredMatrix& m : down_) downs_.push_back(m);
    state_.fill(7);
  }

  // n_ops top-level ops: 11. Without memory, workspace tensors and cache tables are null.
  static constexpr int64_t kOps = 11;
  void run(Backend& be) {
    const bool dry = be.is_dry();
    Workspace& ws = be.workspace();
    const Workspace::Scope scope(ws);
    CacheRows kv = kv_.rows(), compressed = compressed_.rows(), state = state_.rows();
    if (dry) kv.sequences = compressed.sequences = state.sequences = {};
    const Tensor h = ws.f32({kTokens, kModel}, "h");
    {
      const Stage stage(be, 0, "attention");
      be(RmsNorm{.out = h, .x = x_, .weight = norm_, .eps = 1e-6F});
      be(Rope{.x = h, .positions = batch_.view()->positions, .freqs = freqs_});
      be(CacheWrite{.rows = kv, .x = h, .batch = batch_.view()});
      be(Attention{.out = h.reshape({kTokens, 1, kModel}),
                   .q = h.reshape({kTokens, 1, kModel}),
                   .k = kv,
                   .v = kv,
                   .batch = batch_.view(),
                   .n_kv_heads = 1,
                   .window = 3,
                   .scale = 0.2F});
      be(Compress{.rows = compressed,
                  .state = state,
                  .norm = compressor_norm_,
                  .freqs = freqs_,
                  .batch = batch_.view(),
                  .ratio = 2,
                  .round = Compress::Round::kFp8,
                  .eps = 1e-6F});
    }
    const Stage stage(be, 1, "experts");
    const Tensor logits = ws.f32({kTokens, kExperts}, "logits"),
                 weights = ws.f32({kTokens, kUsed}, "weights");
    const Tensor ids = ws.i32({kTokens, kUsed}, "ids");
    be(Linear{.out = logits, .x = h, .weight = router_});
    be(RouteSoftmax{.ids = ids, .weights = weights, .logits = logits});
    be(ExpertFfn{
        .out = out_, .x = h, .ids = ids, .weights = weights, .gate = gates_, .up = ups_, .down = downs_});
    be(Add{.out = out_, .a = out_, .b = h});
    be(Scale{.x = out_, .factor = 0.5F});
    be(ArgMax{.out = best_, .x = out_});
  }

  const std::vector<float>& out() const { return out_.values(); }
  const std::vector<int32_t>& best() const { return best_.values(); }
  std::vector<float> cache() const {
    std::vector<float> all;
    for (int64_t r = 0; r < 5; ++r) {
      const std::vector<float> row = kv_.get(0, r);
      all.insert(all.end(), row.begin(), row.end());
    }
    for (int64_t r = 0; r < 2; ++r) {
      const std::vector<float> row = compressed_.get(0, r);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  void set_input(uint32_t seed) {
    const std::vector<float> v = normal_values(kTokens * kModel, seed);
    for (int64_t i = 0; i < kTokens * kModel; ++i) x_[i] = v[static_cast<size_t>(i)];
  }

 private:
  F32 x_{{kTokens, kModel}, normal_values(kTokens*kModel, 1), "x"}, out_{{kTokens, kModel}, {}, "out"};
  F32 norm_{{kModel}, normal_values(kModel, 2), "norm"},
      freqs_{{8}, {1, .5F, .25F, .1F, .05F, .01F, 0, 0}, "freqs"};
  F32 compressor_norm_{{kModel}, normal_values(kModel, 3), "compressor norm"};
  I32 best_{{kTokens}, {}, "best"};
  StoredMatrix router_{DType::kF32, kExperts, kModel, 4};
  std::vector<StoredMatrix> gate_, up_, down_;
  std::vector<Matrix> gates_, ups_, downs_;
  PagedRows kv_{DType::kF16, kModel, 2, 1, 6}, compressed_{DType::kF32, kModel, 2, 1, 4},
      state_{DType::kF32, 2 * kModel, 4, 1, 8};
  Batch batch_{{{0, kTokens}}};
};

}  // namespace synod::testing
