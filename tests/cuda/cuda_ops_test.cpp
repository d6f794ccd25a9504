// Element-wise ops, heads, routers, hyper-connections, selection and cache ops of the CUDA backend against
// the reference.
#include "cuda_testing.h"

namespace synod::testing {
namespace {

constexpr double kFloat = 3e-6;  // f32 sums of up to thousands of terms

TEST(CudaOps, NormsSumsScalesAndGates) {
  SYNOD_NEED_GPU();
  for (const int64_t d : {1, 7, 64, 100, 256, 704, 2816, 4096, 9000, 20000}) {
    const std::string name = "d " + std::to_string(d);
    const F32 x({5, d}, normal_values(5 * d, 1, 3.0F)), w({d}, normal_values(d, 2)), by({1}, {1.7F});
    const F32 y({5, d}, normal_values(5 * d, 3)), weight({5}, {1.0F, 0.5F, -2.0F, 0.0F, 3.0F});
    expect_close("norm " + name, kFloat, [&](Backend& be) {
      F32 out({5, d});
      be(RmsNorm{.out = out, .x = x, .weight = w, .eps = 1e-6F, .factor = 0.7F});
      be(RmsNorm{.out = out, .x = out, .eps = 1e-6F});
      be.join();
      return out.values();
    });
    // In place, one after the other: one row program.
    expect_close("chain " + name, kFloat, [&](Backend& be) {
      F32 a({5, d}, x.values()), b({5, d}, y.values());
      be(RmsNorm{.out = b, .x = b, .weight = w, .eps = 1e-6F});
      be(Add{.out = a, .a = a, .b = b, .factor = 0.3F});
      be(Scale{.x = a, .by = by, .factor = 0.9F});
      be(Glu{.out = b, .gate = a, .up = b, .row_weight = weight, .act = Glu::Act::kGeluTanh, .limit = 1.5F});
      be.join();
      Values out = a.values();
      out.insert(out.end(), b.values().begin(), b.values().end());
      return out;
    });
    expect_close("silu " + name, kFloat, [&](Backend& be) {
      F32 out({5, d});
      be(Glu{.out = out, .gate = x, .up = y});
      be.join();
      return out.values();
    });
    expect_close("soft cap " + name, kFloat, [&](Backend& be) {
      F32 a({5, d}, x.values());
      be(SoftCap{.x = a, .cap = 3.0F});
      be.join();
      return a.values();
    });
  }
}

TEST(CudaOps, Rotations) {
  SYNOD_NEED_GPU();
  for (const auto layout : {Rope::Layout::kHalves, Rope::Layout::kInterleaved}) {
    for (const int64_t n_pairs : {1, 5, 32, 128}) {
      for (const bool inverse : {false, true}) {
        const int64_t d = 2 * n_pairs + 9;
        const F32 freqs({n_pairs}, normal_values(n_pairs, 3));
        const I32 positions({4}, {0, 1, 4096, 131071});
        expect_close("rope " + std::to_string(n_pairs), kFloat, [&](Backend& be) {
          F32 x({4, 3, d}, normal_values(12 * d, 4));
          be(Rope{.x = x,
                  .positions = positions,
                  .freqs = freqs,
                  .layout = layout,
                  .first = 4,
                  .inverse = inverse});
          be.join();
          return x.values();
        });
      }
    }
  }
}

// The order of a Gemma layer (raw keys as values) and of a DeepSeek layer: one launch each on the device.
TEST(CudaOps, HeadsOfALayer) {
  SYNOD_NEED_GPU();
  for (const bool keys_are_values : {false, true}) {
    const Batch batch({{3, 2}, {0, 3}});
    const int64_t n = 5, heads = 4, kv = 2, d = 64;
    const F32 freqs({d / 2}, normal_values(d / 2, 5)), w({d}, normal_values(d, 6));
    expect_close("heads", kFloat, [&](Backend& be) {
      F32 q({n, heads * d}, normal_values(n * heads * d, 7)), k({n, kv * d}, normal_values(n * kv * d, 8));
      F32 v({n, kv * d}, normal_values(n * kv * d, 9));
      BackendRows k_rows(be, DType::kF32, kv * d, 4, 2, 8), v_rows(be, DType::kF32, kv * d, 4, 2, 8);
      k_rows.fill(8, 1), v_rows.fill(8, 2);
      const Tensor kh = k.tensor().reshape({n, kv, d}), vh = v.tensor().reshape({n, kv, d});
      const Tensor qh = q.tensor().reshape({n, heads, d});
      be(RmsNorm{.out = vh, .x = keys_are_values ? kh : vh, .eps = 1e-6F});
      be(RmsNorm{.out = kh, .x = kh, .weight = w, .eps = 1e-6F});
      be(Rope{.x = kh, .positions = batch.view()->positions, .freqs = freqs});
      be(CacheWrite{.rows = k_rows.rows(), .x = k, .batch = batch.view()});
      be(CacheWrite{.rows = v_rows.rows(), .x = v, .batch = batch.view()});
      be(RmsNorm{.out = qh, .x = qh, .weight = w, .eps = 1e-6F});
      be(Rope{.x = qh, .positions = batch.view()->positions, .freqs = freqs});
      be.join();
      Values out = q.values();
      for (BackendRows* rows : {&k_rows, &v_rows}) {
        const Values stored = rows->get();
        out.insert(out.end(), stored.begin(), stored.end());
      }
      return out;
    });
  }
}

TEST(CudaOps, SmallFloatsAndHadamard) {
  SYNOD_NEED_GPU();
  for (const auto grid : {RoundTrip::Grid::kFp8, RoundTrip::Grid::kFp4}) {
    for (const int64_t block : {32, 64, 128}) {
      expect_close("round trip", 0.0, [&](Backend& be) {
        F32 x({3, 300}, normal_values(900, 11, 30.0F)), out({3, 300});
        be(RoundTrip{.out = out, .x = x, .grid = grid, .block = block, .count = 290});
        be.join();
        return out.values();
      });
    }
  }
  for (const int64_t d : {1, 2, 32, 128, 1024}) {
    expect_close("hadamard", kFloat, [&](Backend& be) {
      F32 x({3, d}, normal_values(3 * d, 12));
      be(Hadamard{.x = x});
      be.join();
      return x.values();
    });
  }
}

TEST(CudaOps, ArgMaxTakesTheLowestOfEqualsAndReportsNaN) {
  SYNOD_NEED_GPU();
  for (const int64_t d : {1, 5, 1000, 262144}) {
    expect_close("arg max", 0.0, [&](Backend& be) {
      F32 x({3, d}, normal_values(3 * d, 13));
      x[d / 2] = x[d - 1] = 99.0F;
      I32 out({3});
      be(ArgMax{.out = out, .x = x});
      be.join();
      return as_floats(out);
    });
  }
  F32 x({1, 100}, normal_values(100, 14));
  x[17] = NAN;
  I32 out({1});
  {
    const Stage stage(*gpu(), 3, "head");
    (*gpu())(ArgMax{.out = out, .x = x});
  }
  gpu()->join();
  const auto report = gpu()->take_status();
  EXPECT_EQ(report.bits, static_cast<uint32_t>(Status::kNonFinite));
  EXPECT_EQ(report.where.text(), "layer 3 head");
  EXPECT_EQ(gpu()->take_status().bits, 0U);
}

TEST(CudaOps, GatherAndExpand) {
  SYNOD_NEED_GPU();
  const I32 rows({3}, {4, 0, 4});
  expect_close("gather", 0.0, [&](Backend& be) {
    const F32 x({5, 3, 40}, normal_values(600, 15));
    F32 out({3, 3, 40});
    be(GatherRows{.out = out, .x = x, .rows = rows});
    be.join();
    return out.values();
  });
}

TEST(CudaOps, Routers) {
  SYNOD_NEED_GPU();
  for (const auto& [n_experts, k] :
       {std::pair<int64_t, int64_t>{8, 2}, {128, 8}, {256, 6}, {384, 8}, {3, 3}}) {
    const int64_t n = 33;
    const F32 logits({n, n_experts}, normal_values(n * n_experts, 16)),
        scale({n_experts}, normal_values(n_experts, 17));
    std::vector<int32_t> table;
    for (int64_t i = 0; i < 50 * k; ++i) table.push_back(static_cast<int32_t>(i * 7 % n_experts));
    const I32 table_ids({50, k}, table);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < n; ++i) tokens.push_back(i % 50);
    const I32 token_ids({n}, tokens);
    for (int mode = 0; mode < 3; ++mode) {
      expect_close("route " + std::to_string(mode), kFloat, [&](Backend& be) {
        I32 ids({n, k});
        F32 weights({n, k});
        if (mode == 0)
          be(RouteSoftmax{.ids = ids, .weights = weights, .logits = logits, .expert_scale = scale});
        if (mode == 1)
          be(RouteScores{.ids = ids, .weights = weights, .logits = logits, .bias = scale, .scale = 1.5F});
        if (mode == 2) {
          be(RouteHash{.ids = ids,
                       .weights = weights,
                       .logits = logits,
                       .token_ids = token_ids,
                       .table = table_ids,
                       .scale = 1.5F});
        }
        be.join();
        Values out = as_floats(ids);
        out.insert(out.end(), weights.values().begin(), weights.values().end());
        return out;
      });
    }
  }
}

HcMix site_mix(const Tensor& pre, const Tensor& post, const Tensor& comb, const Tensor& x,
               const StoredMatrix& fn, const Tensor& base, const Tensor& scale) {
  return {.pre = pre,
          .post = post,
          .comb = comb,
          .x = x,
          .fn = fn,
          .base = base,
          .scale = scale,
          .norm_eps = 1e-6F,
          .eps = 1e-6F,
          .iterations = 20};
}

TEST(CudaOps, HyperConnections) {
  SYNOD_NEED_GPU();
  for (const int64_t d : {3, 40, 1024, 4096}) {
    for (const int64_t s : {2, 4, 5}) {
      for (const int64_t n : {1, 2, 7}) {
        const int64_t mixes = 2 * s + s * s;
        const StoredMatrix fn(DType::kF32, mixes, s * d, 20, 1.0F / std::sqrt(static_cast<float>(s * d)));
        const StoredMatrix head(DType::kF16, s, s * d, 21, 1.0F / std::sqrt(static_cast<float>(s * d)));
        const F32 base({mixes}, normal_values(mixes, 22)), scale({3}, {0.7F, 1.1F, 0.9F}),
            w({d}, normal_values(d, 23));
        const F32 x({n, s, d}, normal_values(n * s * d, 24)), y({n, d}, normal_values(n * d, 25));
        expect_close("hc s " + std::to_string(s) + " d " + std::to_string(d), 1e-5, [&](Backend& be) {
          F32 pre({n, s}), post({n, s}), comb({n, s, s}), u({n, d}), out({n, s, d}), weights({n, s}),
              v({n, d});
          F32 expanded({n, s, d});
          be(site_mix(pre, post, comb, x, fn, base, scale));
          be(HcCollapse{.out = u, .x = x, .weights = pre});
          be(RmsNorm{.out = u, .x = u, .weight = w, .eps = 1e-6F});
          be(HcPost{.out = out, .y = y, .x = x, .post = post, .comb = comb});
          be(HcHeadMix{.weights = weights,
                       .x = x,
                       .fn = head,
                       .base = base.tensor().slice(0, 0, s),
                       .scale = scale.tensor().slice(0, 0, 1),
                       .norm_eps = 1e-6F,
                       .eps = 1e-6F});
          be(HcCollapse{.out = v, .x = x, .weights = weights});
          be(HcExpand{.out = expanded, .x = v});
          be.join();
          Values all;
          for (const F32* t : {&pre, &post, &comb, &u, &out, &weights, &v, &expanded}) {
            all.insert(all.end(), t->values().begin(), t->values().end());
          }
          return all;
        });
      }
    }
  }
}

TEST(CudaOps, CacheRowsOfEveryType) {
  SYNOD_NEED_GPU();
  const Batch batch({{5, 3}, {0, 1}, {7, 4}});
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    expect_close("attention over " + std::string(name(type)), 1e-5, [&](Backend& be) {
      BackendRows k(be, type, 64, 4, 3, 12), v(be, type, 64, 4, 3, 12);
      k.fill(12, 30), v.fill(12, 31);
      const F32 x({8, 64}, normal_values(8 * 64, 32)), q({8, 4, 32}, normal_values(8 * 4 * 32, 33));
      be(CacheWrite{.rows = k.rows(), .x = x, .batch = batch.view()});
      F32 out({8, 4, 32});
      be(Attention{.out = out,
                   .q = q,
                   .k = k.rows(),
                   .v = v.rows(),
                   .batch = batch.view(),
                   .n_kv_heads = 2,
                   .scale = 0.2F});
      be.join();
      return out.values();
    });
  }
}

