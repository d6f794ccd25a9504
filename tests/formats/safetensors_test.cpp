// The safetensors reader on single files, and the writer.
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include "formats/test_files.h"

namespace synod {
namespace {

using test::bytes_of;
using test::error_of;
using test::TempFolder;

std::string file_of(std::string header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + std::move(header) + data;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                size_t n_bytes) {
  return file_of(R"({"a":)" + entry(dtype, shape, offsets) + "}", std::string(n_bytes, '\1'));
}

SafetensorsFile parse(std::string_view bytes) {
  return SafetensorsFile::parse(bytes_of(bytes), "test.safetensors");
}
std::string parse_error(std::string_view bytes) {
  return error_of([&] { parse(bytes); });
}

std::string small_file() {
  return file_of(R"({"__metadata__":{"format":"pt"},"b":)" + entry("F32", "[2,2]", "[2,18]") + R"(,"a":)" +
                     entry("BF16", "[]", "[0,2]") + R"(,"z":)" + entry("I8", "[0,5]", "[18,18]") + "}  ",
                 std::string("\1\2\0\0\0\0\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40", 18));
}

TEST(Safetensors, ReadsTensorsSortedByName) {
  const std::string bytes = small_file();
  const SafetensorsFile file = parse(bytes);
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(shape_string(file.tensors()[0]), "[1]");
  EXPECT_EQ(file.tensors()[0].type, DType::kBF16);
  const Tensor* b = file.find("b");
  ASSERT_NE(b, nullptr);
  float last = 0;
  std::memcpy(&last, b->row(1) + sizeof(float), sizeof(float));  // not aligned to 4
  EXPECT_EQ(last, 3.0F);
  EXPECT_EQ(file.find("z")->bytes(), 0);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_TRUE(file.unreadable().empty());
}

TEST(Safetensors, KnowsEveryType) {
  const std::vector<std::pair<std::string, DType>> types = {
      {"BOOL", DType::kBool},      {"U8", DType::kU8},          {"I8", DType::kI8},
      {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}, {"F8_E8M0", DType::kF8E8M0},
      {"I16", DType::kI16},        {"U16", DType::kU16},        {"F16", DType::kF16},
      {"BF16", DType::kBF16},      {"I32", DType::kI32},        {"U32", DType::kU32},
      {"F32", DType::kF32},        {"I64", DType::kI64},        {"U64", DType::kU64},
      {"F64", DType::kF64}};
  for (const auto& [text, type] : types) {
    const auto n = static_cast<size_t>(row_bytes(type, 3));
    const std::string bytes = one(text, "[3]", fmt::format("[0,{}]", n), n);
    EXPECT_EQ(parse(bytes).tensors()[0].type, type) << text;
  }
}

TEST(Safetensors, ListsWhatItCannotRead) {
  const std::string bytes = one("F4", "[8]", "[0,4]", 4);
  const SafetensorsFile file = parse(bytes);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.unreadable(), std::vector<std::string>{"a"});
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string bytes = small_file();
  for (size_t n = 0; n < bytes.size(); ++n) parse_error(bytes.substr(0, n));
  EXPECT_EQ(parse(bytes).tensors().size(), 3U);
}

TEST(Safetensors, RefusesBadHeaderLengths) {
  const std::string bytes = small_file();
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{100'000'001}, uint64_t{1} << 31,
                                (uint64_t{1} << 63) - 1, ~uint64_t{0}}) {
    std::string damaged = bytes;
    std::memcpy(damaged.data(), &length, sizeof(length));
    parse_error(damaged);
  }
  EXPECT_CONTAINS(parse_error(file_of(" {}", "")), "starts with '{'");
}

TEST(Safetensors, AHeaderAboveTheLimitIsRefusedEvenIfItIsThere) {
  std::string header = "{}";
  header.resize(100'000'001, ' ');
  EXPECT_CONTAINS(parse_error(file_of(std::move(header), "")), "at most 100000000 bytes");
}

