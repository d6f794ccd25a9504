// Products with stored matrices: every type, decode and prefill class, experts. Within a class a row's bits
// do not depend on the other rows.
#include <filesystem>
#include <fstream>

#include "cuda_testing.h"
#include "quant/codec.h"

namespace synod::testing {
namespace {

constexpr double kDecode = 2e-4, kPrefill = 2e-3;

std::vector<DType> encodable_types() {
  std::vector<DType> types;
  for (int i = 0; i < 64; ++i) {
    const auto type = static_cast<DType>(i);
    if (static_cast<size_t>(i) > static_cast<size_t>(DType::kF8E8M0)) break;
    const bool number = type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
    if (can_encode(type) && (number || (is_block_type(type) && type != DType::kQ8_1 && type != DType::kQ8_K)))
      types.push_back(type);
  }
  return types;
}

Values linear(Backend& be, const Matrix& w, const F32& x, int64_t first, int64_t n) {
  F32 out({n, w.n_out});
  be(Linear{.out = out, .x = x.tensor().slice(0, first, first + n), .weight = w});
  be.join();
  return out.values();
}

TEST(CudaProducts, LinearOfEveryType) {
  SYNOD_NEED_GPU();
  for (const DType type : encodable_types()) {
    const int64_t block = info(type).block_values;
    double worst_decode = 0.0, worst_prefill = 0.0;
    bool bits = true;
    for (const auto& [n_out, n_in] :
         {std::pair<int64_t, int64_t>{37, 704}, {300, 2816}, {5, 256}, {3100, 512}}) {
      const int64_t width = n_in / block * block;
      if (width == 0) continue;
      const StoredMatrix w(type, n_out, width, 1, 0.05F);
      const F32 x({200, width}, normal_values(200 * width, 2));
      RefBackend ref;
      const Values want = linear(ref, w, x, 0, 200);
      const auto part = [&](int64_t first, int64_t n) {
        return Values(want.begin() + first * n_out, want.begin() + (first + n) * n_out);
      };
      const Values all = linear(*gpu(), w, x, 0, 200);
      worst_prefill = std::max(worst_prefill, relative_error(all, want));
      const Values tail = linear(*gpu(), w, x, 100, 100);
      bits = bits && same_bits(tail, Values(all.begin() + 100 * n_out, all.end()));
      const Values decode = linear(*gpu(), w, x, 0, 64);
      worst_decode = std::max(worst_decode, relative_error(decode, part(0, 64)));
      for (const int64_t n : {1, 2, 3, 4, 5, 8, 9, 33}) {
        const Values some = linear(*gpu(), w, x, 7, n);
        bits = bits && same_bits(some, Values(decode.begin() + 7 * n_out, decode.begin() + (7 + n) * n_out));
      }
    }
    std::printf("  %-8s decode %.1e  prefill %.1e  bits %s\n", std::string(name(type)).c_str(), worst_decode,
                worst_prefill, bits ? "equal" : "DIFFER");
    EXPECT_LE(worst_decode, kDecode) << name(type);
    EXPECT_LE(worst_prefill, kPrefill) << name(type);
    EXPECT_TRUE(bits) << name(type);
  }
}

// Blocks that the format's own tools wrote (tests/data/quant), tiled to matrices.
class RecordedMatrix {
 public:
  static bool exists(DType type) { return std::filesystem::exists(path(type)); }
  RecordedMatrix(DType type, int64_t n_out, int64_t n_in) {
    std::ifstream in(path(type), std::ios::binary);
    const std::vector<char> file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    bytes_.resize(static_cast<size_t>(n_out * row_bytes(type, n_in)));
    // A prime number of blocks, so that rows differ.
    const auto block = static_cast<size_t>(info(type).block_bytes);
    size_t n = file.size() / block;
    n -= n % 2 == 0 ? 1 : 0;
    for (size_t i = 0; i * block < bytes_.size(); ++i) {
      std::memcpy(bytes_.data() + i * block, file.data() + i % n * block, block);
    }
    matrix_ = matrix_of(Tensor::contiguous(bytes_.data(), type, {n_out, n_in}, "weight"));
  }
  const Matrix& matrix() const { return matrix_; }

