// Views: shapes, strides and where rows lie.
#include "base/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace synod {
namespace {

std::vector<float> counted(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST(Tensor, ContiguousShapesHaveRowMajorStrides) {
  std::vector<float> values = counted(24);
  const Tensor t = Tensor::contiguous(values.data(), DType::kF32, {2, 3, 4}, "t");
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.stride[0], 48);
  EXPECT_EQ(t.stride[1], 16);
  EXPECT_EQ(t.rows(), 6);
  EXPECT_EQ(t.inner(), 4);
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(t.bytes(), 96);
  EXPECT_TRUE(t.is_contiguous());
  for (int64_t row = 0; row < 6; ++row) EXPECT_EQ(t.row_as<float>(row)[1], static_cast<float>(row * 4 + 1));
  EXPECT_EQ(shape_string(t), "[2, 3, 4]");
}

TEST(Tensor, AnAbsentTensorIsFalseAndEmpty) {
  const Tensor none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.bytes(), 0);
  EXPECT_EQ(none.size(), 0);
}

TEST(Tensor, BlockTypesCountBlocks) {
  const Tensor t = Tensor::contiguous(nullptr, DType::kQ4_K, {3, 512});
  EXPECT_EQ(t.bytes(), 3 * 2 * 144);
  EXPECT_EQ(t.stride[0], 288);
}

TEST(Tensor, SlicesOfOuterDimensionsKeepStrides) {
  std::vector<float> values = counted(24);
  const Tensor t = Tensor::contiguous(values.data(), DType::kF32, {2, 3, 4});
  const Tensor outer = t.slice(0, 1, 2);
  EXPECT_EQ(shape_string(outer), "[1, 3, 4]");
  EXPECT_EQ(outer.row_as<float>(0)[0], 12.0F);
  EXPECT_TRUE(outer.is_contiguous());
  const Tensor middle = t.slice(1, 1, 3);
  EXPECT_FALSE(middle.is_contiguous());
  EXPECT_EQ(middle.row_as<float>(0)[0], 4.0F);
  EXPECT_EQ(middle.row_as<float>(2)[0], 16.0F);
  EXPECT_EQ(middle.row_as<float>(3)[3], 23.0F);
}

TEST(Tensor, SlicesOfTheInnermostDimension) {
  std::vector<float> values = counted(12);
  const Tensor t = Tensor::contiguous(values.data(), DType::kF32, {3, 4});
  const Tensor s = t.slice(1, 1, 3);
  EXPECT_EQ(shape_string(s), "[3, 2]");
  EXPECT_EQ(s.row_as<float>(2)[0], 9.0F);
  EXPECT_FALSE(s.is_contiguous());
  const Tensor heads = s.reshape({3, 2, 1});
  EXPECT_EQ(heads.row_as<float>(5)[0], 10.0F);
}

TEST(Tensor, ReshapeKeepsTheBytes) {
  std::vector<float> values = counted(24);
  const Tensor t = Tensor::contiguous(values.data(), DType::kF32, {2, 12}, "t");
  const Tensor r = t.reshape({2, 3, 4});
  EXPECT_EQ(r.row_as<float>(4)[2], 18.0F);
  EXPECT_EQ(r.name, "t");
  EXPECT_EQ(r.named("u").name, "u");
}

TEST(Tensor, EmptyDimensionsAreAllowed) {
  const Tensor t = Tensor::contiguous(nullptr, DType::kF32, {0, 4});
  EXPECT_EQ(t.size(), 0);
  EXPECT_EQ(t.bytes(), 0);
  EXPECT_TRUE(t);
}

TEST(DType, NamesAndIdsAreUnique) {
  for (int i = 0; i < 256; ++i) {
    const auto t = dtype_from_ggml_id(static_cast<uint32_t>(i));
    if (t) {
      EXPECT_EQ(info(*t).ggml_id, i);
    }
  }
  EXPECT_EQ(dtype_from_name("q4_k"), DType::kQ4_K);
  EXPECT_EQ(dtype_from_name("bf16"), DType::kBF16);
  EXPECT_EQ(dtype_from_name("q4"), std::nullopt);
  EXPECT_EQ(dtype_from_ggml_id(4), std::nullopt);
  EXPECT_EQ(dtype_from_ggml_id(0xffffffffU), std::nullopt);  // -1 marks types that GGUF does not have
  EXPECT_EQ(row_bytes(DType::kIQ1_M, 512), 112);
}

}  // namespace
}  // namespace synod
