#include <nlohmann/json.hpp>

#include "text/grammar_testing.h"
#include "text/json_validator.h"

namespace synod::grammar_testing {
namespace {

using text_testing::RandomText;

std::shared_ptr<const Grammar> schema(std::string_view text, const JsonOptions& options = {}) {
  return Grammar::from_json_schema(text, small_vocabulary({}), options);
}

void expect_values(std::string_view text, const std::vector<std::string>& in,
                   const std::vector<std::string>& out, const JsonOptions& options = {}) {
  const auto grammar = schema(text, options);
  for (const std::string& value : in)
    EXPECT_EQ(verdict(grammar, value), Verdict::kMatch) << text << "\n" << value;
  for (const std::string& value : out)
    EXPECT_NE(verdict(grammar, value), Verdict::kMatch) << text << "\n" << value;
}

TEST(JsonSchema, TypesAndLiterals) {
  expect_values(R"({"type":"null"})", {"null"}, {"nul", "0"});
  expect_values(R"({"type":["boolean","integer"]})", {"true", "false", "0", "-12"},
                {"1.5", "\"a\"", "01", "-0"});
  expect_values(R"({"type":"integer"})", {"999999999999999999"},
                {"1000000000000000000"});  // fits every reader
  expect_values(R"({"type":"number"})", {"0", "-0.5", "12.25e-3", "1E+9"}, {"1.", ".5", "01", "1e", "+1"});
  expect_values(R"({"enum":[1,"a\"é",null,[1,{"b":2.5}],{}]})",
                {"1", "\"a\\\"é\"", "null", "[1,{\"b\":2.5}]", "[ 1, { \"b\" : 2.5 } ]", "{}", "{ }"},
                {"2", "[1]"});
  expect_values(R"({"const":-1.0})", {"-1"}, {"1", "-1.5"});
  expect_values(R"({"enum":[1,"a",true,7],"type":"integer","minimum":5})", {"7"}, {"1", "\"a\"", "true"});
  expect_values("true", {"null", "{\"a\":[1,\"x\",{}]}", "[[],{}]", "\" \\u00e9\\ud83d\\ude00\\n\""},
                {"\"\\ud83d\"", "\"\n\"", "\"\\x\"", "[1,]", "{\"a\"}", "{a:1}"});
}

TEST(JsonSchema, SpacesAreOptionalAndBounded) {
  const std::string_view text =
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}}})";
  expect_values(text,
                {"{\"a\":[1,2]}", "{ \"a\" : [ 1 , 2 ] }", "{\n  \"a\": [\n    1,\n    2\n  ]\n}", "{}",
                 "{\r\n\t\"a\": []}", " {}", "\n{}"},
                {"{\"a\":[1,2]}\n", "{\"a\"\n:[]}", "{\"a\":" + std::string(100, ' ') + "[]}"});
  expect_values(text, {"{\"a\":[1,2]}"}, {"{ \"a\":[1,2]}", "{\"a\": [1,2]}"}, {.spaces = false});
}

TEST(JsonSchema, ObjectsKeepTheClientsOrder) {
  const std::string_view text =
      R"({"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"null"},"m":{"const":true}},"required":["a"]})";
  expect_values(
      text, {"{\"z\":1,\"a\":null,\"m\":true}", "{\"a\":null}", "{\"a\":null,\"m\":true}"},
      {"{}", "{\"a\":null,\"z\":1}", "{\"z\":1}", "{\"a\":null,}", "{\"a\":null,\"b\":1}", "{,\"a\":null}"});
  expect_values(text, {"{\"m\":true,\"a\":null,\"z\":1}", "{\"a\":null,\"z\":1}", "{\"a\":null}"},
                {"{\"z\":1,\"m\":true}", "{\"a\":null,\"a\":null}"}, {.any_key_order = true});
}

