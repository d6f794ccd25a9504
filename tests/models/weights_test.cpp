// Binding of made-up checkpoints: every storage against values computed here, and what is refused.
#include "models/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "checkpoint_builder.h"

namespace synod {
namespace {

using Kind = WeightSpec::Kind;
using Floats = std::vector<float>;

WeightSpec matrix_spec(std::string role, int64_t n_out, int64_t n_in, std::vector<Candidate> candidates) {
  return {.role = std::move(role),
          .kind = Kind::kMatrix,
          .shape = {n_out, n_in},
          .candidates = std::move(candidates)};
}

WeightSpec experts_spec(std::string role, int64_t n, int64_t n_out, int64_t n_in,
                        std::vector<Candidate> candidates) {
  return {.role = std::move(role),
          .kind = Kind::kExperts,
          .shape = {n, n_out, n_in},
          .candidates = std::move(candidates)};
}

Candidate as(std::string name, int dialect = 0, int part = 0, int n_parts = 1) {
  return {.dialect = dialect, .name = std::move(name), .part = part, .n_parts = n_parts};
}

DialectInfo toy_dialects() {
  return {.names = {"toy names", "other names"}, .skip_reason = [](std::string_view name) -> const char* {
            return name.starts_with("vision.") ? "vision tower" : nullptr;
          }};
}

Weights bind(const Checkpoint& checkpoint, const std::vector<WeightSpec>& specs) {
  return Weights::bind(checkpoint, specs, toy_dialects());
}

Floats decoded(const Matrix& m) {
  Floats values(static_cast<size_t>(m.n_out * m.n_in));
  for (int64_t row = 0; row < m.n_out; ++row) decode_row(m, row, values.data() + row * m.n_in);
  return values;
}

Floats slice(const Floats& values, size_t begin, size_t count) {
  return {values.begin() + static_cast<int64_t>(begin), values.begin() + static_cast<int64_t>(begin + count)};
}

// The message of the kBadFile error that binding gives; empty when it succeeds.
std::string refusal(CheckpointBuilder& builder, const std::vector<WeightSpec>& specs) {
  const Checkpoint checkpoint = builder.open();
  try {
    bind(checkpoint, specs);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
    return error.what();
  }
  return "";
}

void expect_refusal(CheckpointBuilder& builder, const std::vector<WeightSpec>& specs,
                    const std::vector<std::string>& parts) {
  const std::string message = refusal(builder, specs);
  EXPECT_FALSE(message.empty()) << "was accepted";
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

// Own arithmetic for the small floats, from their definitions.
float e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? mantissa * std::exp2(-9) : (1 + mantissa / 8.0) * std::exp2(exponent - 7);
  return static_cast<float>(code & 0x80 ? -magnitude : magnitude);
}

float e2m1(int code) {
  const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}

int nibble(const std::vector<uint8_t>& bytes, size_t i) { return bytes[i / 2] >> (i % 2 * 4) & 15; }

std::string json_with(const std::string& member) { return R"({"model_type": "toy", )" + member + "}"; }

TEST(Weights, BindsPlainTensorsOfEveryKind) {
  CheckpointBuilder builder;
  const Floats w = builder.add_numbers("w.weight", {3, 8});
  builder.add_bf16("norm.weight", {4}, {1, -2, 3, 0.5F});
  builder.add_f32("scalar", {1, 1}, {2.5F});
  const Floats table = builder.add_numbers("ape", {2, 3});
  builder.add<int64_t>("ids", DType::kI64, {2, 2}, {0, 3, -1, 2147483647});
  const Checkpoint checkpoint = builder.open();
  const Weights weights =
      bind(checkpoint, {matrix_spec("a", 3, 8, {as("w.weight")}),
                        {.role = "b", .kind = Kind::kVector, .shape = {4}, .candidates = {as("norm.weight")}},
                        {.role = "c", .kind = Kind::kVector, .shape = {1}, .candidates = {as("scalar")}},
                        {.role = "d", .kind = Kind::kValues, .shape = {2, 3}, .candidates = {as("ape")}},
                        {.role = "e", .kind = Kind::kIds, .shape = {2, 2}, .candidates = {as("ids")}},
                        {.role = "f",
                         .kind = Kind::kMatrix,
                         .shape = {9, 9},
                         .required = false,
                         .candidates = {as("absent.weight")}}});
  EXPECT_EQ(decoded(weights.matrix("a")), w);
  EXPECT_EQ(weights.vector("b").as<float>()[1], -2.0F);
  EXPECT_EQ(weights.vector("b").dim(0), 4);
  EXPECT_EQ(weights.vector("c").as<float>()[0], 2.5F);
  EXPECT_EQ(weights.values("d").row_as<float>(1)[2], table[5]);
  EXPECT_EQ(weights.ids("e").as<int32_t>()[2], -1);
  EXPECT_EQ(weights.ids("e").as<int32_t>()[3], 2147483647);
  EXPECT_FALSE(weights.has("f"));
  EXPECT_FALSE(weights.matrix("f"));
  EXPECT_TRUE(weights.has("a"));
  EXPECT_EQ(weights.dialect(), "toy names");
  EXPECT_EQ(weights.bytes(), 3 * 8 * 4 + 4 * 2 + 4 + 6 * 4 + 4 * 8);
}

TEST(Weights, SlicesFusedAndStackedMatricesAndReadsSeparateOnes) {
  for (const bool stacked : {true, false}) {
    for (const bool fused : {true, false}) {
      CheckpointBuilder builder;
      const int64_t n = 3, rows = 4, cols = 8;
      Floats gate, up;  // all experts end to end
      const auto add = [&](const std::string& name, const CheckpointBuilder::Shape& shape) {
        return builder.add_numbers(name, shape);
      };
      const auto append = [](Floats& to, const Floats& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      const size_t half = static_cast<size_t>(rows * cols);
      if (stacked && fused) {
        const Floats all = add("x.gate_up", {n, 2 * rows, cols});
        for (size_t e = 0; e < 3; ++e) {
          append(gate, slice(all, e * 2 * half, half));
          append(up, slice(all, e * 2 * half + half, half));
        }
      } else if (stacked) {
        gate = add("x.gate", {n, rows, cols});
        up = add("x.up", {n, rows, cols});
      } else {
        for (int e = 0; e < n; ++e) {
          const std::string base = "x." + std::to_string(e);
          if (fused) {
            const Floats both = add(base + ".gate_up.weight", {2 * rows, cols});
            append(gate, slice(both, 0, half));
            append(up, slice(both, half, half));
          } else {
            append(gate, add(base + ".gate.weight", {rows, cols}));
            append(up, add(base + ".up.weight", {rows, cols}));
          }
        }
      }
      const auto candidates = [&](int part, const std::string& own) {
        return std::vector<Candidate>{as("x.gate_up", 0, part, 2), as("x." + own),
                                      as("x.{e}.gate_up.weight", 0, part, 2), as("x.{e}." + own + ".weight")};
      };
      const Checkpoint checkpoint = builder.open();
      const Weights weights = bind(checkpoint, {experts_spec("gate", n, rows, cols, candidates(0, "gate")),
                                                experts_spec("up", n, rows, cols, candidates(1, "up"))});
      for (size_t e = 0; e < 3; ++e) {
        EXPECT_EQ(decoded(weights.experts("gate")[e]), slice(gate, e * half, half)) << stacked << fused << e;
        EXPECT_EQ(decoded(weights.experts("up")[e]), slice(up, e * half, half)) << stacked << fused << e;
      }
      EXPECT_EQ(weights.bytes(), 2 * n * rows * cols * 4);
      EXPECT_EQ(weights.bytes_per_token(1), 2 * rows * cols * 4);
    }
  }
}

// FP8 tiles: sizes that do not divide the matrix, both spellings of the scale, e8m0 and float scales.
TEST(Weights, ReadsFp8BlocksWithPartialTiles) {
  const int64_t n_out = 10, n_in = 12, tile_out = 4, tile_in = 8;
  for (const bool dotted : {false, true}) {
    CheckpointBuilder builder(
        json_with(R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 8]})"));
    const auto codes = builder.random_bytes(static_cast<size_t>(n_out * n_in), 0, 0x7e);
    builder.add_bytes("x.weight", DType::kF8E4M3, {n_out, n_in}, codes);
    const std::vector<uint8_t> exponents = {120, 127, 0, 130, 126, 128};  // [3, 2]
    Floats scales;
    for (const uint8_t e : exponents) scales.push_back(std::exp2(static_cast<float>(e) - 127));
    if (dotted) {
      builder.add_bytes("x.scale", DType::kF8E8M0, {3, 2}, exponents);
    } else {
      builder.add_f32("x.weight_scale_inv", {3, 2}, scales);
    }
    const Checkpoint checkpoint = builder.open();
    const Weights weights = bind(checkpoint, {matrix_spec("x", n_out, n_in, {as("x.weight")})});
    const Floats got = decoded(weights.matrix("x"));
    for (int64_t i = 0; i < n_out * n_in; ++i) {
      const int64_t row = i / n_in, column = i % n_in;
      const float scale = scales[static_cast<size_t>(row / tile_out * 2 + column / tile_in)];
      EXPECT_EQ(got[static_cast<size_t>(i)], e4m3(codes[static_cast<size_t>(i)]) * scale)
          << row << "," << column;
    }
    EXPECT_EQ(weights.totals()[0].type, "fp8 4x8");
  }
}

TEST(Weights, ReadsFp8WithOneScalePerRowOrPerMatrix) {
  for (const bool per_row : {true, false}) {
    CheckpointBuilder builder;
    const auto codes = builder.random_bytes(5 * 7, 0x80, 0xfe);
    builder.add_bytes("x.weight", DType::kF8E4M3, {5, 7}, codes);
    const Floats scales = per_row ? Floats{1, 0.5F, 3, 0.125F, 7} : Floats{0.75F};
    builder.add_f32("x.weight_scale", per_row ? CheckpointBuilder::Shape{5, 1} : CheckpointBuilder::Shape{1},
                    scales);
    builder.add_f32("x.input_scale", {1}, {1});
    const Checkpoint checkpoint = builder.open();
    const Weights weights = bind(checkpoint, {matrix_spec("x", 5, 7, {as("x.weight")})});
    const Floats got = decoded(weights.matrix("x"));
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], e4m3(codes[i]) * scales[per_row ? i / 7 : 0]) << i;
  }
}