TEST(CudaOps, AttentionOfEveryShape) {
  SYNOD_NEED_GPU();
  struct Shape {
    int64_t heads, kv, d, window;
  };
  for (const Shape& s : {Shape{4, 4, 16, 0},
                         {4, 2, 24, 5},
                         {8, 2, 64, 0},
                         {16, 8, 256, 100},
                         {16, 2, 512, 0},
                         {6, 2, 128, 64}}) {
    for (const auto& sequences :
         std::vector<std::vector<std::pair<int64_t, int64_t>>>{{{0, 1}},
                                                               {{300, 1}, {0, 1}, {65, 1}},
                                                               {{100, 37}},
                                                               {{200, 5}, {0, 90}},
                                                               {{100, 1100}, {37, 3}}}) {
      const int64_t rows = sequences.size() == 2 && sequences[0].second > 1000 ? 1200 : 320;
      if (rows > 320 && s.heads * s.d > 512) continue;  // the reference is slow
      const Batch batch(sequences);
      const int64_t n = batch.view()->n_tokens(), n_seq = batch.view()->n_sequences();
      const std::string what = "attention d " + std::to_string(s.d) + " n " + std::to_string(n);
      expect_close(what, n >= cuda::kTileTokens ? 2e-3 : 1e-5, [&](Backend& be) {
        BackendRows k(be, DType::kF32, s.kv * s.d, 16, n_seq, rows),
            v(be, DType::kF32, s.kv * s.d, 16, n_seq, rows);
        k.fill(rows, 40), v.fill(rows, 41);
        const F32 q({n, s.heads, s.d}, normal_values(n * s.heads * s.d, 42));
        F32 out({n, s.heads, s.d});
        be(Attention{.out = out,
                     .q = q,
                     .k = k.rows(),
                     .v = v.rows(),
                     .batch = batch.view(),
                     .n_kv_heads = s.kv,
                     .window = s.window,
                     .scale = 1.0F / std::sqrt(static_cast<float>(s.d))});
        be.join();
        return out.values();
      });
    }
  }
}

