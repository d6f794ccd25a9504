// Products and experts of the CPU backend: against the reference within the error of quantized activations,
// and bit for bit over instruction sets, threads and cuts of the tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "base/half.h"
#include "cpu/cpu_backend.h"
#include "ops/lowering.h"
#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::I32;
using testing::normal_values;
using testing::StoredMatrix;
using Values = std::vector<float>;

enum class Stored { kF32, kBf16, kQ8_0, kQ4_K, kMxfp4, kMlx4, kFp8 };
constexpr Stored kAllStored[] = {Stored::kF32,   Stored::kBf16, Stored::kQ8_0, Stored::kQ4_K,
                                 Stored::kMxfp4, Stored::kMlx4, Stored::kFp8};

void put_half(std::vector<std::byte>& bytes, size_t at, float value) {
  const uint16_t half = f32_to_f16(value);
  std::memcpy(bytes.data() + at, &half, sizeof(half));
}

// A matrix of random codes with scales that make its values about as large as 1.
class AnyMatrix {
 public:
  AnyMatrix(Stored stored, int64_t n_out, int64_t n_in, uint32_t seed) : random_(seed) {
    m_.n_out = n_out;
    m_.n_in = n_in;
    m_.name = "weight";
    if (stored == Stored::kF32) encoded(DType::kF32);
    if (stored == Stored::kBf16) encoded(DType::kBF16);
    if (stored == Stored::kQ8_0) encoded(DType::kQ8_0);
    if (stored == Stored::kQ4_K) {
      blocks(DType::kQ4_K, [&](size_t at) {
        put_half(codes_, at, 0.003F);
        put_half(codes_, at + 2, 0.02F);
      });
    }
    if (stored == Stored::kMxfp4) {
      blocks(DType::kMXFP4, [&](size_t at) { codes_[at] = static_cast<std::byte>(124 + random_() % 4); });
    }
    if (stored == Stored::kMlx4) mlx();
    if (stored == Stored::kFp8) fp8();
  }
  AnyMatrix(AnyMatrix&&) = default;
  const Matrix& matrix() const { return m_; }

 private:
  void encoded(DType type) {
    const Values v = normal_values(m_.n_out * m_.n_in, random_());
    codes_.resize(static_cast<size_t>(m_.n_out * row_bytes(type, m_.n_in)));
    encode(type, v.data(), m_.n_out * m_.n_in, codes_.data());
    m_ = matrix_of(Tensor::contiguous(codes_.data(), type, {m_.n_out, m_.n_in}, "weight"));
  }
  void blocks(DType type, const std::function<void(size_t)>& set_scales) {
    m_.storage = Storage::kBlock;
    m_.type = type;
    m_.row_stride = row_bytes(type, m_.n_in);
    fill(codes_, m_.n_out * m_.row_stride);
    for (size_t at = 0; at < codes_.size(); at += static_cast<size_t>(info(type).block_bytes)) set_scales(at);
    m_.data = codes_.data();
  }
  void mlx() {
    m_.storage = Storage::kMlxAffine;
    m_.type = DType::kU8;
    m_.bits = 4;
    m_.group = 64;
    m_.row_stride = m_.n_in / 2;
    fill(codes_, m_.n_out * m_.row_stride);
    scale_values(scales_, DType::kBF16, m_.n_in / m_.group, 0.1F);
    biases_.resize(scales_.size());
    for (size_t i = 0; i < biases_.size(); i += 2) {
      const uint16_t bias = f32_to_bf16(-0.75F);
      std::memcpy(biases_.data() + i, &bias, 2);
    }
    m_.biases = biases_.data();
    m_.data = codes_.data();
  }
  void fp8() {
    m_.storage = Storage::kFp8Block;
    m_.type = DType::kF8E4M3;
    m_.group = m_.tile_out = 32;
    m_.row_stride = m_.n_in;
    fill(codes_, m_.n_out * m_.n_in);
    for (std::byte& c : codes_) c &= std::byte{0xbf};  // |value| < 2
    scale_values(scales_, DType::kF32, (m_.n_in + 31) / 32, 0.7F);
    m_.data = codes_.data();
  }
  void fill(std::vector<std::byte>& bytes, int64_t n) {
    bytes.resize(static_cast<size_t>(n));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random_());
  }
  void scale_values(std::vector<std::byte>& out, DType type, int64_t per_row, float value) {
    const Values v(static_cast<size_t>(m_.n_out * per_row), value);
    out.resize(static_cast<size_t>(row_bytes(type, m_.n_out * per_row)));
    encode(type, v.data(), m_.n_out * per_row, out.data());
    m_.scales = out.data();
    m_.scale_type = type;
    m_.scale_stride = row_bytes(type, per_row);
  }

  std::mt19937 random_;
  std::vector<std::byte> codes_, scales_, biases_;
  Matrix m_;
};