TEST(Weights, Fp8RefusesTwoScalesNoScaleAndWrongShapes) {
  CheckpointBuilder builder;
  builder.add_bytes("x.weight", DType::kF8E4M3, {2, 4}, std::vector<uint8_t>(8, 0x38));
  const std::vector<WeightSpec> specs = {matrix_spec("x", 2, 4, {as("x.weight")})};
  expect_refusal(builder, specs, {"toy", "x.weight", "x.weight_scale_inv", "missing"});
  builder.add_f32("x.weight_scale_inv", {2, 2}, {1, 1, 1, 1});
  expect_refusal(builder, specs, {"x.weight_scale_inv", "[1, 1]", "[2, 2]"});
  builder.add_f32("x.weight_scale_inv", {1, 1}, {1});
  EXPECT_EQ(refusal(builder, specs), "");
  builder.add_bytes("x.scale", DType::kF8E8M0, {1, 1}, {127});
  expect_refusal(builder, specs, {"two scales", "x.weight_scale_inv", "x.scale"});
  builder.remove("x.weight_scale_inv");
  EXPECT_EQ(refusal(builder, specs), "");
  builder.add_bytes("x.scale", DType::kF8E8M0, {1, 1}, {255});
  expect_refusal(builder, specs, {"x.scale", "not a number"});
  builder.add_bytes("x.scale", DType::kF8E8M0, {1, 1}, {127});
  builder.add_bytes("x.weight", DType::kF8E4M3, {2, 4}, {0, 1, 2, 0xff, 4, 5, 6, 7});
  expect_refusal(builder, specs, {"x.weight", "not a number"});
}