TEST(CudaOps, SparseAttentionAndSelection) {
  SYNOD_NEED_GPU();
  for (const auto& [heads, d] : {std::pair<int64_t, int64_t>{4, 32}, {64, 512}, {8, 64}}) {
    for (const auto& sequences :
         std::vector<std::vector<std::pair<int64_t, int64_t>>>{{{0, 1}}, {{250, 1}, {3, 1}}, {{100, 80}}}) {
      const Batch batch(sequences);
      const int64_t n = batch.view()->n_tokens(), n_seq = batch.view()->n_sequences();
      for (const bool select : {false, true}) {
        const int64_t ratio = 4, top_k = 16, i_heads = 4, i_dim = 32;
        expect_close("sparse attention d " + std::to_string(d) + " n " + std::to_string(n),
                     n >= cuda::kTileTokens ? 2e-3 : 1e-5, [&](Backend& be) {
                       BackendRows window(be, DType::kF32, d, 16, n_seq, 256),
                           rows(be, DType::kF32, d, 16, n_seq, 64);
                       BackendRows keys(be, DType::kF32, i_dim, 16, n_seq, 64);
                       window.fill(256, 50), rows.fill(64, 51, ratio), keys.fill(64, 52, ratio);
                       const F32 q({n, heads, d}, normal_values(n * heads * d, 53)),
                           sinks({heads}, normal_values(heads, 54));
                       const F32 iq({n, i_heads, i_dim}, normal_values(n * i_heads * i_dim, 55));
                       const F32 beta({n, i_heads}, normal_values(n * i_heads, 56));
                       I32 selected({n, top_k});
                       F32 out({n, heads, d});
                       SparseAttention op{.out = out,
                                          .q = q,
                                          .sinks = sinks,
                                          .window_rows = window.rows(),
                                          .compressed = rows.rows()};
                       if (select) {
                         be(IndexSelect{.selected = selected,
                                        .q = iq,
                                        .beta = beta,
                                        .keys = keys.rows(),
                                        .batch = batch.view(),
                                        .ratio = ratio});
                         op.selected = selected;
                       }
                       op.batch = batch.view(), op.window = 20, op.ratio = ratio,
                       op.scale = 1.0F / std::sqrt(static_cast<float>(d));
                       be(op);
                       be.join();
                       Values all = out.values();
                       if (select) {
                         const Values ids = as_floats(selected);
                         all.insert(all.end(), ids.begin(), ids.end());
                       }
                       return all;
                     });
      }
    }
  }
}

