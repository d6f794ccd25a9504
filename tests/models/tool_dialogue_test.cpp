// Tools in prompts: both families' native formats, and the demonstration models' own templates.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "base/error.h"
#include "models/deepseek4/deepseek4.h"
#include "models/deepseek4/dialogue.h"
#include "models/gemma4/dialogue.h"
#include "models/gemma4/gemma4.h"
#include "models/template_dialogue.h"

namespace synod {
namespace {

const Tool kWeather{"get_weather", "Weather",
                    R"({"type":"object","properties":{"unit":{"type":"string","enum":["c","f"]},)"
                    R"("city":{"type":"string","description":"City"}},"required":["city"]})"};

ChatMessage user(const std::string& text) { return {.role = "user", .content = text}; }
ChatMessage calling(std::vector<ToolCall> calls, const std::string& text = "",
                    const std::string& reasoning = "") {
  ChatMessage message{.role = "assistant", .content = text, .reasoning = reasoning};
  message.tool_calls = std::move(calls);
  return message;
}
ChatMessage result(const std::string& id, const std::string& text, const std::string& name = "") {
  return {.role = "tool", .content = text, .tool_call_id = id, .name = name};
}

std::string gemma(const std::vector<ChatMessage>& messages, const DialogueOptions& options = {},
                  const gemma4::DialogueFormat& format = {}) {
  return join(gemma4::make_dialogue(format)->render(messages, options));
}
std::string deepseek(const std::vector<ChatMessage>& messages, const DialogueOptions& options = {},
                     const deepseek4::PromptTexts& texts = deepseek4::default_texts()) {
  return join(deepseek4::make_dialogue(texts)->render(messages, options));
}

const std::string Q = "<|\"|>";

TEST(GemmaTools, Declarations) {
  EXPECT_EQ(
      gemma({user("Hi")}, {.add_generation_prompt = false, .tools = {kWeather}}),
      "<bos><|turn>system\n<|tool>declaration:get_weather{description:<|\"|>Weather<|\"|>,parameters:{"
      "properties:{"
      "city:{description:<|\"|>City<|\"|>,type:<|\"|>STRING<|\"|>},unit:{enum:[<|\"|>c<|\"|>,<|\"|>f<|\"|>],"
      "type:<|\"|>STRING<|\"|>}},required:[<|\"|>city<|\"|>],type:<|\"|>OBJECT<|\"|>}}<tool|><turn|>\n"
      "<|turn>user\nHi<turn|>\n");
  const Tool rich{
      "f", "d",
      R"({"properties":{"a":{"type":"array","items":{"type":"object","properties":{"x":{"type":"integer"}},)"
      R"("required":["x"],"minItems":2}},"B":{"type":["string","null"]},)"
      R"("o":{"type":"object","properties":{"z":{"type":"boolean","description":"Z"}},"required":["z"]}}})"};
  const std::string text = gemma({user("Hi")}, {.add_generation_prompt = false, .tools = {rich}});
  EXPECT_NE(text.find("properties:{a:{items:{minItems:2,properties:{x:{type:" + Q + "INTEGER" + Q +
                      "}},required:[" + Q + "x" + Q + "],type:" + Q + "OBJECT" + Q + "},type:" + Q + "ARRAY" +
                      Q + "},B:{nullable:true,type:" + Q + "STRING" + Q + "},o:{properties:{z:{description:" +
                      Q + "Z" + Q + ",type:" + Q + "BOOLEAN" + Q + "}},required:[" + Q + "z" + Q +
                      "],type:" + Q + "OBJECT" + Q + "}},type:" + Q + "OBJECT" + Q + "}}<tool|>"),
            std::string::npos)
      << text;
  EXPECT_NE(gemma({user("Hi")}, {.tools = {{"f", "d", ""}}})
                .find("declaration:f{description:" + Q + "d" + Q + "}<tool|>"),
            std::string::npos);
  EXPECT_EQ(gemma({user("Hi")}, {.tools = {kWeather}, .tool_choice = ToolChoice::kNone}),
            gemma({user("Hi")}));
  EXPECT_THROW(gemma({user("Hi")}, {.tools = {{"f", "d", "[1]"}}}), Error);
  EXPECT_THROW(gemma({user("Hi")}, {.tools = {{"f", "d", "{"}}}), Error);
}

TEST(GemmaTools, CallsAndResults) {
  const ToolCall call{"1", "f", R"({"b":{"y":[1,2.0,true,null]},"A":"x"})"};
  const std::string written = "<|tool_call>call:f{A:" + Q + "x" + Q + ",b:{y:[1,2.0,true,null]}}<tool_call|>";
  const std::string begin = "<bos><|turn>user\nq<turn|>\n<|turn>model\n";
  // Waiting for results; with results the turn goes on; text ends it.
  EXPECT_EQ(gemma({user("q"), calling({call})}), begin + written + "<|tool_response>");
  const std::string response = "<|tool_response>response:f{value:" + Q + "r" + Q + "}<tool_response|>";
  EXPECT_EQ(gemma({user("q"), calling({call}), result("1", "r")}), begin + written + response);
  EXPECT_EQ(gemma({user("q"), calling({call}, " text "), result("1", "r")}, {.add_generation_prompt = false}),
            begin + written + response + "text<turn|>\n");
  EXPECT_EQ(
      gemma({user("q"), calling({call}), result("1", "r"), {.role = "assistant", .content = "a"}, user("p")},
            {.add_generation_prompt = false}),
      begin + written + response + "a<turn|>\n<|turn>user\np<turn|>\n");
  // An object keeps its members; names come from the id, then from the message.
  ChatMessage object = result("2", R"({"t":3,"s":"c"})", "g");
  object.content_is_json = true;
  EXPECT_EQ(gemma({user("q"), calling({call}), object, result("", "r")}),
            begin + written + "<|tool_response>response:g{s:" + Q + "c" + Q +
                ",t:3}<tool_response|><|tool_response>response:unknown{value:" + Q + "r" + Q +
                "}<tool_response|>");
  // Reasoning is shown again only within the turn that still runs.
  EXPECT_EQ(gemma({user("q"), calling({call}, "", "why"), result("1", "r")}),
            begin + "<|channel>thought\nwhy\n<channel|>" + written + response);
  EXPECT_EQ(gemma({user("q"), calling({call}, "", "why"), result("1", "r"), user("p")}).find("why"),
            std::string::npos);
  EXPECT_EQ(gemma({user("q"), calling({{"1", "f", "not json"}})}),
            begin + "<|tool_call>call:f{not json}<tool_call|><|tool_response>");
  EXPECT_THROW(gemma({user("q"), result("1", "r")}), Error);
}

TEST(GemmaTools, AnUnfinishedReplyStaysOpen) {
  EXPECT_EQ(gemma({user("q"), {.role = "assistant", .content = "So"}}, {.continue_final_message = true}),
            "<bos><|turn>user\nq<turn|>\n<|turn>model\nSo");
}

const std::string B = "<｜begin▁of▁sentence｜>", E = "<｜end▁of▁sentence｜>", U = "<｜User｜>",
                  A = "<｜Assistant｜>";

std::string parameter(const std::string& name, const std::string& is_string, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + is_string + "\">" + value +
         "</｜DSML｜parameter>";
}
std::string block(const std::string& calls) {
  return "\n\n<｜DSML｜tool_calls>\n" + calls + "\n</｜DSML｜tool_calls>";
}
std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + parameters + "\n</｜DSML｜invoke>";
}

deepseek4::PromptTexts short_texts() {
  deepseek4::PromptTexts texts;
  texts.tools_before = "\n\n[TOOLS]\n";
  texts.tools_before_alone = "[ALONE]\n";
  texts.tools_after = "\n[END]\n";
  texts.response_before = "\n\n[FORM]\n";
  texts.efforts["max"] = "[MAX]";
  return texts;
}

TEST(DeepseekTools, CallsAndResults) {
  const std::vector<ToolCall> calls = {
      {"x1", "f", R"({"a":"hi","n":3})"}, {"x2", "f", R"({"a":"b\"c","n":[1,2]})"}, {"x3", "g", "{}"}};
  const Tool f{"f", "d", R"({"type":"object","properties":{"a":{"type":"string"}}})"};
  const std::vector<ChatMessage> messages = {{.role = "system", .content = "S"},
                                             user("U1"),
                                             calling(calls, "", "R1"),
                                             result("x2", "T2"),
                                             result("x1", "T1")};
  EXPECT_EQ(deepseek(messages, {.thinking = true, .tools = {f}}, short_texts()),
            B +
                "S\n\n[TOOLS]\n{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": "
                "\"object\", \"properties\": "
                "{\"a\": {\"type\": \"string\"}}}}\n[END]\n" +
                U + "U1" + A + "<think>R1</think>" +
                block(invoke("f", parameter("a", "true", "hi") + "\n" + parameter("n", "false", "3")) + "\n" +
                      invoke("f", parameter("a", "true", "b\"c") + "\n" + parameter("n", "false", "[1, 2]")) +
                      "\n" + invoke("g", "")) +
                E + U + "<tool_result>T1</tool_result>\n\n<tool_result>T2</tool_result>" + A + "<think>");
  EXPECT_NE(deepseek({user("q"), calling({{"", "f", "not json"}})})
                .find(parameter("arguments", "true", "not json")),
            std::string::npos);
}

TEST(DeepseekTools, ToolsKeepAllReasoning) {
  const std::vector<ChatMessage> messages = {
      user("U1"), {.role = "assistant", .content = "A1", .reasoning = "R1"}, user("U2")};
  EXPECT_EQ(deepseek(messages, {.thinking = true}),
            B + U + "U1" + A + "</think>A1" + E + U + "U2" + A + "<think>");
  const std::string with = deepseek(messages, {.thinking = true, .tools = {{"f", "", ""}}}, short_texts());
  EXPECT_EQ(with, B + "[ALONE]\n{\"name\": \"f\"}\n[END]\n" + U + "U1" + A + "<think>R1</think>A1" + E + U +
                      "U2" + A + "<think>");
  EXPECT_EQ(deepseek(messages, {.thinking = true, .tools = {{"f", "", ""}}, .tool_choice = ToolChoice::kNone},
                     short_texts()),
            deepseek(messages, {.thinking = true}));
}

TEST(DeepseekTools, EffortAndResponseFormat) {
  EXPECT_EQ(deepseek({user("q")}, {.thinking = true, .reasoning_effort = "max"}, short_texts()),
            B + "[MAX]" + U + "q" + A + "<think>");
  EXPECT_EQ(deepseek({user("q")}, {.thinking = true, .reasoning_effort = "high"}, short_texts()),
            B + U + "q" + A + "<think>");
  EXPECT_EQ(deepseek({user("q")}, {.thinking = true, .reasoning_effort = "none"}, short_texts()),
            B + U + "q" + A + "</think>");
  EXPECT_EQ(deepseek({user("q")}, {.template_arguments = R"({"enable_thinking":true})"}),
            B + U + "q" + A + "<think>");
  EXPECT_EQ(deepseek({{.role = "system", .content = "S"}, user("q")},
                     {.response_schema = R"({"type":"object"})"}, short_texts()),
            B + "S\n\n[FORM]\n{\"type\": \"object\"}" + U + "q" + A + "</think>");
  EXPECT_THROW(deepseek({user("q")}, {.reasoning_effort = "immense"}), Error);
  EXPECT_THROW(deepseek({user("q")}, {.template_arguments = "[]"}), Error);
}

TEST(DeepseekTools, TextsComeFromThePublishedEncodersConstants) {
  const std::string python =
      "x = 1\nresponse_format_template: str = (\n    \"## Form:\\n\\nObey:\\n{schema}\"\n)\n"
      "REASONING_EFFORT_MAX = (\n    \"Think hard.\\n\"\n    \"Very \\\"hard\\\".\\n\\n\"\n)\n"
      "TOOLS_TEMPLATE = \"\"\"## Tools\n\nWrite <{dsml_token}tool_calls> after {thinking_end_token}, like "
      "{{this}}.\n\n"
      "{tool_schemas}\n\nObey.\n\"\"\"\n\ndef f(): pass\n";
  const auto texts = deepseek4::texts_of_encoder(python);
  ASSERT_TRUE(texts.has_value());
  EXPECT_EQ(texts->tools_before,
            "\n\n## Tools\n\nWrite <｜DSML｜tool_calls> after </think>, like {this}.\n\n");
  EXPECT_EQ(texts->tools_after, "\n\nObey.\n");
  EXPECT_EQ(texts->response_before, "\n\n## Form:\n\nObey:\n");
  EXPECT_EQ(texts->efforts.at("max"), "Think hard.\nVery \"hard\".\n\n");
  EXPECT_FALSE(deepseek4::texts_of_encoder("TOOLS_TEMPLATE = 3").has_value());
  EXPECT_FALSE(deepseek4::texts_of_encoder("").has_value());
}

TEST(DialogueParts, TextPartsJoinAndOthersAreRefused) {
  ChatMessage message = user("");
  message.parts = {{"text", " a"}, {"text", "b "}};
  EXPECT_EQ(gemma({message}, {.add_generation_prompt = false}), "<bos><|turn>user\nab<turn|>\n");
  EXPECT_EQ(deepseek({message}, {.add_generation_prompt = false}), B + U + " a\n\nb ");
  message.parts.push_back({"image", ""});
  EXPECT_THROW(gemma({message}), Error);
  EXPECT_THROW(deepseek({message}), Error);
}

// --- The demonstration models' templates ---

std::optional<std::string> demonstration(const std::string& path) {
  const std::filesystem::path root = std::filesystem::path(SYNOD_SOURCE_DIR) / "../shared/models";
  if (!std::filesystem::exists(root / path)) return std::nullopt;
  return read_text_file(root / path);
}

Tokenizer mini(const std::string& name) {
  const std::string path = SYNOD_SOURCE_DIR "/tests/data/tokenizer/" + name + ".tokenizer.json";
  return Tokenizer(tokenizer_data_from_json(read_text_file(path), path), path);
}

// Conversations that both the native format and the template can write.
std::vector<std::pair<std::vector<ChatMessage>, DialogueOptions>> conversations() {
  const ChatMessage system{.role = "system", .content = "Be brief."};
  const ChatMessage answer{.role = "assistant", .content = "Cold."};
  const std::vector<ToolCall> calls = {{"1", "get_weather", R"({"city":"Oslo"})"}};
  const Tool tool{
      "get_weather", "Current weather in a city.",
      R"({"type":"object","properties":{"city":{"type":"string","description":"Name of the city."}},"required":["city"]})"};
  return {{{user("Hi")}, {}},
          {{user("Hi")}, {.thinking = true}},
          {{system, user("Hi")}, {}},
          {{system, user("Hi"), answer, user("And?")}, {}},
          {{user("Hi")}, {.tools = {tool}}},
          {{system, user("Hi")}, {.tools = {tool}}},
          {{user("Hi"), calling(calls), result("1", "3 degrees", "get_weather")}, {.tools = {tool}}},
          {{user("Hi"), calling(calls, "", "why"), result("1", "3 degrees", "get_weather")},
           {.thinking = true, .tools = {tool}}}};
}

TEST(TemplateDialogue, NativeFormatsLearnFromTheModelsTemplates) {
  const auto gemma_source = demonstration("gemma4-mini/chat_template.jinja");
  const auto deepseek_source = demonstration("deepseek4-mini/chat_template.jinja");
  if (!gemma_source || !deepseek_source)
    GTEST_SKIP() << "the demonstration models are not beside this checkout";
  const Tokenizer gemma_tokenizer = mini("gemma4-mini");
  const Tokenizer deepseek_tokenizer = mini("deepseek4-mini");
  const gemma4::DialogueFormat format = gemma4::format_of_template(gemma_source, {});
  EXPECT_EQ(format, (gemma4::DialogueFormat{true, false, false, true}));
  const auto texts = deepseek4::texts_of_template(*deepseek_source);
  ASSERT_TRUE(texts.has_value());
  EXPECT_TRUE(texts->whole_tools);
  EXPECT_EQ(texts->tools_before, "\n\n## Tools\n\n");
  EXPECT_EQ(texts->tools_before_alone, "## Tools\n\n");
  EXPECT_EQ(texts->tools_after, "");
  const auto gemma_template =
      make_template_dialogue(*gemma_source, gemma_tokenizer, gemma4::make_dialogue(format));
  const auto deepseek_template =
      make_template_dialogue(*deepseek_source, deepseek_tokenizer, deepseek4::make_dialogue(*texts));
  for (const auto& [messages, options] : conversations()) {
    EXPECT_EQ(gemma(messages, options, format), join(gemma_template->render(messages, options)));
    EXPECT_EQ(encode_prompt(gemma_tokenizer, gemma4::make_dialogue(format)->render(messages, options)),
              encode_prompt(gemma_tokenizer, gemma_template->render(messages, options)));
    EXPECT_EQ(deepseek(messages, options, *texts), join(deepseek_template->render(messages, options)));
    EXPECT_EQ(encode_prompt(deepseek_tokenizer, deepseek4::make_dialogue(*texts)->render(messages, options)),
              encode_prompt(deepseek_tokenizer, deepseek_template->render(messages, options)));
  }
}

// Every prompt the models were recorded with is what we write, ids and all; and what they answered is parsed.
TEST(TemplateDialogue, RecordedPromptsWithTools) {
  int compared = 0;
  for (const std::string name : {"gemma4-mini", "deepseek4-mini"}) {
    const auto source = demonstration(name + "/chat_template.jinja");
    const auto golden = demonstration(name + "/golden.json");
    if (!source || !golden) GTEST_SKIP() << "the demonstration models are not beside this checkout";
    const Tokenizer tokenizer = mini(name);
    const bool is_gemma = name == "gemma4-mini";
    const auto native = is_gemma ? gemma4::make_dialogue(gemma4::format_of_template(source, {}))
                                 : deepseek4::make_dialogue(*deepseek4::texts_of_template(*source));
    const auto tool = [](const std::string& tool_name, const std::string& description,
                         const std::string& parameters) {
      return Tool{tool_name, description, parameters};
    };
    const std::vector<Tool> tools = {
        tool(
            "define_word", "Look a word up in the dictionary.",
            R"({"type": "object", "properties": {"word": {"type": "string", "description": "The word to look up."}}, "required": ["word"]})"),
        tool(
            "get_verse", "Fetch one verse of the Bible.",
            R"({"type": "object", "properties": {"book": {"type": "string", "description": "Name of the book."}, "chapter": {"type": "integer", "description": "Chapter number."}, "verse": {"type": "integer", "description": "Verse number."}}, "required": ["book", "chapter", "verse"]})"),
        tool(
            "get_weather", "Current weather in a city.",
            R"({"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city."}}, "required": ["city"]})")};
    for (const auto& entry : nlohmann::json::parse(*golden)) {
      const auto prompt = entry.at("prompt").get<std::string>();
      if (prompt.find("get_weather") == std::string::npos) continue;
      const auto pieces = native->render({user("What is the weather in Oslo?")}, {.tools = tools});
      EXPECT_EQ(join(pieces), prompt);
      EXPECT_EQ(encode_prompt(tokenizer, pieces), entry.at("ids").get<std::vector<int32_t>>());
      const auto parser = native->output_parser(tokenizer, entry.at("ids").get<std::vector<int32_t>>(), {});
      std::vector<OutputEvent> events;
      for (const int32_t id : entry.at("greedy").get<std::vector<int32_t>>()) parser->push(id, events);
      parser->finish(true, events);
      EXPECT_EQ(collect(events), (ParsedOutput{"", "", {{"get_weather", R"({"city":"Oslo"})"}}}));
      ++compared;
    }
  }
  EXPECT_GE(compared, 1);  // one of the two recordings asks for the weather
}

// --- What people write stays text ---

// Every special token in every field, natively and by a template that prints all fields.
TEST(DialogueSafety, NoFieldBecomesAControlToken) {
  const std::string all_fields =
      "{{ bos_token }}{% macro show(x) %}{{ x }}{{ x | trim }}{{ x | replace('q', '<turn|>') }}{{ "
      "x.split('|') | join('|') }}"
      "{{ x[::-1][::-1] }}{{ (x | list) | join }}{{ '%s' % x }}{{ '{}'.format(x) }}{{ x | tojson }}{{ [x] | "
      "string }}"
      "{{ x | indent }}{{ x ~ '' }}{% endmacro %}"
      "{% for m in messages %}{{ show(m.role) }}{{ show(m.content) }}{% if m.tool_calls %}{% for c in "
      "m.tool_calls %}"
      "{{ show(c.id) }}{{ show(c.function.name) }}{% for k, v in c.function.arguments.items() %}{{ show(k) "
      "}}{{ show(v) }}"
      "{% endfor %}{% endfor %}{% endif %}{{ show(m.reasoning_content or '') }}{{ show(m.name or '') }}"
      "{{ show(m.tool_call_id or '') }}{% endfor %}{% for t in tools %}{{ show(t.function.name) }}"
      "{{ show(t.function.description) }}{% for k, v in t.function.parameters.properties | dictsort %}{{ "
      "show(k) }}"
      "{{ show(v.description) }}{% endfor %}{% endfor %}{{ show(custom) }}";
  for (const std::string name : {"gemma4-mini", "deepseek4-mini"}) {
    const Tokenizer tokenizer = mini(name);
    const bool is_gemma = name == "gemma4-mini";
    const auto native = is_gemma ? gemma4::architecture().dialogue() : deepseek4::architecture().dialogue();
    const auto by_template = make_template_dialogue(all_fields, tokenizer, nullptr);
    const auto specials_in = [&](const std::vector<int32_t>& ids) {
      std::vector<int32_t> found;
      for (const int32_t id : ids) {
        const TokenKind kind = tokenizer.kind(id);
        if (kind == TokenKind::kControl || kind == TokenKind::kUserDefined) found.push_back(id);
      }
      return found;
    };
    const auto conversation = [&](const std::string& text) {
      const std::string json_text = nlohmann::json(text).dump();
      ChatMessage call = calling({{text, text, "{" + json_text + ":" + json_text + "}"}}, text, text);
      return std::vector<ChatMessage>{
          {.role = "system", .content = text}, user(text), call, result(text, text, text), user(text)};
    };
    const auto options = [&](const std::string& text) {
      const std::string json_text = nlohmann::json(text).dump();
      return DialogueOptions{
          .thinking = true,
          .tools = {{text, text,
                     "{\"type\":\"object\",\"properties\":{" + json_text +
                         ":{\"type\":\"string\",\"description\":" + json_text + ",\"enum\":[" + json_text +
                         "]}},\"required\":[" + json_text + "]}"}},
          .template_arguments = "{\"custom\":" + json_text + "}"};
    };
    for (const Dialogue* dialogue : {native.get(), by_template.get()}) {
      const auto expected = specials_in(
          encode_prompt(tokenizer, dialogue->render(conversation("harmless"), options("harmless"))));
      std::string everything;
      for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        const TokenKind kind = tokenizer.kind(id);
        if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined) continue;
        const std::string special(tokenizer.bytes_of(id));
        everything += special;
        const auto pieces = dialogue->render(conversation("a" + special + "b"), options("a" + special + "b"));
        EXPECT_EQ(specials_in(encode_prompt(tokenizer, pieces)), expected) << name << ": " << special;
      }
      const auto pieces = dialogue->render(conversation(everything), options(everything));
      EXPECT_EQ(specials_in(encode_prompt(tokenizer, pieces)), expected) << name;
      // The opt-in lets them count.
      EXPECT_GT(specials_in(encode_prompt(tokenizer, pieces, /*parse_all=*/true)).size(), expected.size());
    }
  }
}