TEST(Weights, ReadsFp4PairsLowNibbleFirst) {
  CheckpointBuilder builder;
  const auto codes = builder.random_bytes(3 * 32);
  const auto exponents = builder.random_bytes(3 * 2, 100, 140);
  builder.add_bytes("x.weight", DType::kI8, {3, 32}, codes);
  builder.add_bytes("x.scale", DType::kF8E8M0, {3, 2}, exponents);
  const Checkpoint checkpoint = builder.open();
  const Weights weights = bind(checkpoint, {matrix_spec("x", 3, 64, {as("x.weight")})});
  const Floats got = decoded(weights.matrix("x"));
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], e2m1(nibble(codes, i)) * std::exp2(static_cast<float>(exponents[i / 32]) - 127)) << i;
  }
  builder.remove("x.scale");
  expect_refusal(builder, {matrix_spec("x", 3, 64, {as("x.weight")})}, {"x.weight", "x.scale", "missing"});
}

TEST(Weights, NvFp4OfBothWritersDecodesAlike) {
  const auto expected = [](const std::vector<uint8_t>& codes, const std::vector<uint8_t>& scales,
                           float factor) {
    Floats values;
    for (size_t i = 0; i < codes.size() * 2; ++i)
      values.push_back(e2m1(nibble(codes, i)) * e4m3(scales[i / 16]) * factor);
    return values;
  };
  CheckpointBuilder builder;
  const auto codes = builder.random_bytes(4 * 16);
  const auto scales = builder.random_bytes(4 * 2, 1, 0x7e);
  builder.add_bytes("a.weight", DType::kU8, {4, 16}, codes);
  builder.add_bytes("a.weight_scale", DType::kF8E4M3, {4, 2}, scales);
  builder.add_f32("a.weight_scale_2", {1}, {0.0625F});
  builder.add_f32("a.input_scale", {1}, {0.5F});
  builder.add_bytes("b.weight_packed", DType::kU8, {4, 16}, codes);
  builder.add_bytes("b.weight_scale", DType::kF8E4M3, {4, 2}, scales);
  builder.add_f32("b.weight_global_scale", {1}, {16.0F});
  builder.add_f32("b.input_global_scale", {1}, {2.0F});
  const std::vector<WeightSpec> specs = {matrix_spec("a", 4, 32, {as("a.weight")}),
                                         matrix_spec("b", 4, 32, {as("b.weight")})};
  const Checkpoint checkpoint = builder.open();
  const Weights weights = bind(checkpoint, specs);
  const Floats want = expected(codes, scales, 0.0625F);
  EXPECT_EQ(decoded(weights.matrix("a")), want);
  EXPECT_EQ(decoded(weights.matrix("b")), want);
  EXPECT_TRUE(weights.matrix("b").global_divides);
  for (const float bad : {0.0F, -1.0F, INFINITY, NAN}) {
    builder.add_f32("a.weight_scale_2", {1}, {bad});
    expect_refusal(builder, specs, {"a.weight_scale_2", "above zero"});
  }
  builder.remove("a.weight_scale_2");
  expect_refusal(builder, specs, {"a.weight", "missing", "a.weight_scale_2"});
}