TEST(CudaOps, SelectionOfManyRows) {
  SYNOD_NEED_GPU();
  const Batch batch({{20000, 1}});
  expect_close("selection", 0.0, [&](Backend& be) {
    BackendRows keys(be, DType::kF32, 128, 64, 1, 5001);
    keys.fill(5001, 60, 4);
    const F32 q({1, 64, 128}, normal_values(64 * 128, 61)), beta({1, 64}, normal_values(64, 62));
    I32 selected({1, 512});
    be(IndexSelect{
        .selected = selected, .q = q, .beta = beta, .keys = keys.rows(), .batch = batch.view(), .ratio = 4});
    be.join();
    return as_floats(selected);
  });
}

TEST(CudaOps, Compressors) {
  SYNOD_NEED_GPU();
  const Batch batch({{6, 7}, {0, 3}, {4, 4}, {127, 1}});
  for (const bool overlap : {false, true}) {
    const int64_t ratio = 4, d = 64, width = overlap ? 4 * d : 2 * d;
    const F32 norm({d}, normal_values(d, 70)), freqs({16}, normal_values(16, 71));
    for (const auto round : {Compress::Round::kNone, Compress::Round::kFp8, Compress::Round::kHadamardFp4}) {
      expect_close("compress", round == Compress::Round::kNone ? kFloat : 2e-2, [&](Backend& be) {
        BackendRows state(be, DType::kF32, width, 8, 4, 128), rows(be, DType::kF32, d, 8, 4, 32);
        state.fill(128, 72), rows.fill(32, 73, ratio);
        be(Compress{.rows = rows.rows(),
                    .state = state.rows(),
                    .norm = norm,
                    .freqs = freqs,
                    .batch = batch.view(),
                    .ratio = ratio,
                    .overlap = overlap,
                    .round = round,
                    .eps = 1e-6F});
        be.join();
        return rows.get();
      });
    }
  }
}

