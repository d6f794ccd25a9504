#include "ops/lowering.h"

#include <vector>

namespace synod {

void lower(const Projections& op, Backend& be) {
  for (int i = 0; i < op.n_parts; ++i) {
    const Projections::Part& part = op.parts[static_cast<size_t>(i)];
    be(Linear{.out = part.out, .x = op.x, .weight = part.weight});
  }
}

void lower(const GroupedLinear& op, Backend& be) {
  const int64_t n_out = op.out.dim(2);
  const auto group = [](const Tensor& t, int64_t g) {  // [n_tokens, n_groups, d] -> [n_tokens, d]
    Tensor v = t.slice(1, g, g + 1);
    v.rank = 2;
    v.shape = {t.dim(0), t.dim(2), 0, 0};
    v.stride = {t.stride[0], 0, 0, 0};
    return v;
  };
  for (int64_t g = 0; g < op.x.dim(1); ++g) {
    be(Linear{
        .out = group(op.out, g), .x = group(op.x, g), .weight = op.weight.rows(g * n_out, (g + 1) * n_out)});
  }
}

void lower(const ExpertFfn& op, Backend& be) {
  Workspace& ws = be.workspace();
  const Workspace::Scope scope(ws);
  const int64_t n = op.ids.dim(0), k = op.ids.dim(1), d_expert = op.down[0].n_in;
  const Tensor gate = ws.f32({n, k, d_expert}, "expert_gate");
  const Tensor up = ws.f32({n, k, d_expert}, "expert_up");
  be(ExpertLinear{.out = gate, .x = op.x, .ids = op.ids, .experts = op.gate});
  be(ExpertLinear{.out = up, .x = op.x, .ids = op.ids, .experts = op.up});
  be(Glu{.out = gate,
         .gate = gate,
         .up = up,
         .row_weight = op.round_hidden ? op.weights : Tensor{},
         .act = op.act,
         .limit = op.limit});
  if (op.round_hidden) {
    constexpr int64_t kFp8ActivationBlock = 128;
    be(RoundTrip{.out = gate,
                 .x = gate,
                 .grid = RoundTrip::Grid::kFp8,
                 .block = kFp8ActivationBlock,
                 .count = d_expert});
  }
  const Tensor down = ws.f32({n, k, op.x.dim(1)}, "expert_down");
  be(ExpertLinear{.out = down, .x = gate, .ids = op.ids, .experts = op.down});
  be(CombineExperts{
      .out = op.out, .x = down, .weights = op.round_hidden ? Tensor{} : op.weights, .shared = op.shared});
}

void lower(const Compress& op, Backend& be) {
  const int64_t n = closed_blocks(*op.batch, op.ratio);
  if (n == 0) return;
  Workspace& ws = be.workspace();
  const Workspace::Scope scope(ws);
  const int64_t d = op.rows.row_dim, rope_dim = 2 * op.freqs.dim(0);
  const Tensor pooled = ws.f32({n, d}, "compressed");
  be(CompressPool{
      .out = pooled, .state = op.state, .batch = op.batch, .ratio = op.ratio, .overlap = op.overlap});
  be(RmsNorm{.out = pooled, .x = pooled, .weight = op.norm, .eps = op.eps});

  // Of each block's first token. Host memory, as the positions of a batch: a device copies what it needs.
  std::vector<int32_t> first_tokens;
  for (int64_t s = 0; s < op.batch->n_sequences(); ++s) {
    const int64_t first = op.batch->past[static_cast<size_t>(s)] / op.ratio;
    for (int64_t w = first; w < op.batch->total(s) / op.ratio; ++w) {
      first_tokens.push_back(static_cast<int32_t>(w * op.ratio));
    }
  }
  const Tensor positions =
      Tensor::contiguous(ws.dry() ? nullptr : first_tokens.data(), DType::kI32, {n}, "block_positions");
  be(Rope{.x = pooled,
          .positions = positions,
          .freqs = op.freqs,
          .layout = Rope::Layout::kInterleaved,
          .first = d - rope_dim});
  if (op.round == Compress::Round::kFp8) {
    constexpr int64_t kFp8RowBlock = 64;
    be(RoundTrip{.out = pooled,
                 .x = pooled,
                 .grid = RoundTrip::Grid::kFp8,
                 .block = kFp8RowBlock,
                 .count = d - rope_dim});
  } else if (op.round == Compress::Round::kHadamardFp4) {
    constexpr int64_t kFp4Block = 32;
    be(Hadamard{.x = pooled});
    be(RoundTrip{.out = pooled, .x = pooled, .grid = RoundTrip::Grid::kFp4, .block = kFp4Block, .count = d});
  }
  be(CacheWrite{.rows = op.rows, .x = pooled, .batch = op.batch, .tokens_per_row = op.ratio});
}

}  // namespace synod