struct Affine {
  std::vector<uint32_t> words;
  Floats scales, biases, values;
};

// Packs `n` codes of each row as one little-endian bit stream, bit by bit.
Affine random_affine(int64_t rows, int64_t n, int bits, int64_t group, uint32_t seed) {
  std::mt19937 random(seed);
  Affine a;
  const int64_t words = n * bits / 32;
  a.words.assign(static_cast<size_t>(rows * words), 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      if (i % group == 0) {
        a.scales.push_back(0.5F * static_cast<float>(static_cast<int>(random() % 9) - 4));
        a.biases.push_back(static_cast<float>(static_cast<int>(random() % 65) - 32));
      }
      const uint32_t code = random() % (1U << bits);
      for (int b = 0; b < bits; ++b) {
        const int64_t at = i * bits + b;
        a.words[static_cast<size_t>(row * words + at / 32)] |= (code >> b & 1U) << (at % 32);
      }
      a.values.push_back(a.scales.back() * static_cast<float>(code) + a.biases.back());
    }
  }
  return a;
}

void add_affine(CheckpointBuilder& builder, const std::string& path, const Affine& a,
                CheckpointBuilder::Shape outer, int64_t words, int64_t groups, DType type = DType::kU32) {
  CheckpointBuilder::Shape codes = outer, scales = outer;
  codes.push_back(words);
  scales.push_back(groups);
  builder.add(path + ".weight", type, codes, a.words);
  builder.add_bf16(path + ".scales", scales, a.scales);
  builder.add_bf16(path + ".biases", scales, a.biases);
}