std::unique_ptr<CpuBackend> make_cpu(std::string_view isa, int n_threads, int64_t moe_threshold = 0) {
  return std::make_unique<CpuBackend>(
      std::make_unique<RefBackend>(),
      CpuOptions{.n_threads = n_threads, .isa = isa, .moe_threshold = moe_threshold});
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Runs on every table with 1, 2 and 3 threads; all must agree.
Values same_everywhere(const std::function<Values(Backend&)>& compute) {
  Values first;
  for (const cpu::KernelTable* table : cpu::available_tables()) {
    for (const int n_threads : {1, 2, 3}) {
      const auto be = make_cpu(table->name, n_threads);
      const Values got = compute(*be);
      EXPECT_FALSE(got.empty());
      if (first.empty()) first = got;
      EXPECT_TRUE(same_bits(got, first)) << table->name << " with " << n_threads << " threads";
      EXPECT_TRUE(same_bits(compute(*be), first)) << "the second call";
    }
  }
  return first;
}

// |error| of one output: half a step of each quantized activation, and f32 sums.
double tolerance(const Matrix& m, int64_t row, const float* x) {
  Values w(static_cast<size_t>(m.n_in));
  decode_row(m, row, w.data());
  const cpu::ActivationKind kind = cpu::activation_kind(m);
  const int64_t block = kind == cpu::ActivationKind::kBlocks32 ? 32 : 256;
  double bound = 0.0;
  for (int64_t b = 0; b < m.n_in; b += block) {
    double largest = 0.0, weights = 0.0, products = 0.0;
    for (int64_t i = b; i < std::min(m.n_in, b + block); ++i) {
      const double weight = std::abs(w[static_cast<size_t>(i)]);
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
      weights += weight;
      products += weight * std::abs(x[i]);
    }
    bound += products * static_cast<double>(m.n_in) * 0x1p-24;
    // Values of types with mins are differences: their terms are larger than the values.
    if (kind != cpu::ActivationKind::kFloat)
      bound += 1.001 * weights * largest / 127.0 / 2.0 + 1e-4 * largest;
  }
  return bound + 1e-30;
}

void expect_within(const Matrix& m, const Tensor& x, const Values& got, const Values& want) {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t o = 0; o < m.n_out; ++o) {
      const auto at = static_cast<size_t>(t * m.n_out + o);
      ASSERT_NEAR(got[at], want[at], tolerance(m, o, x.row_as<const float>(t)))
          << "token " << t << " row " << o;
    }
  }
}

Values linear(Backend& be, const Tensor& x, const Matrix& m) {
  F32 out({x.dim(0), m.n_out});
  be(Linear{.out = out, .x = x, .weight = m});
  return out.values();
}

class EveryStored : public ::testing::TestWithParam<Stored> {};
INSTANTIATE_TEST_SUITE_P(Cpu, EveryStored, ::testing::ValuesIn(kAllStored));