TEST(TemplateDialogue, ContinuesAndRefuses) {
  const Tokenizer tokenizer = mini("gemma4-mini");
  const std::string source =
      "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content | trim }}<turn|>\n{% endfor %}";
  const auto dialogue = make_template_dialogue(source, tokenizer, nullptr);
  EXPECT_EQ(join(dialogue->render({user("q"), {.role = "assistant", .content = "So far "}},
                                  {.continue_final_message = true})),
            "<|turn>user\nq<turn|>\n<|turn>assistant\nSo far");
  EXPECT_THROW(make_template_dialogue("{% if %}", tokenizer, nullptr), Error);
  try {
    make_template_dialogue("\n{{ raise_exception('no ' ~ messages[0].role) }}", tokenizer, nullptr)
        ->render({user("q")}, {});
    FAIL() << "rendered";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kUsage);
    EXPECT_NE(std::string(error.what()).find("line 2: the template refuses this conversation: no user"),
              std::string::npos)
        << error.what();
  }
  std::vector<OutputEvent> events;
  const auto parser = dialogue->output_parser(tokenizer, {}, {});
  for (const int32_t id : tokenizer.encode("a<|turn>b", true)) parser->push(id, events);
  parser->finish(true, events);
  EXPECT_EQ(collect(events).content, "ab");
}

}  // namespace
}  // namespace synod