TEST(Weights, ReadsMlxAffineOfEveryWidthWithAndWithoutConfiguration) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int64_t group : {32, 64, 128}) {
      for (const bool configured : {true, false}) {
        const std::string said =
            fmt::format(R"("quantization": {{"group_size": {}, "bits": {}, "mode": "affine"}})", group, bits);
        CheckpointBuilder builder(configured ? json_with(said) : json_with(R"("a": 1)"));
        const Affine a = random_affine(3, 128, bits, group, static_cast<uint32_t>(bits));
        add_affine(builder, "x", a, {3}, 128 * bits / 32, 128 / group, bits == 3 ? DType::kI32 : DType::kU32);
        const Checkpoint checkpoint = builder.open();
        const Weights weights = bind(checkpoint, {matrix_spec("x", 3, 128, {as("x.weight")})});
        EXPECT_EQ(decoded(weights.matrix("x")), a.values) << bits << " bits, group " << group;
        EXPECT_EQ(weights.totals()[0].type, fmt::format("mlx {} bit", bits));
      }
    }
  }
}

TEST(Weights, MlxExpertsAreSlicedWithTheirTwins) {
  CheckpointBuilder builder;
  const Affine a = random_affine(3 * 8, 64, 4, 32, 1);
  add_affine(builder, "x.gate_up", a, {3, 8}, 8, 2);
  const Checkpoint checkpoint = builder.open();
  const Weights weights = bind(checkpoint, {experts_spec("gate", 3, 4, 64, {as("x.gate_up.weight", 0, 0, 2)}),
                                            experts_spec("up", 3, 4, 64, {as("x.gate_up.weight", 0, 1, 2)})});
  for (size_t e = 0; e < 3; ++e) {
    EXPECT_EQ(decoded(weights.experts("gate")[e]), slice(a.values, e * 512, 256));
    EXPECT_EQ(decoded(weights.experts("up")[e]), slice(a.values, e * 512 + 256, 256));
  }
}

TEST(Weights, MlxOverridesHoldPerModuleAndMustFitTheShapes) {
  const auto config = [](const std::string& overrides) {
    return json_with(R"("quantization": {"group_size": 64, "bits": 4)" + overrides + "}");
  };
  const std::vector<WeightSpec> specs = {matrix_spec("a", 2, 64, {as("m.a.weight")}),
                                         matrix_spec("b", 2, 64, {as("m.b.weight")})};
  const auto file = [&](const std::string& overrides) {
    CheckpointBuilder builder(config(overrides));
    add_affine(builder, "m.a", random_affine(2, 64, 4, 64, 1), {2}, 8, 1);
    add_affine(builder, "m.b", random_affine(2, 64, 8, 32, 2), {2}, 16, 2);
    return builder;
  };
  auto good = file(R"(, "m.b": {"group_size": 32, "bits": 8})");
  const Checkpoint checkpoint = good.open();
  const Weights weights = bind(checkpoint, specs);
  EXPECT_EQ(weights.matrix("a").bits, 4);
  EXPECT_EQ(weights.matrix("b").bits, 8);
  EXPECT_EQ(decoded(weights.matrix("b")), random_affine(2, 64, 8, 32, 2).values);
  auto missing = file("");
  expect_refusal(missing, specs, {"m.b.weight", "16 words", "4 bits"});
  auto partial = file(R"(, "m.b": {"bits": 8})");  // the group of 64 is inherited, and wrong
  expect_refusal(partial, specs, {"m.b.weight", "groups of 64"});
  auto denied = file(R"(, "m.b": false)");
  expect_refusal(denied, specs, {"m.b.weight", "false"});
  auto odd = file(R"(, "m.b": {"bits": "8"})");
  expect_refusal(odd, specs, {"quantization.m.b.bits"});
  auto no_biases = file(R"(, "m.b": {"group_size": 32, "bits": 8})");
  no_biases.remove("m.b.biases");
  expect_refusal(no_biases, specs, {"m.b.biases", "missing"});
}