// A copy in the backend's own memory, where ops may share a launch.
Tensor on_backend(Backend& be, const F32& x) {
  const Tensor host = x, copy = be.workspace().f32({host.dim(0), host.rows() / host.dim(0) * host.inner()});
  const F32 zeros({copy.dim(0), copy.inner()});
  be(Add{.out = copy, .a = host.reshape({copy.dim(0), copy.inner()}), .b = zeros});
  be.join();
  return copy;
}
Values values_of(Backend& be, const Tensor& t) {
  F32 out({t.dim(0), t.inner()});
  const F32 zeros({t.dim(0), t.inner()});
  be(Add{.out = out, .a = t, .b = zeros});
  be.join();
  return out.values();
}

// As a layer of DeepSeek issues them: state rows of two compressors, then the blocks that close.
TEST(CudaOps, TwoCompressorsOfALayer) {
  SYNOD_NEED_GPU();
  const int64_t ratio = 4, dims[] = {64, 256};
  for (const auto& sequences : std::vector<std::vector<std::pair<int64_t, int64_t>>>{
           {{7, 1}}, {{0, 4}}, {{6, 7}, {0, 3}, {4, 4}, {127, 1}}, {{8, 90}}}) {
    const Batch batch(sequences);
    const int64_t n = batch.view()->n_tokens(), n_seq = batch.view()->n_sequences();
    std::vector<int32_t> slots;
    for (int64_t t = 0; t < n; ++t) slots.push_back(batch.view()->positions.as<const int32_t>()[t] % 4);
    const I32 ids({n}, slots);
    const F32 freqs({16}, normal_values(16, 71)), norm({dims[1]}, normal_values(dims[1], 70));
    for (const bool rounds : {false, true}) {
      expect_close("compressors", rounds ? 2e-2 : kFloat, [&](Backend& be) {
        const Workspace::Scope scope(be.workspace());
        std::vector<std::unique_ptr<BackendRows>> states, rows;
        std::vector<Tensor> x, terms;
        std::vector<StoredMatrix> tables;
        for (const int64_t d : dims) {
          states.push_back(std::make_unique<BackendRows>(be, DType::kF32, 4 * d, 8, n_seq, 128));
          rows.push_back(std::make_unique<BackendRows>(be, DType::kF32, d, 8, n_seq, 32));
          states.back()->fill(128, 72), rows.back()->fill(32, 73, ratio);
          x.push_back(on_backend(be, F32({n, 4 * d}, normal_values(n * 4 * d, 74))));
          terms.push_back(be.workspace().f32({n, 2 * d}));
          tables.emplace_back(DType::kF32, ratio, 2 * d, 75);
        }
        for (size_t i = 0; i < 2; ++i) {
          const Tensor scores = x[i].slice(1, 2 * dims[i], 4 * dims[i]);
          be(Embed{.out = terms[i], .ids = ids, .table = tables[i]});
          be(Add{.out = scores, .a = scores, .b = terms[i]});
          be(CacheWrite{.rows = states[i]->rows(), .x = x[i], .batch = batch.view()});
        }
        using Round = Compress::Round;
        for (size_t i = 0; i < 2; ++i) {
          be(Compress{.rows = rows[i]->rows(),
                      .state = states[i]->rows(),
                      .norm = norm.tensor().slice(0, 0, dims[i]),
                      .freqs = freqs,
                      .batch = batch.view(),
                      .ratio = ratio,
                      .overlap = true,
                      .round = !rounds  ? Round::kNone
                               : i == 0 ? Round::kHadamardFp4
                                        : Round::kFp8,
                      .eps = 1e-6F});
        }
        be.join();
        Values all;
        for (size_t i = 0; i < 2; ++i) {
          for (const Values& v :
               {states[i]->get(), rows[i]->get(), values_of(be, x[i]), values_of(be, terms[i])}) {
            all.insert(all.end(), v.begin(), v.end());
          }
        }
        return all;
      });
    }
  }
}