TEST_P(EveryStored, LinearEqualsTheReferenceWithinTheErrorOfItsActivations) {
  for (const auto& [n_out, n_tokens] : {std::pair<int64_t, int64_t>{1, 1}, {67, 1}, {67, 21}, {200, 3}}) {
    const AnyMatrix any(GetParam(), n_out, 512, 3);
    const F32 x({n_tokens, 512}, normal_values(n_tokens * 512, 4));
    const Values got = same_everywhere([&](Backend& be) { return linear(be, x, any.matrix()); });
    RefBackend ref;
    expect_within(any.matrix(), x, got, linear(ref, x, any.matrix()));
  }
}

TEST_P(EveryStored, TokensGiveTheSameBitsAloneAndTogether) {
  constexpr int64_t kTokens = 600;  // more than a panel
  const AnyMatrix any(GetParam(), 40, 256, 5);
  const F32 x({kTokens, 256}, normal_values(kTokens * 256, 6));
  const auto be = make_cpu("", 2);
  const Values all = linear(*be, x, any.matrix());
  for (const int64_t chunk : {1, 7, 513}) {
    Values cut;
    for (int64_t t = 0; t < kTokens; t += chunk) {
      const Values part = linear(*be, x.tensor().slice(0, t, std::min(kTokens, t + chunk)), any.matrix());
      cut.insert(cut.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(cut, all)) << chunk;
  }
}

TEST(CpuLinear, ProjectionsOfMixedTypesEqualOneLinearEach) {
  const AnyMatrix a(Stored::kQ4_K, 100, 512, 1), b(Stored::kQ8_0, 33, 512, 2), c(Stored::kF32, 5, 512, 3),
      d(Stored::kQ8_0, 64, 512, 4);
  const F32 x({9, 512}, normal_values(9 * 512, 5));
  same_everywhere([&](Backend& be) {
    F32 oa({9, 100}), ob({9, 33}), oc({9, 5}), od({9, 64});
    be(Projections{.x = x,
                   .parts = {{{oa, a.matrix()}, {ob, b.matrix()}, {oc, c.matrix()}, {od, d.matrix()}}},
                   .n_parts = 4});
    EXPECT_TRUE(same_bits(oa.values(), linear(be, x, a.matrix())));
    EXPECT_TRUE(same_bits(ob.values(), linear(be, x, b.matrix())));
    EXPECT_TRUE(same_bits(oc.values(), linear(be, x, c.matrix())));
    EXPECT_TRUE(same_bits(od.values(), linear(be, x, d.matrix())));
    return od.values();
  });
}

TEST(CpuLinear, StridedOperandsAndGroups) {
  constexpr int64_t kTokens = 6, kGroups = 3, kIn = 256, kOut = 20;
  const AnyMatrix any(Stored::kQ8_0, kGroups * kOut, kIn, 7);
  const F32 x({kTokens, 2 * kGroups, kIn}, normal_values(kTokens * 2 * kGroups * kIn, 8));
  const Tensor slice = x.tensor().slice(1, 2, 2 + kGroups);
  same_everywhere([&](Backend& be) {
    F32 out({kTokens, kGroups + 1, kOut}, Values(kTokens * (kGroups + 1) * kOut, 9.0F)),
        want({kTokens, kGroups, kOut});
    const GroupedLinear op{.out = out.tensor().slice(1, 0, kGroups), .x = slice, .weight = any.matrix()};
    be(op);
    GroupedLinear lowered = op;
    lowered.out = want;
    lower(lowered, be);
    for (int64_t t = 0; t < kTokens; ++t) {
      EXPECT_EQ(std::memcmp(&out[t * (kGroups + 1) * kOut], &want[t * kGroups * kOut], kGroups * kOut * 4),
                0);
      EXPECT_EQ(out[(t * (kGroups + 1) + kGroups) * kOut], 9.0F);
    }
    return out.values();
  });
}

TEST(CpuLinear, EmbedReadsRowsAndReportsABadId) {
  const AnyMatrix any(Stored::kQ8_0, 30, 64, 9);
  I32 ids({20}, {3, 29, 0, 7});
  const auto embed = [&](Backend& be) {
    F32 out({20, 64});
    be(Embed{.out = out, .ids = ids, .table = any.matrix(), .scale = 3.0F});
    return out.values();
  };
  RefBackend ref;
  EXPECT_TRUE(same_bits(same_everywhere(embed), embed(ref)));
  ids[1] = 30;
  const auto be = make_cpu("", 2);
  be->begin({.layer = -1, .part = "embedding"});
  const Values out = embed(*be);
  be->end();
  EXPECT_TRUE(same_bits(Values(out.begin() + 64, out.begin() + 128), Values(64, 0.0F)));
  const auto report = be->take_status();
  EXPECT_EQ(report.bits, static_cast<uint32_t>(Status::kBadId));
  EXPECT_EQ(report.where.part, "embedding");
  EXPECT_EQ(be->take_status().bits, 0U);
}

TEST(CpuBackend, TheFirstStatusNamesThePlaceEvenWhenTheFallbackRaisedIt) {
  const auto be = make_cpu("", 1);
  const F32 bad({1, 2}, {NAN, NAN});
  I32 out({1});
  be->begin({.layer = 4, .part = "head"});
  (*be)(ArgMax{.out = out, .x = bad});
  be->end();
  const AnyMatrix any(Stored::kF32, 3, 4, 1);
  const I32 ids({1}, {-1});
  F32 row({1, 4});
  be->begin({.layer = 5, .part = "embedding"});
  (*be)(Embed{.out = row, .ids = ids, .table = any.matrix()});
  be->end();
  const auto report = be->take_status();
  EXPECT_EQ(report.bits, static_cast<uint32_t>(Status::kBadId) | static_cast<uint32_t>(Status::kNonFinite));
  EXPECT_EQ(report.where.layer, 4);
}

class Experts {
 public:
  static constexpr int64_t kExperts = 6, kModel = 256, kHidden = 256;
  Experts(Stored gate_type, Stored up_type, Stored down_type) {
    for (uint32_t e = 0; e < kExperts; ++e) {
      add(gate_type, kHidden, kModel, 3 * e, gate), add(up_type, kHidden, kModel, 3 * e + 1, up);
      add(down_type, kModel, kHidden, 3 * e + 2, down);
    }
  }
  std::vector<Matrix> gate, up, down;

 private:
  void add(Stored stored, int64_t n_out, int64_t n_in, uint32_t seed, std::vector<Matrix>& to) {
    owned_.emplace_back(stored, n_out, n_in, seed);
    to.push_back(owned_.back().matrix());  // a moved vector keeps its memory
  }
  std::vector<AnyMatrix> owned_;
};

// Uneven routing: expert 2 takes part for most tokens, expert 5 for none.
void route(int64_t n_tokens, I32& ids, F32& weights) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    ids[2 * t] = t % 3 == 0 ? 0 : 2;
    ids[2 * t + 1] = t % 5 == 0 ? 4 : 3;
    weights[2 * t] = 0.25F + 0.01F * static_cast<float>(t % 7);
    weights[2 * t + 1] = 0.6F;
  }
}