TEST(JsonSchema, AdditionalPropertiesNeverShadowDeclaredOnes) {
  const std::string_view text =
      R"({"properties":{"id":{"type":"integer"},"idea":{"type":"null"}},"additionalProperties":{"type":"string"}})";
  expect_values(
      text,
      {"{\"id\":1,\"x\":\"y\"}", "{\"i\":\"\"}", "{\"ideas\":\"\"}", "{\"\":\"\"}",
       "{\"idea\":null,\"ide\":\"\",\"q\":\"\"}"},
      {"{\"id\":\"y\"}", "{\"idea\":\"\"}", "{\"x\":1}", "{\"x\":\"\",\"id\":\"\"}", "{\"\\u0069d\":\"\"}"});
  expect_values(
      R"({"type":"object","additionalProperties":{"type":"integer"},"propertyNames":{"pattern":"^[a-z]+$"},"maxProperties":2,"minProperties":1})",
      {"{\"a\":1}", "{\"a\":1,\"b\":2}"}, {"{}", "{\"A\":1}", "{\"a\":1,\"b\":2,\"c\":3}"});
  expect_values(R"({"type":"object"})", {"{}", "{\"a\":{\"b\":[]}}"}, {"[]"});
  expect_values(R"({"type":"object","required":["a"],"additionalProperties":{"type":"integer"}})",
                {"{\"a\":1}", "{\"a\":1,\"b\":2}"}, {"{}", "{\"b\":1}", "{\"a\":\"\"}"});
}

TEST(JsonSchema, ArraysCountTheirItems) {
  expect_values(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
                {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]", "[1,\"\"]"});
  expect_values(
      R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":1,"maxItems":3})",
      {"[1]", "[1,\"\"]", "[1,\"\",null]"}, {"[]", "[\"\"]", "[1,\"\",null,null]", "[1,null]"});
  expect_values(R"({"prefixItems":[{"type":"integer"}],"items":false})", {"[]", "[1]"}, {"[1,2]"});
  expect_values(R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"});
  expect_values(R"({"items":[{"const":1}],"additionalItems":{"const":2}})", {"[]", "[1]", "[1,2,2]"},
                {"[2]", "[1,1]"});
}

TEST(JsonSchema, StringsCountCharacters) {
  expect_values(R"({"type":"string","minLength":2,"maxLength":3})",
                {"\"ab\"", "\"\xF0\x9F\x98\x80\xC3\xA9\"", "\"\\n\\u00e9x\"", "\"\\ud83d\\ude00a\""},
                {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""});
  expect_values(R"({"pattern":"^[A-Z]{2}-\\d+$"})", {"\"AB-1\"", "\"XY-123\""},
                {"\"AB-\"", "\"aB-1\"", "\"AB-1 \""});
  expect_values(R"({"pattern":"b+"})", {"\"b\"", "\"abc\"", "\"\\\"b\\\\\""}, {"\"ac\"", "\"\""});
  expect_values(R"({"pattern":"^(?:a|\"|\\\\)*$"})", {"\"a\\\"\\\\\"", "\"\""}, {"\"\\u0061\"", "\"b\""});
  expect_values(R"({"pattern":"^[a-z]+$","minLength":2,"maxLength":4})", {"\"ab\"", "\"abcd\""},
                {"\"a\"", "\"abcde\"", "\"AB\""});
  expect_values(R"({"pattern":"^a?[^\\W\\d]*\\s.$|^\\u0041\\x42$","minLength":2})",
                {"\"a b\"", "\"AB\"", "\"x\\t\xC3\xA9\""}, {"\"ab\"", "\"1 b\"", "\"a \\n\""});
  expect_values(R"({"pattern":"^\\D\\W\\S$"})", {"\"a-b\"", "\"\xC3\xA9 \xC3\xA9\""},
                {"\"1-b\"", "\"\xD9\xA8-b\"", "\"ab-\"", "\"a\xC3\xA9-\"", "\"a-\xC2\xA0\""});
  expect_values(R"({"format":"date"})", {"\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\""},
                {"\"2023-02-29\"", "\"2023-04-31\"", "\"2023-13-01\"", "\"1900-02-29\""});
  expect_values(R"({"format":"date-time"})",
                {"\"2024-01-02T03:04:05Z\"", "\"2024-01-02T23:59:59.123+02:00\""},
                {"\"2024-01-02\"", "\"2024-01-02T24:00:00Z\"", "\"2024-01-02T03:04:05\""});
  expect_values(R"({"format":"time"})", {"\"03:04:05Z\""}, {"\"03:04Z\"", "\"33:04:05Z\""});
  expect_values(R"({"format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""});
  expect_values(R"({"format":"ipv4"})", {"\"127.0.0.1\"", "\"255.249.199.99\""},
                {"\"256.0.0.1\"", "\"1.2.3\"", "\"1.2.3.4.\""});
  expect_values(R"({"type":"string","format":"uri"})", {"\"anything\""}, {"1"});
}

