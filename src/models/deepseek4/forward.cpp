// The forward pass: embedding, copied to n_streams residual streams; per layer an attention site and a
// feed-forward site, each mixed in and out by hyper-connections; collapse, norm, logits.
#include <algorithm>
#include <utility>

#include "models/deepseek4/deepseek4_model.h"

namespace synod::deepseek4 {
namespace {

constexpr int64_t kActivationBlock = 128;  // values per scale of rounded activations

// Absolute positions modulo the block length, so that chunk borders do not shift them. Host memory, as the
// positions themselves: a device copies what it needs.
Tensor block_slots(const BatchView& batch, int64_t ratio, std::vector<int32_t>& values) {
  if (batch.positions.data == nullptr) {
    return Tensor::contiguous(nullptr, DType::kI32, {batch.n_tokens()}, "block slots");
  }
  const int32_t* positions = batch.positions.as<const int32_t>();
  values.resize(static_cast<size_t>(batch.n_tokens()));
  std::transform(positions, positions + batch.n_tokens(), values.begin(),
                 [ratio](int32_t position) { return position % static_cast<int32_t>(ratio); });
  return Tensor::contiguous(values.data(), DType::kI32, {batch.n_tokens()}, "block slots");
}

}  // namespace

Tensor Deepseek4::rounded(const Tensor& x, Step& step) const {
  if (!rounds()) return x;
  const Tensor out = step.ws().f32({x.rows(), x.inner()}, "rounded activations");
  step.be(RoundTrip{
      .out = out, .x = x, .grid = RoundTrip::Grid::kFp8, .block = kActivationBlock, .count = x.inner()});
  return out;
}

void Deepseek4::project(int64_t layer, std::string_view kind, const Tensor& x,
                        std::initializer_list<std::pair<Tensor, const Matrix*>> parts, Step& step) const {
  if (!fusion_.fused(layer, kind)) {
    for (const auto& [out, weight] : parts) step.be(Linear{.out = out, .x = x, .weight = *weight});
    return;
  }
  Projections op{.x = x};
  for (const auto& [out, weight] : parts) {
    op.parts[static_cast<size_t>(op.n_parts++)] = {.out = out, .weight = *weight};
  }
  step.be(op);
}

Deepseek4::Step Deepseek4::begin(const BatchView& batch, const KvView& kv, Backend& be) const {
  Step step{.batch = batch, .kv = kv, .be = be, .n_tokens = batch.n_tokens()};
  if (config_.has_ratio(kRatioSparse))
    step.sparse_slots = block_slots(batch, kRatioSparse, step.sparse_values);
  if (config_.has_ratio(kRatioHeavy)) step.heavy_slots = block_slots(batch, kRatioHeavy, step.heavy_values);
  return step;
}

void Deepseek4::forward(const BatchView& batch, const KvView& kv, Backend& be,
                        const ForwardRequest& request) const {
  const Workspace::Scope scope(be.workspace());
  Step step = begin(batch, kv, be);
  Workspace& ws = step.ws();
  const Config& c = config_;
  Tensor streams = ws.f32({step.n_tokens, c.n_streams, c.d_model}, "streams");
  Tensor spare = ws.f32({step.n_tokens, c.n_streams, c.d_model}, "streams");
  const auto tap = [&](int64_t index) {
    if (!request.tap) return;
    be.join();
    request.tap(index, streams);
  };
  {
    const Stage stage(be, -1, "embed");
    const Workspace::Scope embed_scope(ws);
    const Tensor x = ws.f32({step.n_tokens, c.d_model}, "embedding");
    be(Embed{.out = x, .ids = batch.ids, .table = head_.embedding});
    be(HcExpand{.out = streams, .x = x});
  }
  tap(0);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const LayerWeights& w = layer_weights(layer);
    hyper_connect(w.attention_site, w.attention.norm, layer, streams, spare, step,
                  [&](const Tensor& out, const Tensor& x) { attention(layer, out, x, step); });
    hyper_connect(w.moe_site, w.moe.norm, layer, streams, spare, step,
                  [&](const Tensor& out, const Tensor& x) { moe(layer, out, x, step); });
    if (layer + 1 < c.n_layers) tap(layer + 1);
  }
  head(streams, step, request);
}