struct FfnCase {
  int64_t n_tokens = 0;
  bool round_hidden = false;
  float limit = 0.0F;
  Glu::Act act = Glu::Act::kSilu;
};

class ExpertCall {
 public:
  ExpertCall(const Experts& experts, const FfnCase& c)
      : x({c.n_tokens, Experts::kModel}, normal_values(c.n_tokens * Experts::kModel, 40)),
        shared({c.n_tokens, Experts::kModel}, normal_values(c.n_tokens * Experts::kModel, 41)),
        weights({c.n_tokens, 2}),
        ids({c.n_tokens, 2}) {
    route(c.n_tokens, ids, weights);
    op = {.x = x,
          .ids = ids,
          .weights = weights,
          .shared = shared,
          .gate = experts.gate,
          .up = experts.up,
          .down = experts.down,
          .act = c.act,
          .limit = c.limit,
          .round_hidden = c.round_hidden};
  }
  Values run(Backend& be, int64_t begin, int64_t end) const {
    F32 out({end - begin, Experts::kModel});
    be(part(begin, end, out));
    return out.values();
  }
  Values run(Backend& be) const { return run(be, 0, op.ids.dim(0)); }
  Values lowered(Backend& be) const {
    F32 out({op.ids.dim(0), Experts::kModel});
    lower(part(0, op.ids.dim(0), out), be);
    return out.values();
  }
  F32 x, shared, weights;
  I32 ids;

