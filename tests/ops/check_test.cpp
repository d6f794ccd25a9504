// Every op refuses operands of a wrong type or shape, and names op, operand, tensor, expected and got.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/backend.h"

namespace synod {
namespace {

Tensor f32(std::initializer_list<int64_t> shape, std::string_view name = "t") {
  return Tensor::contiguous(nullptr, DType::kF32, shape, name);
}
Tensor i32(std::initializer_list<int64_t> shape, std::string_view name = "t") {
  return Tensor::contiguous(nullptr, DType::kI32, shape, name);
}
Matrix matrix(int64_t n_out, int64_t n_in) { return {.n_out = n_out, .n_in = n_in, .name = "m"}; }

// What check() throws, "" when it accepts the operands.
template <typename Op>
std::string message(const Op& op) {
  try {
    op.check();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::kFailure);
    return e.what();
  }
  return "";
}

TEST(Check, MessagesNameOpOperandTensorExpectedAndGot) {
  EXPECT_EQ(message(RmsNorm{.out = f32({3, 64}), .x = f32({3, 64}), .weight = f32({32}, "norm.weight")}),
            "rms_norm: weight (norm.weight): expected f32 [64], got f32 [32]");
  EXPECT_EQ(message(RmsNorm{.out = f32({3, 60}, "h"), .x = f32({3, 64})}),
            "rms_norm: out (h): expected f32 [3, 64], got f32 [3, 60]");
  EXPECT_EQ(message(Embed{.out = f32({2, 8}), .ids = f32({2}, "ids"), .table = matrix(10, 8)}),
            "embed: ids (ids): expected i32 [any], got f32 [2]");
  EXPECT_EQ(message(Linear{.out = f32({2, 8}), .x = Tensor{}, .weight = matrix(8, 4)}),
            "linear: x: expected f32 [any, 4], got no tensor");
  EXPECT_EQ(message(Embed{
                .out = f32({2, 8}), .ids = i32({2}), .table = Matrix{.n_out = 3, .n_in = 9, .name = "e"}}),
            "embed: out (t): expected f32 [2, 9], got f32 [2, 8]");
}

TEST(Check, LinearOpsWantMatchingWidths) {
  EXPECT_EQ(message(Linear{.out = f32({2, 8}), .x = f32({2, 4}), .weight = matrix(8, 4)}), "");
  EXPECT_NE(message(Linear{.out = f32({2, 8}), .x = f32({2, 5}), .weight = matrix(8, 4)}), "");
  EXPECT_NE(message(Linear{.out = f32({3, 8}), .x = f32({2, 4}), .weight = matrix(8, 4)}), "");
  GroupedLinear grouped{.out = f32({2, 3, 5}), .x = f32({2, 3, 4}), .weight = matrix(15, 4)};
  EXPECT_EQ(message(grouped), "");
  grouped.weight = matrix(14, 4);
  EXPECT_NE(message(grouped), "");
  Projections projections{.x = f32({2, 4})};
  EXPECT_NE(message(projections), "") << "no parts";
  projections.parts[0] = {f32({2, 8}), matrix(8, 4)};
  projections.n_parts = 1;
  EXPECT_EQ(message(projections), "");
}

TEST(Check, RotatedPairsLieInsideAHead) {
  Rope rope{.x = f32({2, 3, 8}), .positions = i32({2}), .freqs = f32({4})};
  EXPECT_EQ(message(rope), "");
  rope.first = 1;
  EXPECT_NE(message(rope), "");
  rope.first = 0;
  rope.positions = i32({3});
  EXPECT_NE(message(rope), "");
}

TEST(Check, RoutersWantAsManyExpertsAsTheyChoose) {
  RouteSoftmax route{.ids = i32({2, 3}), .weights = f32({2, 3}), .logits = f32({2, 3})};
  EXPECT_EQ(message(route), "");
  route.logits = f32({2, 2});
  EXPECT_NE(message(route), "");
  RouteScores scores{.ids = i32({2, 1}), .weights = f32({2, 1}), .logits = f32({2, 4}), .bias = f32({3})};
  EXPECT_NE(message(scores), "");
  RouteHash hash{.ids = i32({2, 1}),
                 .weights = f32({2, 1}),
                 .logits = f32({2, 4}),
                 .token_ids = i32({2}),
                 .table = i32({10, 2})};
  EXPECT_NE(message(hash), "");
}

TEST(Check, ExpertsAreAlike) {
  std::vector<Matrix> experts{matrix(5, 4), matrix(5, 4)};
  ExpertLinear op{.out = f32({2, 1, 5}), .x = f32({2, 4}), .ids = i32({2, 1}), .experts = experts};
  EXPECT_EQ(message(op), "");
  experts[1] = matrix(6, 4);
  EXPECT_NE(message(op), "");
  op.experts = {};
  EXPECT_NE(message(op), "");
}

TEST(Check, AttentionWantsRowsOfItsHeads) {
  const std::vector<int64_t> row_start{0, 2}, past{0};
  const BatchView batch{.ids = i32({2}), .positions = i32({2}), .row_start = row_start, .past = past};
  const CacheRows rows{.name = "kv", .row_dim = 16, .row_bytes = 64};
  Attention op{
      .out = f32({2, 4, 8}), .q = f32({2, 4, 8}), .k = rows, .v = rows, .batch = &batch, .n_kv_heads = 2};
  EXPECT_EQ(message(op), "");
  op.n_kv_heads = 3;
  EXPECT_NE(message(op), "");
  op.n_kv_heads = 1;
  EXPECT_EQ(message(op), "attention: k (kv): expected cache rows of 8 values, got 16 in 64 bytes");
  op.batch = nullptr;
  EXPECT_NE(message(op), "");
}

TEST(Check, ElementwiseOpsWantOneShape) {
  EXPECT_NE(message(Add{.out = f32({2, 3}), .a = f32({2, 3}), .b = f32({3, 2})}), "");
  EXPECT_NE(message(Glu{.out = f32({2, 3}), .gate = f32({2, 3}), .up = f32({2, 3}), .row_weight = f32({3})}),
            "");
  EXPECT_EQ(message(Glu{.out = f32({2, 3}), .gate = f32({2, 3}), .up = f32({2, 3}), .row_weight = f32({2})}),
            "");
  EXPECT_NE(message(Hadamard{.x = f32({2, 12})}), "");
  EXPECT_NE(message(SoftCap{.x = f32({2, 12})}), "") << "cap 0";
  EXPECT_NE(message(RoundTrip{.out = f32({4}), .x = f32({4}), .block = 2, .count = 5}), "");
  EXPECT_NE(message(GatherRows{.out = f32({2, 3}), .x = f32({4, 2}), .rows = i32({2})}), "");
}

TEST(Check, HyperConnectionsWantSquareMixes) {
  HcMix mix{.pre = f32({1, 4}),
            .post = f32({1, 4}),
            .comb = f32({1, 4, 4}),
            .x = f32({1, 4, 8}),
            .fn = matrix(24, 32),
            .base = f32({24}),
            .scale = f32({3}),
            .iterations = 1};
  EXPECT_EQ(message(mix), "");
  mix.iterations = 0;
  EXPECT_NE(message(mix), "");
  mix.iterations = 1;
  mix.fn = matrix(23, 32);
  EXPECT_NE(message(mix), "");
}

TEST(Batch, ClosedBlocksCountBlockEndsOfEverySequence) {
  const std::vector<int64_t> row_start{0, 3, 4, 14}, past{2, 3, 0};
  const BatchView batch{.ids = i32({14}), .positions = i32({14}), .row_start = row_start, .past = past};
  EXPECT_EQ(closed_blocks(batch, 4), 1 + 1 + 2);  // 2..4, 3, 0..9
  EXPECT_EQ(closed_blocks(batch, 128), 0);
}

}  // namespace
}  // namespace synod