 private:
  static std::string path(DType type) {
    const std::string stem = std::string(SYNOD_SOURCE_DIR) + "/tests/data/quant/" + std::string(name(type));
    return std::filesystem::exists(stem + ".bin") ? stem + ".bin" : stem + ".imatrix.bin";
  }
  std::vector<std::byte> bytes_;
  Matrix matrix_;
};

TEST(CudaProducts, RecordedBlocksOfEveryType) {
  SYNOD_NEED_GPU();
  for (int i = 0; i <= static_cast<int>(DType::kQ2_0); ++i) {
    const auto type = static_cast<DType>(i);
    if (!is_block_type(type) || type == DType::kQ8_1 || type == DType::kQ8_K || !RecordedMatrix::exists(type))
      continue;
    const bool super = info(type).block_values == 256;
    const RecordedMatrix w(type, 301,
                           super ? 2816 : 2112 / info(type).block_values * info(type).block_values);
    const int64_t n_in = w.matrix().n_in;
    const F32 x({150, n_in}, normal_values(150 * n_in, 2));
    RefBackend ref;
    const Values want = linear(ref, w.matrix(), x, 0, 150);
    const Values all = linear(*gpu(), w.matrix(), x, 0, 150), few = linear(*gpu(), w.matrix(), x, 0, 20);
    const Values one = linear(*gpu(), w.matrix(), x, 7, 1);
    const double prefill = relative_error(all, want);
    const double decode = relative_error(few, Values(want.begin(), want.begin() + 20 * 301));
    const bool bits = same_bits(one, Values(few.begin() + 7 * 301, few.begin() + 8 * 301));
    const I32 ids({3}, {300, 0, 17});
    const auto rows = [&](Backend& be) {
      F32 out({3, n_in});
      be(Embed{.out = out, .ids = ids, .table = w.matrix()});
      be.join();
      return out.values();
    };
    const double embed = relative_error(rows(*gpu()), rows(ref));
    std::printf("  %-8s decode %.1e  prefill %.1e  embed %.1e  bits %s\n", std::string(name(type)).c_str(),
                decode, prefill, embed, bits ? "equal" : "DIFFER");
    EXPECT_LE(decode, kDecode) << name(type);
    EXPECT_LE(prefill, kPrefill) << name(type);
    EXPECT_LE(embed, 1e-6) << name(type);
    EXPECT_TRUE(bits) << name(type);
  }
}

TEST(CudaProducts, PlainRowsOfAnyWidth) {
  SYNOD_NEED_GPU();
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t width : {1, 7, 24, 40, 100}) {
      const StoredMatrix w(type, 33, width, 3);
      const F32 x({70, width}, normal_values(70 * width, 4));
      for (const int64_t n : {1, 70}) {
        expect_close("plain", 2e-5, [&](Backend& be) { return linear(be, w, x, 0, n); });
      }
    }
  }
}

TEST(CudaProducts, EmbeddingsOfEveryType) {
  SYNOD_NEED_GPU();
  for (const DType type : encodable_types()) {
    const StoredMatrix w(type, 50, 512, 5);
    const I32 ids({3}, {49, 0, 17});
    expect_close("embed " + std::string(name(type)), 1e-6, [&](Backend& be) {
      F32 out({3, 512});
      be(Embed{.out = out, .ids = ids, .table = w, .scale = 1.5F});
      be.join();
      return out.values();
    });
  }
}