// Every decimal with few digits around the bounds, against plain arithmetic.
TEST(JsonSchema, NumberBoundsAreExact) {
  struct Case {
    const char* keywords;
    double low, high;
    bool low_open, high_open;
  };
  constexpr double kFar = 1e9;
  const Case cases[] = {{"\"minimum\":0", 0, kFar, false, false},
                        {"\"exclusiveMinimum\":0", 0, kFar, true, false},
                        {"\"minimum\":-5,\"maximum\":17", -5, 17, false, false},
                        {"\"minimum\":-12.5,\"exclusiveMaximum\":-0.25", -12.5, -0.25, false, true},
                        {"\"exclusiveMinimum\":9.9,\"maximum\":101.05", 9.9, 101.05, true, false},
                        {"\"maximum\":7", -kFar, 7, false, false},
                        {"\"minimum\":1e2,\"maximum\":1.2e2", 100, 120, false, false},
                        {"\"minimum\":0.05,\"maximum\":0.5", 0.05, 0.5, false, false},
                        {"\"minimum\":3,\"exclusiveMaximum\":3", 4, 3, false, false}};
  for (const Case& c : cases) {
    for (const bool whole : {true, false}) {
      const std::string text =
          fmt::format("{{\"type\":\"{}\",{}}}", whole ? "integer" : "number", c.keywords);
      std::shared_ptr<const Grammar> grammar;
      try {
        grammar = schema(text);
      } catch (const Error&) {
        // No value at all: only where arithmetic agrees.
        EXPECT_GT(whole ? std::ceil(c.low) : c.low,
                  whole ? std::floor(c.high) - (c.high_open && c.high == std::floor(c.high)) : c.high)
            << text;
        continue;
      }
      for (int hundredths = -1400; hundredths <= 12'500;
           hundredths += hundredths % 100 == 0 || std::abs(hundredths) < 60 ? 1 : 5) {
        const std::string sign = hundredths < 0 ? "-" : "";
        const int magnitude = std::abs(hundredths);
        std::string number = sign + std::to_string(magnitude / 100);
        if (magnitude % 100 != 0) number += fmt::format(".{:02d}", magnitude % 100);
        if (magnitude % 10 == 0 && magnitude % 100 != 0) number.pop_back();
        const double value = std::stod(number);
        const bool inside = (c.low_open ? value > c.low : value >= c.low) &&
                            (c.high_open ? value < c.high : value <= c.high) &&
                            (!whole || magnitude % 100 == 0);
        ASSERT_EQ(verdict(grammar, number) == Verdict::kMatch, inside) << text << " " << number;
      }
    }
  }
}

TEST(JsonSchema, AlternativesAndReferences) {
  expect_values(R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"5", "\"a\""},
                {"\"ab\"", "null"});
  expect_values(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
      {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"}, {"{}"});
  expect_values(
      R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}}})",
      {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
      {"{\"v\":1}", "{\"v\":1,\"next\":1}"});
  expect_values(R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
  expect_values(R"({"$defs":{"a~/b c":{"const":1}},"$ref":"#/$defs/a~0~1b%20c"})", {"1"}, {"2"});
  expect_values(
      R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":3},"b":{"const":0}}}],"maxProperties":2})",
      {"{\"a\":3}", "{\"a\":5,\"b\":0}"}, {"{\"a\":2}", "{\"b\":0}"});
  expect_values(
      R"({"allOf":[{"properties":{"a":true},"additionalProperties":false},{"properties":{"b":true}}]})",
      {"{}", "{\"a\":1}"}, {"{\"b\":1}"});
  expect_values(R"({"allOf":[{"enum":[1,2,3]},{"enum":[3,2,9]}]})", {"2", "3"}, {"1", "9"});
  expect_values(
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]},{"type":"string"}]})",
      {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\"}", "\"s\""}, {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}"});
}