 private:
  ExpertFfn part(int64_t begin, int64_t end, const Tensor& out) const {
    ExpertFfn p = op;
    p.out = out;
    for (Tensor* t : {&p.x, &p.ids, &p.weights, &p.shared}) *t = t->slice(0, begin, end);
    return p;
  }
  ExpertFfn op;
};

TEST_P(EveryStored, ExpertFfnEqualsItsLoweringBitForBit) {
  const Experts experts(GetParam(), GetParam(), GetParam());
  for (const FfnCase& c : {FfnCase{1}, FfnCase{3, true, 4.0F}, FfnCase{40, false, 0.0F, Glu::Act::kGeluTanh},
                           FfnCase{40, true}}) {
    const ExpertCall call(experts, c);
    same_everywhere([&](Backend& be) {
      const Values fused = call.run(be);
      EXPECT_TRUE(same_bits(fused, call.lowered(be))) << c.n_tokens;
      return fused;
    });
  }
}

TEST_P(EveryStored, ExpertFfnDoesNotDependOnTheCutNorOnTheRoute) {
  const Experts experts(GetParam(), Stored::kQ8_0, Stored::kQ4_K);
  constexpr int64_t kTokens = 30;
  const ExpertCall call(experts, {kTokens, false, 3.0F});
  const auto be = make_cpu("", 2);
  const Values all = call.run(*be);
  for (const int64_t chunk : {1, 4, 29}) {
    Values cut;
    for (int64_t t = 0; t < kTokens; t += chunk) {
      const Values part = call.run(*be, t, std::min(kTokens, t + chunk));
      cut.insert(cut.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(cut, all)) << chunk;
  }
  for (const int64_t threshold : {1, 1000}) {
    EXPECT_TRUE(same_bits(call.run(*make_cpu("", 2, threshold)), all)) << threshold;
  }
}

double nmse(const Values& got, const Values& want) {
  double error = 0.0, power = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    power += static_cast<double>(want[i]) * want[i];
  }
  return error / power;
}

TEST_P(EveryStored, ExpertFfnIsCloseToTheReference) {
  const Experts experts(GetParam(), GetParam(), GetParam());
  // Each quantized activation has an error of at most 1/254 of its block's maximum, uniformly: about
  // (3.5 / 254)^2 / 3 of the power of normal values, met by x in two factors and by hidden once, where single
  // large products make the steps of a block of 256 coarser.
  const bool exact = GetParam() == Stored::kF32 || GetParam() == Stored::kBf16 ||
                     GetParam() == Stored::kMlx4 || GetParam() == Stored::kFp8;
  const ExpertCall call(experts, {40});
  RefBackend ref;
  const Values got = call.run(*make_cpu("", 2)), want = call.run(ref);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LT(nmse(got, want), exact ? 1e-12 : 2e-3);
}