TEST(CudaProducts, ProjectionsAndGroups) {
  SYNOD_NEED_GPU();
  const StoredMatrix a(DType::kQ8_0, 130, 512, 6), b(DType::kQ8_0, 70, 512, 7), c(DType::kF16, 40, 512, 8);
  const StoredMatrix grouped(DType::kQ8_0, 4 * 48, 256, 9), odd(DType::kQ8_0, 3 * 7, 256, 10);
  for (const int64_t n : {1, 3, 90}) {
    const F32 x({n, 512}, normal_values(n * 512, 11)), g({n, 4, 256}, normal_values(n * 1024, 12));
    const F32 h({n, 3, 256}, normal_values(n * 768, 13));
    expect_close("projections", kPrefill, [&](Backend& be) {
      F32 p({n, 130}), q({n, 70}), r({n, 40}), s({n, 4, 48}), t({n, 3, 7});
      be(Projections{.x = x, .parts = {{{p, a}, {q, b}, {r, c}}}, .n_parts = 3});
      be(GroupedLinear{.out = s, .x = g, .weight = grouped});
      be(GroupedLinear{.out = t, .x = h, .weight = odd});
      be.join();
      Values all;
      for (const F32* v : {&p, &q, &r, &s, &t}) all.insert(all.end(), v->values().begin(), v->values().end());
      return all;
    });
  }
}

// A dense feed-forward: one launch for both products and their gate, which writes what the third one reads.
TEST(CudaProducts, GatedPairs) {
  SYNOD_NEED_GPU();
  const int64_t d = 512, d_ff = 704;
  for (const DType type : {DType::kQ8_0, DType::kQ5_0, DType::kMXFP4}) {
    if (!RecordedMatrix::exists(type)) continue;
    const RecordedMatrix gate(type, d_ff, d), up(type, d_ff + 32, d), down(DType::kQ8_0, d, d_ff);
    const F32 x({40, d}, normal_values(40 * d, 21));
    const auto run = [&](Backend& be, int64_t first, int64_t n) {
      F32 a({n, d_ff}), b({n, d_ff}), c({n, d});
      const Tensor rows = x.tensor().slice(0, first, first + n);
      be(Linear{.out = a, .x = rows, .weight = gate.matrix()});
      be(Linear{.out = b, .x = rows, .weight = up.matrix().rows(32, d_ff + 32)});
      be(Glu{.out = a, .gate = a, .up = b, .act = Glu::Act::kGeluTanh, .limit = 2.0F});
      be(Linear{.out = c, .x = a, .weight = down.matrix()});
      be.join();
      Values all = a.values();
      for (const F32* v : {&b, &c}) all.insert(all.end(), v->values().begin(), v->values().end());
      return all;
    };
    for (const int64_t n : {1, 3, 40}) {
      expect_close("gated pair " + std::string(name(type)), kDecode,
                   [&](Backend& be) { return run(be, 0, n); });
    }
    const Values one = run(*gpu(), 7, 1), many = run(*gpu(), 0, 40);
    EXPECT_TRUE(same_bits(Values(one.begin(), one.begin() + d_ff),
                          Values(many.begin() + 7 * d_ff, many.begin() + 8 * d_ff)))
        << name(type);
    EXPECT_TRUE(same_bits(Values(one.end() - d, one.end()), Values(many.end() - 33 * d, many.end() - 32 * d)))
        << name(type);
  }
}

struct Experts {
  std::vector<StoredMatrix> stored;
  std::unique_ptr<RecordedMatrix> recorded;
  std::vector<Matrix> matrices;
  Experts(DType type, int64_t n, int64_t n_out, int64_t n_in, uint32_t seed) {
    if (is_block_type(type)) {
      recorded = std::make_unique<RecordedMatrix>(type, n * n_out, n_in);
      for (int64_t e = 0; e < n; ++e) matrices.push_back(recorded->matrix().rows(e * n_out, (e + 1) * n_out));
      return;
    }
    for (int64_t e = 0; e < n; ++e) {
      stored.emplace_back(type, n_out, n_in, seed + static_cast<uint32_t>(e), 0.05F);
    }
    for (const StoredMatrix& m : stored) matrices.push_back(m);
  }
};