TEST(Safetensors, RefusesJsonOfAnotherForm) {
  for (const char* header :
       {"{", "{}x", "{}{}", "{/**/}", R"({"a":1})", R"({"a":null})", R"({"a":"x"})", R"({"a":[]})",
        R"({"a":{}})", R"({"__metadata__":1})", R"({"__metadata__":{"a":1}})", R"({"__metadata__":{"a":{}}})",
        R"({"a":{"b":{}}})", "{\"\xff\":1}", R"({"\ud800":1})"}) {
    parse_error(file_of(header, ""));
  }
  EXPECT_CONTAINS(parse_error(file_of(std::string("{}\0{\"a\":1}", 10), "")), "NUL");
  std::string deep = "{\"a\":";
  deep.append(100'000, '[');
  parse_error(file_of(deep, ""));
}

TEST(Safetensors, RefusesDuplicateKeysAtEveryLevel) {
  const std::string e = R"("a":)" + entry("U8", "[1]", "[0,1]");
  EXPECT_CONTAINS(parse_error(file_of("{" + e + "," + e + "}", "x")), "duplicate key \"a\"");
  EXPECT_CONTAINS(parse_error(file_of("{" + e + R"(,"\u0061":)" + entry("U8", "[0]", "[1,1]") + "}", "x")),
                  "duplicate key \"a\"");
  for (const char* twice : {R"("dtype":"U8")", R"("shape":[1])", R"("data_offsets":[0,1])"}) {
    const std::string inner = R"("dtype":"U8","shape":[1],"data_offsets":[0,1],)";
    EXPECT_CONTAINS(parse_error(file_of(R"({"a":{)" + inner + twice + "}}", "x")), "duplicate key");
  }
  EXPECT_CONTAINS(parse_error(file_of(R"({"__metadata__":{},"__metadata__":{}})", "")), "duplicate key");
  EXPECT_CONTAINS(parse_error(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", "")), "duplicate key \"k\"");
}

TEST(Safetensors, RefusesIncompleteAndUnknownFields) {
  EXPECT_CONTAINS(parse_error(file_of(R"({"a":{"dtype":"U8","shape":[1]}})", "x")),
                  "tensor a: expected dtype");
  EXPECT_CONTAINS(parse_error(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", "x")),
                  "tensor a: unexpected key \"x\"");
  EXPECT_CONTAINS(parse_error(one("U8", "[1]", "[0]", 1)), "expected 2 data_offsets, got 1");
  parse_error(one("U8", "[1]", "[0,1,1]", 1));
  parse_error(one("U8", "[1]", "[[0],1]", 1));
  parse_error(one("U8", "1", "[0,1]", 1));
}

TEST(Safetensors, RefusesBadNumbers) {
  for (const char* number : {"-1", "1.0", "1e0", "\"1\"", "null", "true", "[]", "{}", "18446744073709551616",
                             "9223372036854775808", "18446744073709551615", "01", "+1", "NaN", "1e999"}) {
    parse_error(one("U8", fmt::format("[{}]", number), "[0,1]", 1));
    parse_error(one("U8", "[1]", fmt::format("[{},1]", number), 1));
    parse_error(one("U8", "[2]", fmt::format("[0,{}]", number), 2));
  }
}

TEST(Safetensors, RefusesShapesThatOverflow) {
  EXPECT_CONTAINS(parse_error(one("F32", "[4294967296,4294967296]", "[0,0]", 0)), "too large");
  EXPECT_CONTAINS(parse_error(one("F64", "[1152921504606846976]", "[0,0]", 0)), "too large");
  EXPECT_CONTAINS(parse_error(one("F32", "[0,4611686018427387904,4]", "[0,0]", 0)), "too large");
  EXPECT_CONTAINS(parse_error(one("U8", "[1,1,1,1,1]", "[0,1]", 1)), "more than 4 dimensions");
}

TEST(Safetensors, RefusesRangesThatDoNotFitTheShape) {
  EXPECT_CONTAINS(parse_error(one("F32", "[2]", "[0,7]", 7)), "tensor a: expected 8 bytes for F32 [2]");
  EXPECT_CONTAINS(parse_error(one("F32", "[2]", "[0,8]", 7)), "outside the data of 7 bytes");
  EXPECT_CONTAINS(parse_error(one("U8", "[0]", "[1,0]", 1)), "outside");
}

TEST(Safetensors, RefusesHolesAndOverlaps) {
  const auto two = [](const std::string& first, const std::string& second, size_t n) {
    return file_of(R"({"a":)" + entry("U8", "[2]", first) + R"(,"b":)" + entry("U8", "[2]", second) + "}",
                   std::string(n, 'x'));
  };
  EXPECT_EQ(parse(two("[2,4]", "[0,2]", 4)).tensors().size(), 2U);
  EXPECT_CONTAINS(parse_error(two("[0,2]", "[3,5]", 5)), "belong to no tensor");
  EXPECT_CONTAINS(parse_error(two("[0,2]", "[1,3]", 3)), "overlap");
  EXPECT_CONTAINS(parse_error(two("[0,2]", "[0,2]", 2)), "overlap");
  EXPECT_CONTAINS(parse_error(two("[1,3]", "[3,5]", 5)), "belong to no tensor");
  EXPECT_CONTAINS(parse_error(two("[0,2]", "[2,4]", 5)), "end with the file");
}

TEST(Safetensors, RefusesLongNames) {
  const auto named = [](size_t n) {
    return file_of("{\"" + std::string(n, 'n') + "\":" + entry("U8", "[1]", "[0,1]") + "}", "x");
  };
  EXPECT_EQ(parse(named(4096)).tensors().size(), 1U);
  EXPECT_CONTAINS(parse_error(named(4097)), "at most 4096 bytes");
}

TEST(Safetensors, SyntaxErrorsNameLineAndColumn) {
  EXPECT_CONTAINS(parse_error(file_of("{\n\"a\": ?}", "")), "test.safetensors: line 2, column 6");
}

TEST(Safetensors, WrittenTensorsReadBack) {
  const TempFolder folder;
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::vector<uint8_t> bytes = {7, 8, 9};
  const std::string odd = "quote\" \xe2\x96\x81\n";
  const std::vector<Tensor> tensors = {Tensor::contiguous(values.data(), DType::kF32, {1, 2, 3}, "logits"),
                                       Tensor::contiguous(bytes.data(), DType::kU8, {3}, "first"),
                                       Tensor::contiguous(nullptr, DType::kF32, {0, 4}, "nothing"),
                                       Tensor::contiguous(bytes.data(), DType::kF8E8M0, {2}, odd)};
  write_safetensors(folder / "out.safetensors", tensors);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"out.safetensors"});
  const SafetensorsFile file = SafetensorsFile::open(folder / "out.safetensors");
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(shape_string(*file.find("logits")), "[1, 2, 3]");
  EXPECT_EQ(std::memcmp(file.find("logits")->data, values.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.find("first")->data, bytes.data(), 3), 0);
  EXPECT_EQ(shape_string(*file.find("nothing")), "[0, 4]");
  EXPECT_EQ(file.find(odd)->type, DType::kF8E8M0);
  uint64_t length = 0;
  std::memcpy(&length, test::read_all(folder / "out.safetensors").data(), sizeof(length));
  EXPECT_EQ(length % 8, 0U);
  write_safetensors(folder / "empty.safetensors", {});
  EXPECT_TRUE(SafetensorsFile::open(folder / "empty.safetensors").tensors().empty());
}

TEST(Safetensors, TheWriterRefusesWhatTheFormatCannotHold) {
  const TempFolder folder;
  std::vector<float> values(32);
  const auto write_error = [&](std::vector<Tensor> tensors) {
    return error_of([&] { write_safetensors(folder / "x.safetensors", tensors); }, Error::Kind::kFailure);
  };
  const auto tensor = [&](std::string_view name) {
    return Tensor::contiguous(values.data(), DType::kF32, {2}, name);
  };
  EXPECT_CONTAINS(write_error({tensor("a"), tensor("a")}), "used twice");
  EXPECT_CONTAINS(write_error({tensor("__metadata__")}), "reserved");
  EXPECT_CONTAINS(write_error({tensor("\xff")}), "not UTF-8");
  EXPECT_CONTAINS(write_error({Tensor::contiguous(values.data(), DType::kQ8_0, {32}, "q")}), "q8_0");
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace synod