// streams' = post * sublayer(norm(pre . streams)) + comb^T streams; the result is in `streams` again.
template <typename Sublayer>
void Deepseek4::hyper_connect(const SiteWeights& w, const Tensor& norm, int64_t layer, Tensor& streams,
                              Tensor& spare, Step& step, Sublayer&& sublayer) const {
  const Config& c = config_;
  Backend& be = step.be;
  Workspace& ws = step.ws();
  const Workspace::Scope scope(ws);
  const int64_t n = step.n_tokens, s = c.n_streams;
  const Tensor pre = ws.f32({n, s}, "hc pre"), post = ws.f32({n, s}, "hc post"),
               comb = ws.f32({n, s, s}, "hc comb");
  const Tensor x = ws.f32({n, c.d_model}, "sublayer input"), y = ws.f32({n, c.d_model}, "sublayer output");
  {
    const Stage stage(be, layer, "hc_pre");
    be(HcMix{.pre = pre,
             .post = post,
             .comb = comb,
             .x = streams,
             .fn = w.fn,
             .base = w.base,
             .scale = w.scale,
             .norm_eps = c.rms_norm_eps,
             .eps = c.hc_eps,
             .iterations = c.sinkhorn_iterations});
    be(HcCollapse{.out = x, .x = streams, .weights = pre});
    be(RmsNorm{.out = x, .x = x, .weight = norm, .eps = c.rms_norm_eps});
  }
  sublayer(y, x);
  const Stage stage(be, layer, "hc_post");
  be(HcPost{.out = spare, .y = y, .x = streams, .post = post, .comb = comb});
  std::swap(streams, spare);
}

// out f32 [rows, d_model] of streams f32 [rows, n_streams, d_model]
void Deepseek4::final_norm(const Tensor& out, const Tensor& streams, Step& step) const {
  const Workspace::Scope scope(step.ws());
  const Tensor weights = step.ws().f32({streams.dim(0), config_.n_streams}, "head mix");
  step.be(HcHeadMix{.weights = weights,
                    .x = streams,
                    .fn = head_.fn,
                    .base = head_.base,
                    .scale = head_.scale,
                    .norm_eps = config_.rms_norm_eps,
                    .eps = config_.hc_eps});
  step.be(HcCollapse{.out = out, .x = streams, .weights = weights});
  step.be(RmsNorm{.out = out, .x = out, .weight = head_.norm, .eps = config_.rms_norm_eps});
}

void Deepseek4::head(const Tensor& streams, Step& step, const ForwardRequest& request) const {
  const Config& c = config_;
  Backend& be = step.be;
  Workspace& ws = step.ws();
  const Stage stage(be, -1, "head");
  if (request.tap) {
    const Workspace::Scope scope(ws);
    const Tensor hidden = ws.f32({step.n_tokens, c.d_model}, "hidden");
    final_norm(hidden, streams, step);
    be.join();
    request.tap(c.n_layers, hidden);
  }
  if (!request.logits && !request.greedy) return;
  const Workspace::Scope scope(ws);
  Tensor chosen = streams;
  if (request.rows) {
    chosen = ws.f32({request.rows.dim(0), c.n_streams, c.d_model}, "chosen streams");
    be(GatherRows{.out = chosen, .x = streams, .rows = request.rows});
  }
  const Tensor hidden = ws.f32({chosen.dim(0), c.d_model}, "hidden");
  final_norm(hidden, chosen, step);
  const Tensor logits = request.logits ? request.logits : ws.f32({chosen.dim(0), c.vocab_size}, "logits");
  be(Linear{.out = logits, .x = hidden, .weight = head_.output});
  if (request.greedy) be(ArgMax{.out = request.greedy, .x = logits});
}

}  // namespace synod::deepseek4
