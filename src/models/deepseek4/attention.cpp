// Attention of one layer: low-rank queries, one shared key/value head, a sliding window of raw rows, and (by
// the layer's ratio) compressed rows, for ratio 4 those that the indexer chooses.
#include <cmath>

#include "models/deepseek4/deepseek4_model.h"

namespace synod::deepseek4 {
namespace {

constexpr int64_t kRowBlock = 64;    // values per FP8 scale of key/value rows
constexpr int64_t kIndexBlock = 32;  // values per FP4 scale of index queries and keys

}  // namespace

void Deepseek4::attention(int64_t layer, const Tensor& out, const Tensor& x, Step& step) const {
  const Config& c = config_;
  Workspace& ws = step.ws();
  const int64_t n = step.n_tokens;
  const Workspace::Scope scope(ws);
  const Tensor queries = ws.f32({n, c.n_heads, c.head_dim}, "queries");
  const Tensor heads = ws.f32({n, c.n_heads, c.head_dim}, "head outputs");
  Tensor selected;
  if (ratio(layer) == kRatioSparse && selects_rows(step)) {
    selected = ws.i32({n, c.index_top_k}, "selected rows");
  }
  {
    const Workspace::Scope inner(ws);
    const Projected projected = project_input(layer, x, step);
    queries_and_window(layer, queries, projected, step);
    if (ratio(layer) != kRatioNone) compress(layer, projected, step);
    if (selected) select_rows(layer, selected, projected, step);
  }
  attend(layer, heads, queries, selected, step);
  output_projection(layer, out, heads, step);
}

// Whether a token may see more compressed rows than it attends to; otherwise it attends to all of them, and
// nobody needs index queries. A dry run shows every op.
bool Deepseek4::selects_rows(const Step& step) const {
  if (step.be.is_dry()) return true;
  for (int64_t s = 0; s < step.batch.n_sequences(); ++s) {
    if (step.batch.total(s) / kRatioSparse > config_.index_top_k) return true;
  }
  return false;
}

// All products of the layer's input are neighbours, so that a backend may share launches.
Deepseek4::Projected Deepseek4::project_input(int64_t layer, const Tensor& x, Step& step) const {
  const Config& c = config_;
  const AttentionWeights& w = layer_weights(layer).attention;
  Backend& be = step.be;
  Workspace& ws = step.ws();
  const int64_t n = step.n_tokens;
  Projected p{.latent = ws.f32({n, c.q_rank}, "query latent"),
              .kv = ws.f32({n, c.head_dim}, "key/value row")};
  {
    const Stage stage(be, layer, "attention");
    project(layer, "q_a_kv", rounded(x, step), {{p.latent, &w.q_a}, {p.kv, &w.kv}}, step);
  }
  // Each token's [values | scores].
  const auto state_of = [&](const CompressorWeights& compressor, std::string_view kind) {
    const int64_t width = compressor.values.n_out;
    const Tensor state = ws.f32({n, 2 * width}, "compressor state");
    project(layer, kind, x,
            {{state.slice(1, 0, width), &compressor.values},
             {state.slice(1, width, 2 * width), &compressor.scores}},
            step);
    return state;
  };
  if (ratio(layer) != kRatioNone) {
    const Stage stage(be, layer, "compressor");
    p.state = state_of(w.compressor, "compressor");
  }
  if (ratio(layer) == kRatioSparse) {
    const Stage stage(be, layer, "indexer");
    p.index_state = state_of(w.indexer.compressor, "index_compressor");
    if (!selects_rows(step)) return p;
    p.index_queries = ws.f32({n, c.n_index_heads, c.index_dim}, "index queries");
    p.beta = ws.f32({n, c.n_index_heads}, "index head weights");
    be(Linear{.out = p.beta, .x = x, .weight = w.indexer.beta});
    be(Scale{
        .x = p.beta,
        .factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_dim * c.n_index_heads)))});
  }
  return p;
}

// latent = norm(q_a x); q = rope(unweighted norm per head(q_b latent)); index q = rope(index q latent); the
// window row = rope(norm(kv x)).
void Deepseek4::queries_and_window(int64_t layer, const Tensor& queries, const Projected& p,
                                   Step& step) const {
  const Config& c = config_;
  const AttentionWeights& w = layer_weights(layer).attention;
  Backend& be = step.be;
  const Stage stage(be, layer, "attention");
  const Workspace::Scope scope(step.ws());
  const int64_t n = step.n_tokens, first = c.head_dim - c.rope_dim;
  const auto rope = [&](const Tensor& t) {
    be(Rope{.x = t,
            .positions = step.batch.positions,
            .freqs = freqs(layer),
            .layout = Rope::Layout::kInterleaved,
            .first = t.inner() - c.rope_dim});
  };
  be(RmsNorm{.out = p.latent, .x = p.latent, .weight = w.q_a_norm, .eps = c.rms_norm_eps});
  const Tensor input = rounded(p.latent, step);
  be(Linear{.out = queries.reshape({n, c.n_heads * c.head_dim}), .x = input, .weight = w.q_b});
  if (p.index_queries) {
    const Stage index_stage(be, layer, "indexer");
    be(Linear{.out = p.index_queries.reshape({n, c.n_index_heads * c.index_dim}),
              .x = input,
              .weight = w.indexer.q});
  }

  be(RmsNorm{.out = queries, .x = queries, .eps = c.rms_norm_eps});
  rope(queries);
  be(RmsNorm{.out = p.kv, .x = p.kv, .weight = w.kv_norm, .eps = c.rms_norm_eps});
  rope(p.kv);
  if (p.index_queries) {
    const Stage index_stage(be, layer, "indexer");
    rope(p.index_queries);
  }
  if (rounds()) {
    be(RoundTrip{.out = p.kv, .x = p.kv, .grid = RoundTrip::Grid::kFp8, .block = kRowBlock, .count = first});
  }
  be(CacheWrite{.rows = step.kv.rows(groups_.window, layer), .x = p.kv, .batch = &step.batch});
  if (p.index_queries && rounds()) {
    // The transform is orthogonal: without the rounding it would cancel against that of the keys.
    const Stage index_stage(be, layer, "indexer");
    be(Hadamard{.x = p.index_queries});
    be(RoundTrip{.out = p.index_queries,
                 .x = p.index_queries,
                 .grid = RoundTrip::Grid::kFp4,
                 .block = kIndexBlock,
                 .count = c.index_dim});
  }
}

