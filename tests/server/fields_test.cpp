// Strict reading: what is refused, and that the complaint names the field.
#include "server/fields.h"

#include <gtest/gtest.h>

namespace synod::server {
namespace {

template <typename F>
ApiError error_of(F&& f) {
  try {
    f();
  } catch (const ApiError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was refused";
  return {0, ""};
}

TEST(Fields, NullAndAbsentAreTheSame) {
  const Json body = parse_json(R"({"a": null})");
  const Fields fields(body);
  EXPECT_FALSE(fields.has("a"));
  EXPECT_FALSE(fields.has("b"));
  EXPECT_EQ(fields.integer("a", 0, 5), std::nullopt);
}

TEST(Fields, IntegersOutOfRangeOrTypeNameTheField) {
  for (const char* value : {"\"\"", "\"5\"", "-1", "6", "1e9", "9223372036854775808", "18446744073709551616",
                            "1.5", "true", "[]", "{}", "-9223372036854775809", "1e300"}) {
    const Json body = parse_json(fmt::format(R"({{"x": {{"n": {}}}}})", value));
    const ApiError error = error_of([&] { Fields(body).object("x")->integer("n", 0, 5); });
    EXPECT_EQ(error.status, 400) << value;
    EXPECT_EQ(error.param, "x.n") << value;
  }
  const Json body = parse_json(R"({"n": 5.0})");
  EXPECT_EQ(Fields(body).integer("n", 0, 5), 5);
}

TEST(Fields, NumbersMustBeFiniteAndInRange) {
  for (const char* value : {"\"NaN\"", "\"0.5\"", "-0.1", "2.1", "1e308", "false"}) {
    const Json body = parse_json(fmt::format(R"({{"t": {}}})", value));
    EXPECT_EQ(error_of([&] { Fields(body).number("t", 0, 2); }).param, "t") << value;
  }
}

TEST(Fields, WhatIsNotJsonIsRefused) {
  const std::string deep(100'000, '[');
  std::string closed = deep + std::string(100'000, ']');
  for (const std::string& text :
       {std::string(), std::string("  "), std::string("{"), std::string("{\"a\": NaN}"),
        std::string("{\"a\": 01}"), std::string("{\"a\": \"\xff\xfe\"}"),
        std::string("{\"a\": \"\xed\xa0\x80\"}"), std::string("{}\0{}", 5), deep, closed,
        std::string("{\"a\": 1e999}"), std::string("{\"a\":1}}")}) {
    EXPECT_EQ(error_of([&] { parse_json(text); }).status, 400) << text.substr(0, 40);
  }
}

TEST(Fields, TooManyValuesOrMembersAreRefusedBeforeTheyAreStored) {
  std::string values = "[1";
  for (int i = 0; i < 2'100'000; ++i) values += ",1";
  EXPECT_EQ(error_of([&] { parse_json(values + "]"); }).status, 400);
  // Ordered objects compare every new key with all others.
  std::string members = "{\"k\":1";
  for (int i = 0; i < 100'000; ++i) members += ",\"k" + std::to_string(i) + "\":1";
  EXPECT_EQ(error_of([&] { parse_json(members + "}"); }).status, 400);
  std::string ids = "[1";
  for (int i = 0; i < 1'000'000; ++i) ids += ",1";
  EXPECT_EQ(parse_json(ids + "]").size(), 1'000'001U);
}

TEST(Fields, RefuseIfSetLetsOffValuesPass) {
  const Json off = parse_json(R"({"a": 0, "b": false, "c": "", "d": [], "e": null})");
  for (const char* key : {"a", "b", "c", "d", "e"}) EXPECT_NO_THROW(Fields(off).refuse_if_set(key, "no"));
  const Json on = parse_json(R"({"a": 1, "b": true, "c": "x", "d": [0]})");
  for (const char* key : {"a", "b", "c", "d"}) {
    EXPECT_EQ(error_of([&] { Fields(on).refuse_if_set(key, "no"); }).param, key);
  }
}

TEST(Fields, ShownValuesAreShortAndWhole) {
  const std::string text = shown(Json(std::string(200, 'x') + "\u00e4"));
  EXPECT_LT(text.size(), 100U);
  EXPECT_EQ(shown(parse_json("[1,2]")), "an array of 2 items");
}

}  // namespace
}  // namespace synod::server
