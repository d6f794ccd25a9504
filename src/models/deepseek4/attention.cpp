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
  const AttentionWeights& w = layer_weights(layer).attention;
  const int64_t n = step.n_tokens;
  const Workspace::Scope scope(step.ws());
  const Tensor latent = step.ws().f32({n, c.q_rank}, "query latent");
  const Tensor queries = step.ws().f32({n, c.n_heads, c.head_dim}, "queries");
  const Tensor heads = step.ws().f32({n, c.n_heads, c.head_dim}, "head outputs");
  queries_and_window(layer, latent, queries, x, step);

  Tensor selected;
  if (ratio(layer) == kRatioHeavy) {
    const Stage stage(step.be, layer, "compressor");
    compress(layer, w.compressor,
             {.rows = step.kv.rows(groups_.heavy, layer),
              .state = step.kv.rows(groups_.heavy_state, layer),
              .ratio = kRatioHeavy,
              .dim = c.head_dim,
              .index = false},
             x, step);
  } else if (ratio(layer) == kRatioSparse) {
    {
      const Stage stage(step.be, layer, "compressor");
      compress(layer, w.compressor,
               {.rows = step.kv.rows(groups_.sparse, layer),
                .state = step.kv.rows(groups_.sparse_state, layer),
                .ratio = kRatioSparse,
                .dim = c.head_dim,
                .index = false},
               x, step);
    }
    selected = select_rows(layer, latent, x, step);
  }
  attend(layer, heads, queries, selected, step);
  output_projection(layer, out, heads, step);
}

// latent = norm(q_a x); q = rope(unweighted norm per head(q_b latent)); the window row = rope(norm(kv x)).
void Deepseek4::queries_and_window(int64_t layer, const Tensor& latent, const Tensor& queries,
                                   const Tensor& x, Step& step) const {
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
            .first = first});
  };
  const Tensor kv = step.ws().f32({n, c.head_dim}, "key/value row");
  project(layer, "q_a_kv", rounded(x, step), {{latent, &w.q_a}, {kv, &w.kv}}, step);

  be(RmsNorm{.out = latent, .x = latent, .weight = w.q_a_norm, .eps = c.rms_norm_eps});
  be(Linear{
      .out = queries.reshape({n, c.n_heads * c.head_dim}), .x = rounded(latent, step), .weight = w.q_b});
  be(RmsNorm{.out = queries, .x = queries, .eps = c.rms_norm_eps});
  rope(queries);

  be(RmsNorm{.out = kv, .x = kv, .weight = w.kv_norm, .eps = c.rms_norm_eps});
  rope(kv);
  if (rounds()) {
    be(RoundTrip{.out = kv, .x = kv, .grid = RoundTrip::Grid::kFp8, .block = kRowBlock, .count = first});
  }
  be(CacheWrite{.rows = step.kv.rows(groups_.window, layer), .x = kv, .batch = &step.batch});
}

// Stores each token's [values | scores + position term], then pools the blocks that the batch closes.
void Deepseek4::compress(int64_t layer, const CompressorWeights& w, const CompressorRows& cache,
                         const Tensor& x, Step& step) const {
  Backend& be = step.be;
  const Workspace::Scope scope(step.ws());
  const bool overlap = cache.ratio == kRatioSparse;
  const int64_t n = step.n_tokens, width = (overlap ? 2 : 1) * cache.dim;
  const Tensor state = step.ws().f32({n, 2 * width}, "compressor state");
  const Tensor values = state.slice(1, 0, width), scores = state.slice(1, width, 2 * width);
  project(layer, cache.index ? "index_compressor" : "compressor", x,
          {{values, &w.values}, {scores, &w.scores}}, step);

  const Tensor position_terms = step.ws().f32({n, width}, "position terms");
  be(Embed{
      .out = position_terms, .ids = overlap ? step.sparse_slots : step.heavy_slots, .table = w.positions});
  be(Add{.out = scores, .a = scores, .b = position_terms});
  be(CacheWrite{.rows = cache.state, .x = state, .batch = &step.batch});

  if (closed_blocks(step.batch, cache.ratio) == 0) return;
  using Round = Compress::Round;
  be(Compress{.rows = cache.rows,
              .state = cache.state,
              .norm = w.norm,
              .freqs = freqs(layer),
              .batch = &step.batch,
              .ratio = cache.ratio,
              .overlap = overlap,
              .round = !rounds() ? Round::kNone : (cache.index ? Round::kHadamardFp4 : Round::kFp8),
              .eps = config_.rms_norm_eps});
}

// i32 [n_tokens, index_top_k]: the compressed rows that each token attends to.
Tensor Deepseek4::select_rows(int64_t layer, const Tensor& latent, const Tensor& x, Step& step) const {
  const Config& c = config_;
  const IndexerWeights& w = layer_weights(layer).attention.indexer;
  Backend& be = step.be;
  const Stage stage(be, layer, "indexer");
  const int64_t n = step.n_tokens, heads = c.n_index_heads, dim = c.index_dim;
  const Tensor selected = step.ws().i32({n, c.index_top_k}, "selected rows");
  const Workspace::Scope scope(step.ws());
  const CacheRows keys = step.kv.rows(groups_.index_keys, layer);
  compress(layer, w.compressor,
           {.rows = keys,
            .state = step.kv.rows(groups_.index_state, layer),
            .ratio = kRatioSparse,
            .dim = dim,
            .index = true},
           x, step);

  const Tensor queries = step.ws().f32({n, heads, dim}, "index queries");
  be(Linear{.out = queries.reshape({n, heads * dim}), .x = rounded(latent, step), .weight = w.q});
  be(Rope{.x = queries,
          .positions = step.batch.positions,
          .freqs = freqs(layer),
          .layout = Rope::Layout::kInterleaved,
          .first = dim - c.rope_dim});
  if (rounds()) {  // the transform is orthogonal: without the rounding it would cancel against that of the
                   // keys
    be(Hadamard{.x = queries});
    be(RoundTrip{
        .out = queries, .x = queries, .grid = RoundTrip::Grid::kFp4, .block = kIndexBlock, .count = dim});
  }
  const Tensor beta = step.ws().f32({n, heads}, "index head weights");
  be(Linear{.out = beta, .x = x, .weight = w.beta});
  be(Scale{.x = beta, .factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim * heads)))});
  be(IndexSelect{.selected = selected,
                 .q = queries,
                 .beta = beta,
                 .keys = keys,
                 .batch = &step.batch,
                 .ratio = kRatioSparse});
  return selected;
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