// The end of a site, the next one, and the product that reads its digits.
TEST(CudaOps, HyperConnectionSitesInARow) {
  SYNOD_NEED_GPU();
  for (const int64_t s : {4, 5}) {
    for (const int64_t d : {96, 1024, 4096}) {
      const int64_t mixes = 2 * s + s * s;
      const StoredMatrix fn(DType::kF32, mixes, s * d, 20, 1.0F / std::sqrt(static_cast<float>(s * d)));
      const StoredMatrix next(DType::kQ8_0, 48, d, 21, 1.0F / std::sqrt(static_cast<float>(d)));
      const F32 base({mixes}, normal_values(mixes, 22)), scale({3}, {0.7F, 1.1F, 0.9F}),
          w({d}, normal_values(d, 23));
      for (const int64_t n : {1, 3, 4, 9}) {
        const F32 x({n, s, d}, normal_values(n * s * d, 24)), y({n, d}, normal_values(n * d, 25));
        const F32 post({n, s}, normal_values(n * s, 26)), comb({n, s, s}, normal_values(n * s * s, 27));
        const auto run = [&](Backend& be, int64_t first, int64_t end) {
          const Workspace::Scope scope(be.workspace());
          Workspace& ws = be.workspace();
          const int64_t rows = end - first;
          const auto part = [&](const F32& t) { return t.tensor().slice(0, first, end); };
          const Tensor streams = ws.f32({rows, s, d}), pre = ws.f32({rows, s}), u = ws.f32({rows, d}),
                       new_post = ws.f32({rows, s}), new_comb = ws.f32({rows, s, s});
          F32 out({rows, 48});
          be(HcPost{.out = streams, .y = part(y), .x = part(x), .post = part(post), .comb = part(comb)});
          be(site_mix(pre, new_post, new_comb, streams, fn, base, scale));
          be(HcCollapse{.out = u, .x = streams, .weights = pre});
          be(RmsNorm{.out = u, .x = u, .weight = w, .eps = 1e-6F});
          be(Linear{.out = out, .x = u, .weight = next});
          be.join();
          Values all = out.values();
          for (const Tensor& t :
               {streams.reshape({rows, s * d}), pre, new_post, new_comb.reshape({rows, s * s}), u}) {
            const Values v = values_of(be, t);
            all.insert(all.end(), v.begin(), v.end());
          }
          return all;
        };
        const std::string what = "sites s " + std::to_string(s) + " d " + std::to_string(d);
        expect_close(what, 1e-4, [&](Backend& be) { return run(be, 0, n); });
        // A token's results do not depend on how many share the call.
        const Values alone = run(*gpu(), n - 1, n), all = run(*gpu(), 0, n);
        EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + 48, all.begin() + (n - 1) * 48)) << what;
      }
    }
  }
}