TEST(CpuExperts, AnIdOutOfRangeReadsNothingAndIsReported) {
  const Experts experts(Stored::kQ8_0, Stored::kQ8_0, Stored::kQ8_0);
  ExpertCall call(experts, {4});
  const auto be = make_cpu("", 2);
  const Values before = call.run(*be);
  EXPECT_EQ(be->take_status().bits, 0U);
  call.ids[0] = Experts::kExperts;
  call.ids[7] = -1;
  const Values after = call.run(*be);
  EXPECT_EQ(be->take_status().bits, static_cast<uint32_t>(Status::kBadId));
  const auto token = [](const Values& v, int64_t t) {
    return Values(v.begin() + t * Experts::kModel, v.begin() + (t + 1) * Experts::kModel);
  };
  EXPECT_FALSE(same_bits(token(after, 0), token(before, 0)));
  EXPECT_TRUE(same_bits(token(after, 1), token(before, 1)));
  for (const float v : after) ASSERT_TRUE(std::isfinite(v));
  call.weights[0] = 0.0F;  // a slot without an expert is one without weight
  EXPECT_TRUE(same_bits(token(call.run(*be), 0), token(after, 0)));

  F32 out({4, 2, Experts::kHidden}, Values(4 * 2 * Experts::kHidden, 9.0F));
  (*be)(ExpertLinear{.out = out, .x = call.x, .ids = call.ids, .experts = experts.gate});
  EXPECT_EQ(out[0], 0.0F);
  EXPECT_NE(out[Experts::kHidden], 9.0F);
  EXPECT_EQ(out[7 * Experts::kHidden], 0.0F);
}

TEST_P(EveryStored, ExpertLinearIsOneLinearPerSlot) {
  const Experts experts(GetParam(), GetParam(), GetParam());
  constexpr int64_t kTokens = 5;
  const ExpertCall call(experts, {kTokens});
  const F32 slots({kTokens, 2, Experts::kModel}, normal_values(kTokens * 2 * Experts::kModel, 50));
  same_everywhere([&](Backend& be) {
    F32 out({kTokens, 2, Experts::kHidden});
    for (const bool slotted : {false, true}) {
      be(ExpertLinear{.out = out, .x = slotted ? slots : call.x, .ids = call.ids, .experts = experts.gate});
      for (int64_t slot = 0; slot < 2 * kTokens; ++slot) {
        const Tensor x = slotted
                             ? slots.tensor().reshape({2 * kTokens, Experts::kModel}).slice(0, slot, slot + 1)
                             : call.x.tensor().slice(0, slot / 2, slot / 2 + 1);
        const Values want = linear(be, x, experts.gate[static_cast<size_t>(call.ids[slot])]);
        EXPECT_EQ(std::memcmp(&out[slot * Experts::kHidden], want.data(), want.size() * 4), 0) << slot;
      }
    }
    return out.values();
  });
}

TEST(CpuExperts, CombineWeighsSlotsAndAddsTheSharedExpert) {
  constexpr int64_t kTokens = 3, kSlots = 4, kWidth = 2100;  // more than one item per token
  const F32 x({kTokens, kSlots, kWidth}, normal_values(kTokens * kSlots * kWidth, 1)),
      weights({kTokens, kSlots}, normal_values(kTokens * kSlots, 2)),
      shared({kTokens, kWidth}, normal_values(kTokens * kWidth, 3));
  for (const bool weighted : {false, true}) {
    for (const bool with_shared : {false, true}) {
      const auto combine = [&](Backend& be) {
        F32 out({kTokens, kWidth});
        be(CombineExperts{.out = out,
                          .x = x,
                          .weights = weighted ? weights.tensor() : Tensor{},
                          .shared = with_shared ? shared.tensor() : Tensor{}});
        return out.values();
      };
      RefBackend ref;
      const Values got = same_everywhere(combine), want = combine(ref);
      // Five terms of normal values: magnitudes below 25 after each of five f32 steps.
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 5 * 25 * 0x1p-24);
    }
  }
}

}  // namespace
}  // namespace synod