TEST(Weights, ReadsMlxFloatModes) {
  CheckpointBuilder builder(json_with(R"("quantization": {"mode": "mxfp4", "group_size": 32, "bits": 4,
      "b": {"mode": "mxfp8", "bits": 8}, "c": {"mode": "nvfp4", "group_size": 16}})"));
  const auto a = builder.random_bytes(2 * 16), b = builder.random_bytes(2 * 32, 0, 0x7e),
             c = builder.random_bytes(2 * 16);
  const auto e = builder.random_bytes(2, 110, 140), s = builder.random_bytes(4, 1, 0x7e);
  builder.add_bytes("a.weight", DType::kU32, {2, 4}, a);
  builder.add_bytes("a.scales", DType::kU8, {2, 1}, e);
  builder.add_bytes("b.weight", DType::kU32, {2, 8}, b);
  builder.add_bytes("b.scales", DType::kU8, {2, 1}, e);
  builder.add_bytes("c.weight", DType::kU32, {2, 4}, c);
  builder.add_bytes("c.scales", DType::kU8, {2, 2}, s);
  const Checkpoint checkpoint = builder.open();
  const Weights weights =
      bind(checkpoint, {matrix_spec("a", 2, 32, {as("a.weight")}), matrix_spec("b", 2, 32, {as("b.weight")}),
                        matrix_spec("c", 2, 32, {as("c.weight")})});
  for (size_t i = 0; i < 64; ++i) {
    const float power = std::exp2(static_cast<float>(e[i / 32]) - 127);
    EXPECT_EQ(decoded(weights.matrix("a"))[i], e2m1(nibble(a, i)) * power);
    EXPECT_EQ(decoded(weights.matrix("b"))[i], e4m3(b[i]) * power);
    EXPECT_EQ(decoded(weights.matrix("c"))[i], e2m1(nibble(c, i)) * e4m3(s[i / 16]));
  }
}

TEST(Weights, NamesTheMissingExpert) {
  CheckpointBuilder builder;
  for (int e = 0; e < 5; ++e) builder.add_numbers(fmt::format("x.{}.w1.weight", e), {2, 4});
  const std::vector<WeightSpec> specs = {experts_spec("w1", 5, 2, 4, {as("x.{e}.w1.weight")})};
  EXPECT_EQ(refusal(builder, specs), "");
  builder.remove("x.3.w1.weight");
  expect_refusal(builder, specs, {"1 missing: x.3.w1.weight", "toy names"});
}

TEST(Weights, ListsMissingAndUnexpectedNamesOfTheNearestDialect) {
  CheckpointBuilder builder;
  std::vector<WeightSpec> specs;
  for (int i = 0; i < 30; ++i) {
    const std::string name = fmt::format("l{:02}.weight", i);
    specs.push_back(matrix_spec(name, 1, 2, {as(name), as("other." + name, 1)}));
    if (i >= 25) builder.add_numbers(name, {1, 2});
  }
  builder.add_numbers("surprise", {3});
  builder.add_numbers("vision.patch", {3});
  expect_refusal(
      builder, specs,
      {"toy names", "25 missing: l00.weight, ", "l19.weight and 5 more", "1 unexpected: surprise"});
  const std::string message = refusal(builder, specs);
  EXPECT_EQ(message.find("vision.patch"), std::string::npos) << message;
}