TEST(CudaProducts, Experts) {
  SYNOD_NEED_GPU();
  const int64_t n_experts = 12, k = 3, d = 256, d_expert = 512;
  for (const DType type : {DType::kQ8_0, DType::kQ5_0, DType::kQ4_K, DType::kIQ2_XXS, DType::kQ2_K,
                           DType::kF32, DType::kMXFP4, DType::kBF16, DType::kIQ3_S}) {
    if (is_block_type(type) && !RecordedMatrix::exists(type)) continue;
    const Experts gate(type, n_experts, d_expert, d, 100), up(type, n_experts, d_expert, d, 200);
    const Experts other(DType::kF16, n_experts, d_expert, d, 250), down(type, n_experts, d, d_expert, 300);
    for (const int64_t n : {1, 3, 40, 100}) {
      const F32 x({n, d}, normal_values(n * d, 14)), shared({n, d}, normal_values(n * d, 15));
      std::vector<int32_t> chosen;
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t s = 0; s < k; ++s)
          chosen.push_back(static_cast<int32_t>((t * 5 % 4) + 3 * s + (t % 7 == 0 ? 1 : 0)));
      }
      const I32 ids({n, k}, chosen);
      const F32 weights({n, k}, normal_values(n * k, 16));
      for (const bool round : {false, true}) {
        for (const bool mixed : {false, true}) {
          expect_close("expert ffn " + std::string(name(type)) + " n " + std::to_string(n) +
                           (round ? " rounded" : "") + (mixed ? " mixed" : ""),
                       round ? 2e-2 : kPrefill, [&](Backend& be) {
                         F32 out({n, d});
                         be(ExpertFfn{.out = out,
                                      .x = x,
                                      .ids = ids,
                                      .weights = weights,
                                      .shared = mixed ? Tensor{} : shared.tensor(),
                                      .gate = gate.matrices,
                                      .up = mixed ? other.matrices : up.matrices,
                                      .down = down.matrices,
                                      .act = mixed ? Glu::Act::kGeluTanh : Glu::Act::kSilu,
                                      .limit = round ? 7.0F : 0.0F,
                                      .round_hidden = round});
                         be.join();
                         return out.values();
                       });
        }
      }
      expect_close("expert linear " + std::string(name(type)), kPrefill, [&](Backend& be) {
        F32 a({n, k, d_expert}), b({n, k, d}), c({n, d});
        be(ExpertLinear{.out = a, .x = x, .ids = ids, .experts = gate.matrices});
        be(ExpertLinear{.out = b, .x = a, .ids = ids, .experts = down.matrices});
        be(CombineExperts{.out = c, .x = b, .weights = weights, .shared = shared});
        be.join();
        return c.values();
      });
    }
  }
}

// The same step three times: launched, captured, replayed.
TEST(CudaProducts, RepeatedStepsReplayTheSameBits) {
  SYNOD_NEED_GPU();
  const StoredMatrix w(DType::kQ8_0, 300, 512, 17);
  cuda::WeightCollector collector;
  collector(Linear{.out = Tensor::contiguous(nullptr, DType::kF32, {1, 300}),
                   .x = Tensor::contiguous(nullptr, DType::kF32, {1, 512}),
                   .weight = w});
  gpu()->place_all(collector.weights());
  Values first;
  for (int i = 0; i < 4; ++i) {
    const F32 x({2, 512}, normal_values(1024, i < 3 ? 18 : 19));
    const Values got = linear(*gpu(), w, x, 0, 2);
    if (i == 0) first = got;
    EXPECT_EQ(same_bits(got, first), i < 3) << i;  // other input, other output: nothing is baked in
  }
  gpu()->place_all({});
}

}  // namespace
}  // namespace synod::testing
