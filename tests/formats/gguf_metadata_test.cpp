// Typed getters: any integer width, scalars as arrays, and wrong types refused by name.
#include <gtest/gtest.h>

#include <limits>

#include "formats/gguf.h"
#include "formats/test_files.h"

namespace synod {
namespace {

using test::error_of;

GgufMetadata sample() {
  GgufMetadata m("m.gguf");
  m.set("u8", {uint8_t{200}});
  m.set("i8", {int8_t{-8}});
  m.set("u16", {uint16_t{60000}});
  m.set("i16", {int16_t{-300}});
  m.set("u64", {uint64_t{1} << 40});
  m.set("u64_huge", {std::numeric_limits<uint64_t>::max()});
  m.set("i64", {std::numeric_limits<int64_t>::min()});
  m.set("f64", {0.1});
  m.set_u32("u32", 4'000'000'000U);
  m.set("i32", {int32_t{-5}});
  m.set_f32("f32", 0.5F);
  m.set_bool("bool", true);
  m.set_string("string", "text");
  m.set_u32s("u32s", {1, 4'000'000'000U});
  m.set_i32s("i32s", {-1, 2});
  m.set_f32s("f32s", {0.25F, -2.0F});
  m.set_bools("bools", {true, false, true});
  m.set_strings("strings", {"a", ""});
  return m;
}

TEST(GgufMetadata, IntegersOfEveryWidth) {
  const GgufMetadata m = sample();
  EXPECT_EQ(m.get_int("u8"), 200);
  EXPECT_EQ(m.get_int("i8"), -8);
  EXPECT_EQ(m.get_int("u16"), 60000);
  EXPECT_EQ(m.get_int("i16"), -300);
  EXPECT_EQ(m.get_int("u32"), 4'000'000'000);
  EXPECT_EQ(m.get_int("i32"), -5);
  EXPECT_EQ(m.get_int("u64"), int64_t{1} << 40);
  EXPECT_EQ(m.get_int("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_CONTAINS(error_of([&] { m.get_int("u64_huge"); }), "u64_huge: expected an integer below 2^63");
}

TEST(GgufMetadata, FloatsTakeIntegersToo) {
  const GgufMetadata m = sample();
  EXPECT_EQ(m.get_float("f32"), 0.5);
  EXPECT_EQ(m.get_float("f64"), 0.1);
  EXPECT_EQ(m.get_float("i16"), -300.0);
  EXPECT_EQ(*m.find_floats("f32s"), (std::vector<double>{0.25, -2.0}));
  EXPECT_EQ(*m.find_floats("i32s"), (std::vector<double>{-1, 2}));
}

TEST(GgufMetadata, AScalarReadsAsAnArrayOfOne) {
  const GgufMetadata m = sample();
  EXPECT_EQ(*m.find_ints("u8"), (std::vector<int64_t>{200}));
  EXPECT_EQ(*m.find_floats("f32"), (std::vector<double>{0.5}));
  EXPECT_EQ(*m.find_bools("bool"), (std::vector<bool>{true}));
  EXPECT_EQ(*m.find_strings("string"), (std::vector<std::string>{"text"}));
}

TEST(GgufMetadata, Arrays) {
  const GgufMetadata m = sample();
  EXPECT_EQ(*m.find_ints("u32s"), (std::vector<int64_t>{1, 4'000'000'000}));
  EXPECT_EQ(*m.find_bools("bools"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(*m.find_strings("strings"), (std::vector<std::string>{"a", ""}));
}

TEST(GgufMetadata, WrongTypesAreRefusedWithFileKeyAndBothTypes) {
  const GgufMetadata m = sample();
  const std::string message = error_of([&] { m.get_int("string"); });
  EXPECT_CONTAINS(message, "m.gguf: key string: expected an integer, got a string");
  EXPECT_CONTAINS(error_of([&] { m.get_int("f32"); }), "got f32");
  EXPECT_CONTAINS(error_of([&] { m.get_int("bool"); }), "got bool");
  EXPECT_CONTAINS(error_of([&] { m.get_int("u32s"); }), "got an array of u32");
  EXPECT_CONTAINS(error_of([&] { m.get_float("bool"); }), "got bool");
  EXPECT_CONTAINS(error_of([&] { m.get_float("strings"); }), "got an array of strings");
  EXPECT_CONTAINS(error_of([&] { m.get_string("u8"); }), "expected a string, got u8");
  EXPECT_CONTAINS(error_of([&] { m.find_bool("u8"); }), "expected a bool, got u8");
  EXPECT_CONTAINS(error_of([&] { m.find_ints("f32s"); }), "expected integers, got an array of f32");
  EXPECT_CONTAINS(error_of([&] { m.find_bools("u32s"); }), "expected bools");
  EXPECT_CONTAINS(error_of([&] { m.find_strings("u32s"); }), "expected strings");
}

TEST(GgufMetadata, MissingKeys) {
  const GgufMetadata m = sample();
  EXPECT_FALSE(m.has("none"));
  EXPECT_EQ(m.find_int("none"), std::nullopt);
  EXPECT_EQ(m.find_strings("none"), std::nullopt);
  EXPECT_CONTAINS(error_of([&] { m.get_string("none"); }), "m.gguf: key none is missing");
}

TEST(GgufMetadata, SetReplacesInPlace) {
  GgufMetadata m = sample();
  const size_t n = m.entries().size();
  m.set_string("u8", "now text");
  EXPECT_EQ(m.entries().size(), n);
  EXPECT_EQ(m.entries()[0].first, "u8");
  EXPECT_EQ(m.get_string("u8"), "now text");
}

}  // namespace
}  // namespace synod