TEST(Weights, RefusesUnexpectedTensorsAndSkipsKnownOnes) {
  CheckpointBuilder builder;
  builder.add_numbers("a.weight", {2, 2});
  builder.add_numbers("vision.a", {2});
  const std::vector<WeightSpec> specs = {matrix_spec("a", 2, 2, {as("a.weight")})};
  EXPECT_EQ(refusal(builder, specs), "");
  builder.add_numbers("a.bias", {2});
  expect_refusal(builder, specs, {"1 unexpected", "a.bias"});
  builder.remove("a.bias");
  builder.add_numbers("a.weight_scale", {2, 1});  // a plain weight has no scales
  expect_refusal(builder, specs, {"1 unexpected", "a.weight_scale"});
}

TEST(Weights, RefusesAmbiguousDialectsAndCandidates) {
  CheckpointBuilder builder;
  builder.add_numbers("a.weight", {2, 2});
  builder.add_numbers("model.a.weight", {2, 2});
  expect_refusal(builder, {matrix_spec("a", 2, 2, {as("a.weight"), as("model.a.weight", 1)})},
                 {"twice", "toy names", "other names"});
  expect_refusal(builder, {matrix_spec("a", 2, 2, {as("a.weight"), as("model.a.weight")})},
                 {"a.weight", "model.a.weight", "stored twice"});
  // Two dialects that agree on every name are no ambiguity.
  builder.remove("model.a.weight");
  EXPECT_EQ(refusal(builder, {matrix_spec("a", 2, 2, {as("a.weight"), as("a.weight", 1)})}), "");
}

TEST(Weights, PicksTheDialectThatIsComplete) {
  CheckpointBuilder builder;
  const Floats a = builder.add_numbers("model.a.weight", {2, 2});
  builder.add_numbers("model.b.weight", {2, 2});
  const Checkpoint checkpoint = builder.open();
  const Weights weights =
      bind(checkpoint, {matrix_spec("a", 2, 2, {as("a.weight"), as("model.a.weight", 1)}),
                        matrix_spec("b", 2, 2, {as("b.weight"), as("model.b.weight", 1)})});
  EXPECT_EQ(weights.dialect(), "other names");
  EXPECT_EQ(decoded(weights.matrix("a")), a);
}

TEST(Weights, RefusesWrongShapesAndTypes) {
  CheckpointBuilder builder(R"({"model_type": "gemma4"})");
  builder.add_numbers("a.weight", {4, 3});
  expect_refusal(builder, {matrix_spec("a", 3, 4, {as("a.weight")})},
                 {"gemma4", "a.weight", "[3, 4]", "[4, 3]"});
  expect_refusal(builder, {experts_spec("a", 2, 2, 3, {as("a.weight")})}, {"[2, 2, 3]", "[4, 3]"});
  const WeightSpec vector{.role = "a", .kind = Kind::kVector, .shape = {12}, .candidates = {as("a.weight")}};
  expect_refusal(builder, {vector}, {"[12]", "[4, 3]"});
  builder.add<int32_t>("a.weight", DType::kI32, {12}, std::vector<int32_t>(12));
  expect_refusal(builder, {vector}, {"expected floats", "i32"});
  builder.add_f32("a.weight", {2}, {1, NAN});
  const WeightSpec pair{.role = "a", .kind = Kind::kVector, .shape = {2}, .candidates = {as("a.weight")}};
  expect_refusal(builder, {pair}, {"a.weight", "not a number"});
  const WeightSpec ids{.role = "a", .kind = Kind::kIds, .shape = {1, 2}, .candidates = {as("a.weight")}};
  expect_refusal(builder, {ids}, {"expected integers", "f32"});
  builder.add<int64_t>("a.weight", DType::kI64, {1, 2}, {1, int64_t{1} << 31});
  expect_refusal(builder, {ids}, {"2147483648"});
}

TEST(Weights, RefusesUnknownQuantizationMethods) {
  CheckpointBuilder builder(json_with(R"("quantization_config": {"quant_method": "awq"})"));
  builder.add_numbers("a.weight", {2, 2});
  expect_refusal(builder, {matrix_spec("a", 2, 2, {as("a.weight")})}, {"quant_method", "awq"});
}