TEST(JsonSchema, RefusalsNameThePointer) {
  const auto expect = [](std::string_view text, std::string_view part) {
    const std::string message = usage_message([&] { schema(text); });
    EXPECT_NE(message.find(part), std::string::npos) << text << "\n" << message;
  };
  expect(R"({"properties":{"a/b":{"items":{"not":{}}}}})",
         "#/properties/a~1b/items/not: not is not supported");
  expect(R"({"if":{},"then":{}})", "#/if");
  expect(R"({"patternProperties":{}})", "#/patternProperties");
  expect(R"({"anyOf":[{"type":"array","uniqueItems":true}]})", "#/anyOf/0/uniqueItems");
  expect(R"({"type":"integer","multipleOf":5})", "#/multipleOf");
  expect(R"({"type":"strin"})", "#/type: expected null");
  expect(R"({"type":"string","minLength":-1})", "#/minLength: expected a whole number");
  expect(R"({"type":"string","pattern":"(?=a)b"})", "#/pattern: the pattern");
  expect(R"({"type":"string","pattern":"(a)\\1"})", "back-references");
  expect(R"({"$ref":"http://x/y"})", "#/$ref: only references within");
  expect(R"({"$ref":"#/nowhere"})", "leads nowhere");
  expect(R"({"$ref":"#"})", "refers to itself");
  expect(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself");
  expect(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
         "refers to itself");
  expect(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "#/oneOf: alternatives 0 and 1");
  expect(R"({"oneOf":[{"type":"string"},{"required":["a"]}]})", "#/oneOf: alternatives 0 and 1");
  expect(R"({"type":"object","minProperties":3})", "minProperties");
  expect(R"({"required":"a"})", "#/required");
  expect(R"({"items":3})", "#/items: a schema is an object");
  expect(R"({"a":1,"a":2})", "'a' is given twice");
  expect("{\"type\":", "not valid JSON");
  expect("", "not valid JSON");
  expect("false", "nothing matches");
  expect(R"({"type":"object","properties":{"a":false},"required":["a"]})", "nothing matches");
}

TEST(JsonSchema, BombsFailFast) {
  std::string deep, deep_end, wide = "{\"enum\":[", refs = "{\"$defs\":{", product = "{\"allOf\":[";
  for (int i = 0; i < 100'000; ++i) deep += "{\"items\":", deep_end += "}";
  for (int i = 0; i < 120'000; ++i) wide += std::to_string(i) + ",";
  for (int i = 0; i < 5'000; ++i) refs += fmt::format("\"d{}\":{{\"$ref\":\"#/$defs/d{}\"}},", i, i + 1);
  refs += "\"d5000\":{}},\"$ref\":\"#/$defs/d0\"}";
  for (int i = 0; i < 40; ++i) product += "{\"anyOf\":[{\"minimum\":1},{\"maximum\":2}]},";
  product += "{}]}";
  const double taken = text_testing::seconds([&] {
    EXPECT_NE(usage_message([&] { schema(deep + "true" + deep_end); }).find("nested deeper"),
              std::string::npos);
    schema(wide + "0]}");
    EXPECT_NE(usage_message([&] { schema(refs); }).find("in a row"), std::string::npos);
    usage_message([&] { schema(product); });
    usage_message([] { schema(R"({"type":"string","minLength":1000000,"maxLength":1000000})"); });
    usage_message([] {
      schema(R"({"type":"string","pattern":"^((a{1,99999}){1,99999}b){1,99999}$","maxLength":90000})");
    });
    usage_message([] { schema(R"({"type":"string","pattern":"^a{1,1000000}$"})"); });
    schema(R"({"type":"string","maxLength":1000000000})");
    schema(
        R"({"type":"array","items":{"type":"array","items":{"type":"string","maxLength":50000},"maxItems":50000},"maxItems":50000})");
  });
  if (text_testing::kTimingCounts) {
    EXPECT_LT(taken, 5.0);
  }
  std::string names = "{\"properties\":{";
  for (int i = 0; i < 3'000; ++i) names += fmt::format("\"name{}\":{{\"type\":\"integer\"}},", i);
  names += "\"z\":true},\"additionalProperties\":true}";
  GrammarState state(schema(names));
  for (const char c : std::string_view("{\"name2999\":5,\"name30000\":[]}"))
    ASSERT_TRUE(state.accept(kFirstByte + uint8_t(c)));
  EXPECT_TRUE(state.is_complete());
}

const char* const kWalked[] = {
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string","maxLength":3},"maxItems":2}},"required":["name"]})",
    R"({"type":"array","items":{"anyOf":[{"type":"null"},{"type":"number","minimum":-1.5,"exclusiveMaximum":2}]},"minItems":1,"maxItems":3})",
    R"({"type":"object","additionalProperties":{"type":"boolean"},"maxProperties":2})",
    R"({"type":"object","properties":{"a":{"enum":["x","xy",1,null]}},"additionalProperties":{"type":"integer"}})",
    R"({"$defs":{"t":{"type":"object","properties":{"l":{"$ref":"#/$defs/t"},"v":{"type":"boolean"}},"required":["v"],"additionalProperties":false}},"$ref":"#/$defs/t"})",
    R"({"type":"string","pattern":"^[a-c]*([0-9]|\")?$","maxLength":5})",
    R"({"type":["string","null"],"minLength":1,"maxLength":2})",
    R"({"oneOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},{"type":"object","properties":{"k":{"const":2},"z":{}},"required":["k"]}]})",
    R"({"prefixItems":[{"type":"boolean"},{"type":"integer","exclusiveMinimum":-3,"maximum":3}],"items":{"const":"e"},"minItems":2,"maxItems":4})",
    R"({})"};

TEST(JsonSchema, RandomWalksMatchThePlainMatcherAndAValidator) {
  RandomText random(11);
  const std::vector<std::string> alphabet{"\"",   "a",    "{",   "}",   ":",    ",",  " ", "[",
                                          "]",    "1",    "0",   ".",   "-",    "\\", "x", "\xC3\xA9",
                                          "true", "null", "\",", "\":", "name", "\n"};
  size_t n_complete = 0, n_walks = 0;
  for (const char* text : kWalked) {
    const JsonValidator validator(nlohmann::json::parse(text));
    for (int round = 0; round < 2; ++round) {
      const auto vocabulary = random_vocabulary(random, alphabet, 150);
      GrammarBuilder builder;
      const Term root = builder.json_schema(text, {.any_key_order = round == 1});
      const auto grammar = builder.build(root, vocabulary);
      compare_walk(grammar, builder.tree(), root, random, 12, round == 1);
      ASSERT_FALSE(HasFailure()) << text;
      for (int walk = 0; walk < 60; ++walk) {
        ++n_walks;
        GrammarState state(grammar);
        std::string value;
        for (int step = 0; step < 60 && !state.is_finished(); ++step) {
          const auto ids = allowed_ids(state, *vocabulary);
          ASSERT_FALSE(ids.empty()) << text << "\n" << value;
          int32_t id = ids[random.below(ids.size())];
          // Long walks head for the end.
          if (ids[0] == kStop && random.below(2) == 0) id = kStop;
          if (step > 25) {
            for (const char close : std::string_view("\"]}")) {
              if (state.allows(kFirstByte + close)) id = kFirstByte + close;
            }
          }
          ASSERT_TRUE(state.accept(id));
          value += vocabulary->bytes_of(id);
        }
        if (!state.is_complete()) continue;
        ++n_complete;
        const auto parsed = nlohmann::json::parse(value, nullptr, false);
        ASSERT_FALSE(parsed.is_discarded()) << text << "\n" << value;
        ASSERT_TRUE(validator.valid(parsed)) << text << "\n" << value;
      }
    }
  }
  std::printf("%zu of %zu walks complete and valid\n", n_complete, n_walks);
  EXPECT_GT(n_complete, n_walks / 2);
}

}  // namespace
}  // namespace synod::grammar_testing