// Stores each token's [values | scores + position term], then pools the blocks that the batch closes. What
// the indexer's compressor does comes first: its rows are the smaller ones.
void Deepseek4::compress(int64_t layer, const Projected& p, Step& step) const {
  const AttentionWeights& w = layer_weights(layer).attention;
  Backend& be = step.be;
  const Stage stage(be, layer, "compressor");
  const Workspace::Scope scope(step.ws());
  const bool overlap = ratio(layer) == kRatioSparse;
  struct Compressor {
    const CompressorWeights& weights;
    Tensor state;
    CacheRows rows, states;
    bool index;
  };
  std::vector<Compressor> compressors;
  if (overlap) {
    compressors.push_back({w.indexer.compressor, p.index_state, step.kv.rows(groups_.index_keys, layer),
                           step.kv.rows(groups_.index_state, layer), true});
  }
  compressors.push_back({w.compressor, p.state, step.kv.rows(overlap ? groups_.sparse : groups_.heavy, layer),
                         step.kv.rows(overlap ? groups_.sparse_state : groups_.heavy_state, layer), false});

  for (const Compressor& compressor : compressors) {
    const int64_t width = compressor.weights.values.n_out;
    const Tensor scores = compressor.state.slice(1, width, 2 * width);
    const Tensor terms = step.ws().f32({step.n_tokens, width}, "position terms");
    be(Embed{.out = terms,
             .ids = overlap ? step.sparse_slots : step.heavy_slots,
             .table = compressor.weights.positions});
    be(Add{.out = scores, .a = scores, .b = terms});
    be(CacheWrite{.rows = compressor.states, .x = compressor.state, .batch = &step.batch});
  }
  if (closed_blocks(step.batch, ratio(layer)) == 0) return;
  using Round = Compress::Round;
  for (const Compressor& compressor : compressors) {
    be(Compress{.rows = compressor.rows,
                .state = compressor.states,
                .norm = compressor.weights.norm,
                .freqs = freqs(layer),
                .batch = &step.batch,
                .ratio = ratio(layer),
                .overlap = overlap,
                .round = !rounds()          ? Round::kNone
                         : compressor.index ? Round::kHadamardFp4
                                            : Round::kFp8,
                .eps = config_.rms_norm_eps});
  }
}

// selected i32 [n_tokens, index_top_k]: the compressed rows that each token attends to.
void Deepseek4::select_rows(int64_t layer, const Tensor& selected, const Projected& p, Step& step) const {
  const Stage stage(step.be, layer, "indexer");
  step.be(IndexSelect{.selected = selected,
                      .q = p.index_queries,
                      .beta = p.beta,
                      .keys = step.kv.rows(groups_.index_keys, layer),
                      .batch = &step.batch,
                      .ratio = kRatioSparse});
}

// out f32 [n_tokens, n_heads, head_dim], rotated back at the query's position: values carry the rotation of
// their keys.
void Deepseek4::attend(int64_t layer, const Tensor& out, const Tensor& queries, const Tensor& selected,
                       Step& step) const {
  const Config& c = config_;
  Backend& be = step.be;
  const Stage stage(be, layer, "attention");
  CacheRows compressed;
  if (ratio(layer) == kRatioSparse) compressed = step.kv.rows(groups_.sparse, layer);
  if (ratio(layer) == kRatioHeavy) compressed = step.kv.rows(groups_.heavy, layer);
  be(SparseAttention{.out = out,
                     .q = queries,
                     .sinks = layer_weights(layer).attention.sinks,
                     .window_rows = step.kv.rows(groups_.window, layer),
                     .compressed = compressed,
                     .selected = selected,
                     .batch = &step.batch,
                     .window = c.window,
                     .ratio = ratio(layer),
                     .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)))});
  be(Rope{.x = out,
          .positions = step.batch.positions,
          .freqs = freqs(layer),
          .layout = Rope::Layout::kInterleaved,
          .first = c.head_dim - c.rope_dim,
          .inverse = true});
}

// out = output_b (output_a per group of heads)
void Deepseek4::output_projection(int64_t layer, const Tensor& out, const Tensor& heads, Step& step) const {
  const Config& c = config_;
  const AttentionWeights& w = layer_weights(layer).attention;
  const Stage stage(step.be, layer, "attention_output");
  const Workspace::Scope scope(step.ws());
  const int64_t n = step.n_tokens, groups = c.n_output_groups;
  const Tensor latent = step.ws().f32({n, groups, c.output_rank}, "output latent");
  step.be(GroupedLinear{
      .out = latent, .x = heads.reshape({n, groups, c.n_heads / groups * c.head_dim}), .weight = w.output_a});
  const Tensor flat = latent.reshape({n, groups * c.output_rank});
  step.be(Linear{.out = out, .x = rounded(flat, step), .weight = w.output_b});
}

}  // namespace synod::deepseek4