// GGUF's NVFP4 blocks carry their factor in a tensor whose name may also be another role.
TEST(Weights, TakesGgufNvFp4FactorsUnlessARoleClaimsTheName) {
  const TempFolder folder;
  const auto path = folder.path() / "toy.gguf";
  const int64_t block_bytes = info(DType::kNVFP4).block_bytes;
  std::vector<uint8_t> blocks(static_cast<size_t>(2 * block_bytes), 0x38);
  const Floats factors = {2, 4};
  GgufWriter writer(path);
  writer.metadata().set_string("general.architecture", "toy");
  writer.declare("x_exps.weight", DType::kNVFP4, {2, 1, 64});
  writer.declare("x_exps.scale", DType::kF32, {2});
  writer.write(std::as_bytes(std::span(blocks)));
  writer.write(std::as_bytes(std::span(factors)));
  writer.finish();
  const Checkpoint checkpoint = Checkpoint::open(path);
  const WeightSpec experts = experts_spec("x_exps.weight", 2, 1, 64, {as("x_exps.weight")});
  const Weights taken = bind(checkpoint, {experts});
  EXPECT_EQ(taken.experts("x_exps.weight")[0].global_scale, 2.0F);
  EXPECT_EQ(taken.experts("x_exps.weight")[1].global_scale, 4.0F);
  const Weights claimed = bind(
      checkpoint,
      {experts,
       {.role = "x_exps.scale", .kind = Kind::kVector, .shape = {2}, .candidates = {as("x_exps.scale")}}});
  EXPECT_EQ(claimed.experts("x_exps.weight")[1].global_scale, 1.0F);
  EXPECT_EQ(claimed.vector("x_exps.scale").as<float>()[1], 4.0F);
}

TEST(Weights, CountsBytesPerTokenWithoutLookedUpRows) {
  const auto bytes = [](bool untied) {
    CheckpointBuilder builder;
    builder.add_numbers("embed", {10, 4});
    builder.add_numbers("rows", {10, 8});
    builder.add_numbers("experts", {5, 2, 4});
    if (untied) builder.add_numbers("head", {10, 4});
    const Checkpoint checkpoint = builder.open();
    WeightSpec head = matrix_spec("output.weight", 10, 4, {as("head")});
    head.required = false;
    return bind(checkpoint, {matrix_spec("token_embd.weight", 10, 4, {as("embed")}),
                             matrix_spec("per_layer_token_embd.weight", 10, 8, {as("rows")}),
                             experts_spec("e", 5, 2, 4, {as("experts")}), head})
        .bytes_per_token(2);
  };
  EXPECT_EQ(bytes(false), 160 + 32 + 64);      // the embedding is the head
  EXPECT_EQ(bytes(true), 16 + 160 + 32 + 64);  // one row of it, and the head
}

TEST(Weights, PlansShapesWithoutBytes) {
  std::vector<WeightSpec> specs = {matrix_spec("a", 4, 512, {}),
                                   matrix_spec("b", 4, 96, {}),
                                   matrix_spec("c", 4, 20, {}),
                                   experts_spec("e", 3, 2, 256, {}),
                                   {.role = "v", .kind = Kind::kVector, .shape = {7}, .candidates = {}}};
  specs.push_back({.role = "o", .kind = Kind::kMatrix, .shape = {2, 2}, .required = false, .candidates = {}});
  const Weights weights = Weights::planned(specs, [](const WeightSpec&) { return DType::kQ4_K; });
  EXPECT_EQ(weights.matrix("a").type, DType::kQ4_K);
  EXPECT_EQ(weights.matrix("b").type, DType::kQ8_0);
  EXPECT_EQ(weights.matrix("c").type, DType::kF16);
  EXPECT_EQ(weights.matrix("a").data, nullptr);
  EXPECT_EQ(weights.experts("e").size(), 3U);
  EXPECT_FALSE(weights.has("o"));
  EXPECT_EQ(weights.vector("v").dim(0), 7);
  EXPECT_EQ(weights.bytes(), 4 * 2 * 144 + 4 * 3 * 34 + 4 * 40 + 3 * 2 * 144 + 7 * 4);
  EXPECT_EQ(weights.totals()[0].type, "q4_k");
}

}  // namespace
}  // namespace synod