// Attention, the inverse rotation of its results, and the grouped product that reads their digits.
TEST(CudaOps, AttentionThatTurnsItsResults) {
  SYNOD_NEED_GPU();
  for (const auto& [heads, d] : {std::pair<int64_t, int64_t>{4, 32}, {64, 512}, {8, 128}}) {
    for (const auto& sequences :
         std::vector<std::vector<std::pair<int64_t, int64_t>>>{{{0, 1}}, {{250, 1}, {3, 1}}, {{100, 80}}}) {
      const Batch batch(sequences);
      const int64_t n = batch.view()->n_tokens(), n_seq = batch.view()->n_sequences();
      const int64_t groups = 2, per_group = heads / groups * d, pairs = d / 8;
      const StoredMatrix weight(DType::kQ8_0, groups * 32, per_group, 57,
                                1.0F / std::sqrt(static_cast<float>(per_group)));
      expect_close(
          "turned d " + std::to_string(d) + " n " + std::to_string(n), n >= cuda::kTileTokens ? 2e-3 : 2e-5,
          [&](Backend& be) {
            const Workspace::Scope scope(be.workspace());
            BackendRows window(be, DType::kF32, d, 16, n_seq, 256), rows(be, DType::kF32, d, 16, n_seq, 64);
            window.fill(256, 50), rows.fill(64, 51, 4);
            const F32 q({n, heads, d}, normal_values(n * heads * d, 53)),
                sinks({heads}, normal_values(heads, 54)), freqs({pairs}, normal_values(pairs, 55));
            const Tensor out = be.workspace().f32({n, heads, d});
            F32 product({n, groups, 32});
            be(SparseAttention{.out = out,
                               .q = q,
                               .sinks = sinks,
                               .window_rows = window.rows(),
                               .compressed = rows.rows(),
                               .batch = batch.view(),
                               .window = 20,
                               .ratio = 4,
                               .scale = 1.0F / std::sqrt(static_cast<float>(d))});
            be(Rope{.x = out,
                    .positions = batch.view()->positions,
                    .freqs = freqs,
                    .layout = Rope::Layout::kInterleaved,
                    .first = d - 2 * pairs,
                    .inverse = true});
            be(GroupedLinear{.out = product, .x = out.reshape({n, groups, per_group}), .weight = weight});
            be.join();
            Values all = values_of(be, out.reshape({n, heads * d}));
            all.insert(all.end(), product.values().begin(), product.values().end());
            return all;
          });
    }
  }
}

}  // namespace
}  // namespace synod::testing
