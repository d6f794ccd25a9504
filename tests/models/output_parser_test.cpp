// What both families' models write, cut at every byte, damaged, cut off and hostile.
#include "models/output_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "models/deepseek4/deepseek4.h"
#include "models/dialogue.h"
#include "models/gemma4/gemma4.h"

namespace synod {
namespace {

using Kind = OutputEvent::Kind;
using Events = std::vector<OutputEvent>;

struct Family {
  std::string name;
  Tokenizer tokenizer;
  std::unique_ptr<Dialogue> dialogue;

  std::vector<int32_t> prompt(const std::string& text) const { return tokenizer.encode(text, true); }
  std::unique_ptr<OutputParser> parser(const std::string& prompt_text = "",
                                       const OutputParserOptions& options = {}) const {
    return dialogue->output_parser(tokenizer, prompt(prompt_text), options);
  }
};

Tokenizer mini(const std::string& name) {
  const std::string path = SYNOD_SOURCE_DIR "/tests/data/tokenizer/" + name + ".tokenizer.json";
  return Tokenizer(tokenizer_data_from_json(read_text_file(path), path), path);
}

// Bytes only: every marker is spelled.
Tokenizer bytes_only() {
  TokenizerData data;
  data.pieces.emplace_back("<unk>");
  data.kinds.push_back(TokenKind::kUnknown);
  for (int byte = 0; byte < 256; ++byte) {
    data.pieces.push_back(fmt::format("<0x{:02X}>", byte));
    data.kinds.push_back(TokenKind::kByte);
  }
  data.unk = 0;
  return Tokenizer(std::move(data), "bytes");
}

const Family& gemma() {
  static const Family family{"gemma4", mini("gemma4-mini"), gemma4::architecture().dialogue()};
  return family;
}
const Family& deepseek() {
  static const Family family{"deepseek4", mini("deepseek4-mini"), deepseek4::architecture().dialogue()};
  return family;
}
const Family& spelled_gemma() {
  static const Family family{"gemma4, spelled", bytes_only(), gemma4::architecture().dialogue()};
  return family;
}
const Family& spelled_deepseek() {
  static const Family family{"deepseek4, spelled", bytes_only(), deepseek4::architecture().dialogue()};
  return family;
}

// Adjacent text of one kind is one event, however it came.
Events merged(const Events& events) {
  Events result;
  for (const OutputEvent& event : events) {
    const bool joins = event.kind == Kind::kContent || event.kind == Kind::kReasoning ||
                       event.kind == Kind::kToolCallArguments;
    if (joins && !result.empty() && result.back().kind == event.kind &&
        result.back().tool_call == event.tool_call) {
      result.back().text += event.text;
    } else {
      result.push_back(event);
    }
  }
  return result;
}

// An output as a parser gets it: special tokens as ids, the rest as bytes.
struct Segment {
  int32_t id = -1;
  std::string bytes;
};

std::vector<Segment> segments(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<Segment> result;
  for (const int32_t id : tokenizer.encode(text, true)) {
    const TokenKind kind = tokenizer.kind(id);
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUserDefined;
    if (special) {
      result.push_back({id, ""});
    } else {
      if (result.empty() || result.back().id >= 0) result.push_back({});
      result.back().bytes += tokenizer.bytes_of(id);
    }
  }
  return result;
}

size_t text_bytes(const std::vector<Segment>& all) {
  size_t n = 0;
  for (const Segment& segment : all) n += segment.bytes.size();
  return n;
}

// Feeds the text cut where `cuts` (positions in all of its bytes, ascending) say.
Events fed(OutputParser& parser, const std::vector<Segment>& all, const std::vector<size_t>& cuts,
           bool complete = true) {
  Events events;
  size_t at = 0;
  size_t next = 0;
  for (const Segment& segment : all) {
    if (segment.id >= 0) {
      parser.push(segment.id, events);
      continue;
    }
    size_t begin = 0;
    while (next < cuts.size() && cuts[next] <= at + segment.bytes.size()) {
      const size_t cut = std::max(cuts[next++], at) - at;
      parser.push_text(std::string_view(segment.bytes).substr(begin, cut - begin), events);
      begin = cut;
    }
    parser.push_text(std::string_view(segment.bytes).substr(begin), events);
    at += segment.bytes.size();
  }
  parser.finish(complete, events);
  return merged(events);
}

ParsedOutput parsed(const Family& family, const std::string& text, const std::string& prompt = "",
                    const OutputParserOptions& options = {}, bool complete = true) {
  const auto parser = family.parser(prompt, options);
  return collect(fed(*parser, segments(family.tokenizer, text), {}, complete));
}

using Calls = std::vector<ParsedToolCall>;

const std::string kGemmaCall = "<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>}<tool_call|>";
const std::string kBlock = "\n\n<｜DSML｜tool_calls>\n";
const std::string kEndBlock = "\n</｜DSML｜tool_calls>";

std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + parameters + "\n</｜DSML｜invoke>";
}
std::string parameter(const std::string& name, bool is_string, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" +
         value + "</｜DSML｜parameter>";
}

// Outputs of all kinds, good and bad: what matters to the cutting tests is variety.
std::vector<std::string> gemma_outputs() {
  return {
      "In the beginning God created the heaven and the earth.<turn|>",
      "<|channel>thought\nThe user asks for the meaning of heat. It is a noun.<channel|>heat (noun): a form "
      "of energy<turn|>",
      "<|channel>thought\n\nfirst\n\nsecond\n<channel|>\n\nDone \U0001F976 é.<turn|>",
      kGemmaCall + "<|tool_response>",
      "Let me "
      "see.<|tool_call>call:f{a:{b:[1,2.5,true,null,<|\"|>\U0001F976<|\"|>],c:<|\"|>x}y,z:\"q\"\n<|\"|>},d:-"
      "3}<tool_call|>"
      "<|tool_call>call:g{}<tool_call|><|tool_response>",
      "<|channel>thought\nI call" + kGemmaCall + "<|tool_response>",
      "<|tool_call>call:f{a:<|\"|>never closed}<tool_call|> and text",
      "<|tool_call>call:f{a:1}",
      "<|tool_call>nonsense<tool_call|>text<|tool_call>call:f{a b}<tool_call|>",
      "thought\nno marker",
      "a<channel|>b<|channel>other\nname<channel|>c<|\"|>d",
      "<|channel>thought<channel|>x<|channel>",
      "values end in prefixes: <|tool_call>call:f{s:<|\"|><|tool_cal<|<|\"|>}<tool_call|>",
  };
}

std::vector<std::string> deepseek_outputs() {
  return {
      "In the beginning God created the heaven and the earth.<｜end▁of▁sentence｜>",
      "The user asks for the meaning of heat.</think>heat (noun): a form of energy<｜end▁of▁sentence｜>",
      kBlock + invoke("get_weather", parameter("city", true, "Oslo")) + kEndBlock + "<｜end▁of▁sentence｜>",
      "Text é \U0001F976\n\n" + kBlock +
          invoke("f", parameter("a", true, "x < y </ </p> \"q\"\n") + "\n" +
                          parameter("n", false, "[1, {\"b\": 2.50}]")) +
          "\n" + invoke("g", "") + kEndBlock + "<｜end▁of▁sentence｜>",
      "unclosed reasoning" + kBlock + invoke("f", parameter("a", false, "1")) + kEndBlock,
      kBlock + "<｜DSML｜invoke name=\"f\">\n" + parameter("a", true, "1") + "\n",
      kBlock + "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">cut off",
      kBlock + invoke("f", parameter("a", true, "1") + parameter("a", true, "2")) + kEndBlock,
      kBlock + invoke("f", "junk " + parameter("a", true, "1")) + kEndBlock + " trailing words",
      "a < b </ c <｜DSML｜ d <｜DSML｜unknown> e ｜DSML｜ f\n\n<\n\n\n<",
      "<think>again</think>done</think>",
      kBlock + invoke("f", parameter("a", true, "value ends in \n\n<") + parameter("b", false, "not json")) +
          kEndBlock + "\n\n",
      invoke("bare", parameter("p", true, "</think>")),
  };
}

// Cut at every byte, and at random places, must give what the whole gives, with and without streamed
// arguments.
void expect_cuts_do_not_matter(const Family& family, const std::vector<std::string>& outputs,
                               const std::string& prompt) {
  std::mt19937 random(1);
  size_t n_cuts = 0;
  for (const std::string& text : outputs) {
    for (const bool stream : {true, false}) {
      const OutputParserOptions options{.stream_arguments = stream};
      const std::vector<Segment> all = segments(family.tokenizer, text);
      const Events whole = fed(*family.parser(prompt, options), all, {});
      const size_t n = text_bytes(all);
      for (size_t cut = 0; cut <= n; ++cut, ++n_cuts) {
        ASSERT_EQ(fed(*family.parser(prompt, options), all, {cut}), whole)
            << family.name << ": " << text << " at " << cut;
      }
      for (int round = 0; round < 50; ++round, ++n_cuts) {
        std::vector<size_t> cuts;
        for (size_t i = 0; i <= n; ++i) {
          if (random() % (1 + static_cast<unsigned>(round)) == 0) cuts.push_back(i);
        }
        ASSERT_EQ(fed(*family.parser(prompt, options), all, cuts), whole) << family.name << ": " << text;
      }
      // By tokens, as they come from the model.
      const auto parser = family.parser(prompt, options);
      Events events;
      for (const int32_t id : family.tokenizer.encode(text, true)) parser->push(id, events);
      parser->finish(true, events);
      ASSERT_EQ(merged(events), whole) << family.name << ": " << text;
    }
  }
  std::printf("%s: %zu outputs, %zu cuts\n", family.name.c_str(), outputs.size(), n_cuts);
}

TEST(OutputParser, CutsDoNotMatter) {
  expect_cuts_do_not_matter(gemma(), gemma_outputs(), "");
  expect_cuts_do_not_matter(gemma(), gemma_outputs(), "<|tool_response>x<tool_response|>");
  expect_cuts_do_not_matter(spelled_gemma(), gemma_outputs(), "");
  for (const std::string prompt : {"<｜Assistant｜><think>", "<｜Assistant｜></think>"}) {
    expect_cuts_do_not_matter(deepseek(), deepseek_outputs(), prompt);
    expect_cuts_do_not_matter(spelled_deepseek(), deepseek_outputs(), prompt);
  }
}

// Calls are JSON, text is UTF-8, and no marker shows, whatever was written.
void expect_sound(const Family& family, const Events& events, const std::vector<std::string>& markers) {
  for (const ParsedToolCall& call : collect(events).tool_calls) {
    EXPECT_TRUE(nlohmann::json::accept(call.arguments)) << family.name << ": " << call.name << call.arguments;
  }
  int32_t open = -1;
  for (const OutputEvent& event : events) {
    EXPECT_NO_THROW(static_cast<void>(nlohmann::json(event.text).dump())) << family.name << ": damaged UTF-8";
    if (event.kind == Kind::kToolCallBegin) {
      EXPECT_EQ(open, -1);
      open = event.tool_call;
    } else if (event.kind == Kind::kToolCallArguments) {
      EXPECT_EQ(open, event.tool_call);
    } else if (event.kind == Kind::kToolCallEnd || event.kind == Kind::kToolCallError) {
      EXPECT_EQ(open, event.tool_call);
      open = -1;
    }
    if (event.kind == Kind::kToolCallArguments) continue;  // strings may mean a marker
    for (const std::string& marker : markers) {
      EXPECT_EQ(event.text.find(marker), std::string::npos)
          << family.name << ": " << marker << " in " << event.text;
    }
  }
  EXPECT_EQ(open, -1);
}

TEST(OutputParser, AnyTokensGiveSoundEvents) {
  std::mt19937 random(2);
  const std::vector<std::string> words = {"call:f{",     "a:",
                                          "}",           "]",
                                          "[",           ",",
                                          "\n",          "thought\n",
                                          "\"",          "1",
                                          "x",           "<",
                                          "</",          ">",
                                          "tool_calls>", "invoke name=\"f\">",
                                          "invoke>",     "parameter name=\"a\" string=\"true\">",
                                          "parameter>",  "parameter name=\"b\" string=\"false\">",
                                          "\U0001F976",  "\xf0\x9f",
                                          "null",        "{"};
  for (const Family* family : {&gemma(), &deepseek()}) {
    std::vector<int32_t> special;
    for (int32_t id = 0; id < 20; ++id) special.push_back(id);
    std::vector<std::string> markers = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
                                        "<|\"|>",     "<|turn>",    "<turn|>"};
    if (family == &deepseek()) markers = {"｜DSML｜", "<｜User｜>", "<｜end▁of▁sentence｜>"};
    for (int round = 0; round < 3000; ++round) {
      const OutputParserOptions options{
          .stream_arguments = round % 2 == 0, .max_tool_calls = 2, .max_call_bytes = 200, .max_depth = 4};
      const auto parser = family->parser(round % 3 == 0 ? "<think>" : "", options);
      Events events;
      for (int i = 0; i < 40; ++i) {
        if (random() % 2 == 0) {
          parser->push(special[random() % special.size()], events);
        } else {
          parser->push_text(words[random() % words.size()], events);
        }
      }
      parser->finish(random() % 2 == 0, events);
      expect_sound(*family, events, markers);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(OutputParser, GemmaChannels) {
  ParsedOutput output = parsed(gemma(), "<|channel>thought\nWhy.\n<channel|>Because.<turn|>ignored");
  EXPECT_EQ(output, (ParsedOutput{"Because.", "Why.", {}}));
  // The prompt may have opened the channel, or end in a tool's response.
  EXPECT_EQ(parsed(gemma(), "Why.<channel|>So.", "<|turn>model\n<|channel>thought\n"),
            (ParsedOutput{"So.", "Why.", {}}));
  EXPECT_EQ(parsed(gemma(), "thought\nWhy.<channel|>So.", "<tool_response|>"),
            (ParsedOutput{"So.", "Why.", {}}));
  EXPECT_EQ(parsed(gemma(), "thoughtful", "<tool_response|>").content, "thoughtful");
  EXPECT_EQ(parsed(gemma(), "thought\nx").content, "thought\nx");
  EXPECT_EQ(parsed(gemma(), "a<channel|>b").content, "ab");
  EXPECT_EQ(parsed(gemma(), "<|channel>final\nx<channel|>y"), (ParsedOutput{"y", "final\nx", {}}));
}

TEST(OutputParser, GemmaCalls) {
  EXPECT_EQ(parsed(gemma(), "Hm." + kGemmaCall + "<|tool_response>"),
            (ParsedOutput{"Hm.", "", {{"get_weather", R"({"city":"Oslo"})"}}}));
  const std::string syntax =
      "<|tool_call>call:f{ a : {b:[1,2.5,true,null,None],c:<|\"|>x}y,z:\"q\"\\\n<|\"|>}, "
      "d:-3,e:[],\"k\":\"plain\","
      "<|\"|>q<|\"|>:word,}<tool_call|>";
  EXPECT_EQ(
      parsed(gemma(), syntax).tool_calls,
      (Calls{
          {"f",
           R"({"a":{"b":[1,2.5,true,null,null],"c":"x}y,z:\"q\"\\\n"},"d":-3,"e":[],"k":"plain","q":"word"})"}}));
  // A call ends unclosed reasoning; a missing closer is forgiven, an unfinished value is not.
  EXPECT_EQ(parsed(gemma(), "<|channel>thought\nI call" + kGemmaCall),
            (ParsedOutput{"", "I call", {{"get_weather", R"({"city":"Oslo"})"}}}));
  EXPECT_EQ(parsed(gemma(), "<|tool_call>call:f{a:1}<turn|>").tool_calls, (Calls{{"f", R"({"a":1})"}}));
  EXPECT_EQ(parsed(gemma(), "<|tool_call>call:f{a:1}" + kGemmaCall).tool_calls.size(), 2U);
}

TEST(OutputParser, WhatIsNoCallIsContent) {
  for (const bool stream : {true, false}) {
    const OutputParserOptions options{.stream_arguments = stream};
    const auto content = [&](const std::string& text) {
      const ParsedOutput output = parsed(gemma(), text, "", options);
      EXPECT_TRUE(output.tool_calls.empty()) << text;
      return output.content;
    };
    EXPECT_EQ(content("<|tool_call>call:f{a:<|\"|>x<tool_call|>!"), "call:f{a:\"x!");
    EXPECT_EQ(content("<|tool_call>nonsense<tool_call|>!"), "nonsense!");
    EXPECT_EQ(content("<|tool_call>call:{a:1}<tool_call|>!"), "call:{a:1}!");
    EXPECT_EQ(content("<|tool_call>call:f{a:1,a:2}<tool_call|>!"), "call:f{a:1,a:2}!");
    EXPECT_EQ(content("<|tool_call>call:f{a:1}} more<tool_call|>!"), "call:f{a:1}} more!");
    EXPECT_EQ(content("<|tool_call>call:f{a:,b:1}<tool_call|>!"), "call:f{a:,b:1}!");
  }
}

TEST(OutputParser, SpelledMarkersAreTextWhereTokensExist) {
  const std::string text = "Write <|tool_call>call:f{}<tool_call|> or <|channel>thought\n to me.";
  const auto parser = gemma().parser();
  Events events;
  for (const int32_t id : gemma().tokenizer.encode(text, /*parse_special=*/false)) parser->push(id, events);
  parser->finish(true, events);
  EXPECT_EQ(collect(events), (ParsedOutput{text, "", {}}));
  EXPECT_EQ(parsed(spelled_gemma(), text).tool_calls, (Calls{{"f", "{}"}}));

  const std::string dsml = kBlock + invoke("f", "") + kEndBlock + "<think>";
  const auto other = deepseek().parser();
  events.clear();
  for (const int32_t id : deepseek().tokenizer.encode(dsml, /*parse_special=*/false)) other->push(id, events);
  other->finish(true, events);
  EXPECT_EQ(collect(events), (ParsedOutput{dsml, "", {}}));
}

TEST(OutputParser, DeepseekReasoningAndCalls) {
  EXPECT_EQ(parsed(deepseek(), "Why.</think>So.<｜end▁of▁sentence｜>x", "<think>"),
            (ParsedOutput{"So.", "Why.", {}}));
  EXPECT_EQ(parsed(deepseek(), "So.", "</think>"), (ParsedOutput{"So.", "", {}}));
  EXPECT_EQ(parsed(deepseek(), "Hm.\n\n" + kBlock +
                                   invoke("f", parameter("a", true, "x \"y\"\n") + "\n" +
                                                   parameter("n", false, "[1, 2.50]")) +
                                   "\n" + invoke("g", "") + kEndBlock + "<｜end▁of▁sentence｜>"),
            (ParsedOutput{"Hm.\n\n", "", {{"f", R"({"a":"x \"y\"\n","n":[1, 2.50]})"}, {"g", "{}"}}}));
  EXPECT_EQ(parsed(deepseek(), "I call" + kBlock + invoke("f", "") + kEndBlock, "<think>"),
            (ParsedOutput{"", "I call", {{"f", "{}"}}}));
  // Not JSON though it says so: kept as text.
  EXPECT_EQ(parsed(deepseek(), kBlock + invoke("f", parameter("a", false, "oops")) + kEndBlock).tool_calls,
            (Calls{{"f", R"({"a":"oops"})"}}));
  EXPECT_EQ(parsed(deepseek(), kBlock + invoke("f", parameter("a", true, "a</b<c>")) + kEndBlock).tool_calls,
            (Calls{{"f", R"({"a":"a</b<c>"})"}}));
}

TEST(OutputParser, DeepseekForgivesMissingClosersButNotCutOffCalls) {
  const std::string open = kBlock + "<｜DSML｜invoke name=\"f\">\n" + parameter("a", true, "1") + "\n";
  EXPECT_EQ(parsed(deepseek(), open).tool_calls, (Calls{{"f", R"({"a":"1"})"}}));
  EXPECT_EQ(parsed(deepseek(), open + invoke("g", "")).tool_calls.size(), 2U);
  for (const bool stream : {true, false}) {
    const ParsedOutput cut = parsed(deepseek(), open, "", {.stream_arguments = stream}, /*complete=*/false);
    EXPECT_TRUE(cut.tool_calls.empty());
    EXPECT_NE(cut.content.find("name=\"a\" string=\"true\">1"), std::string::npos) << cut.content;
    const ParsedOutput twice = parsed(
        deepseek(),
        kBlock + invoke("f", parameter("a", true, "1") + parameter("a", true, "two words")) + kEndBlock, "",
        {.stream_arguments = stream});
    EXPECT_TRUE(twice.tool_calls.empty());
    EXPECT_NE(twice.content.find("two words"), std::string::npos) << twice.content;
  }
}

TEST(OutputParser, StreamsArgumentsAsTheyCome) {
  const auto parser = gemma().parser();
  Events events;
  const auto& tokenizer = gemma().tokenizer;
  parser->push(*tokenizer.find("<|tool_call>"), events);
  parser->push_text("call:f", events);
  EXPECT_TRUE(events.empty());
  parser->push_text("{a:", events);
  EXPECT_EQ(events, (Events{{Kind::kToolCallBegin, "f", 0}, {Kind::kToolCallArguments, "{\"a\":", 0}}));
  events.clear();
  parser->push(*tokenizer.find("<|\"|>"), events);
  parser->push_text("Os", events);
  EXPECT_EQ(events, (Events{{Kind::kToolCallArguments, "\"", 0}, {Kind::kToolCallArguments, "Os", 0}}));
  events.clear();
  parser->push_text("lo", events);
  parser->finish(false, events);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1], (OutputEvent{Kind::kToolCallError, "call:f{a:\"Oslo", 0}));
}

TEST(OutputParser, LimitsHold) {
  const auto calls = [](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += kGemmaCall;
    return text;
  };
  EXPECT_EQ(parsed(gemma(), calls(5), "", {.max_tool_calls = 2}).tool_calls.size(), 2U);
  EXPECT_NE(parsed(gemma(), calls(5), "", {.max_tool_calls = 2}).content.find("call:get_weather"),
            std::string::npos);
  const std::string deep = "<|tool_call>call:f{a:" + std::string(100, '[') + "<tool_call|>";
  EXPECT_TRUE(parsed(gemma(), deep).tool_calls.empty());
  const std::string longer = "<|tool_call>call:f{a:<|\"|>" + std::string(3000, 'x') + "<|\"|>}<tool_call|>";
  EXPECT_EQ(parsed(gemma(), longer).tool_calls.size(), 1U);
  const ParsedOutput cut = parsed(gemma(), longer, "", {.max_call_bytes = 1000});
  EXPECT_TRUE(cut.tool_calls.empty());
  EXPECT_EQ(std::count(cut.content.begin(), cut.content.end(), 'x'), 3000);
  const std::string block = kBlock + invoke("f", parameter("a", true, std::string(3000, 'x'))) + kEndBlock;
  const ParsedOutput other = parsed(deepseek(), block, "", {.max_call_bytes = 1000});
  EXPECT_TRUE(other.tool_calls.empty());
  EXPECT_EQ(std::count(other.content.begin(), other.content.end(), 'x'), 3000);
}

TEST(OutputParser, ACutCharacterBecomesAReplacement) {
  Events events;
  const auto parser = deepseek().parser();
  parser->push_text("ab\xf0\x9f", events);
  parser->finish(false, events);
  EXPECT_EQ(collect(events).content, "ab\uFFFD");
}

}  // namespace
}  // namespace synod
