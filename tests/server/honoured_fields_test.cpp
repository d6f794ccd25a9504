// Fields do what they say, in every API that has them.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "running_server.h"

namespace synod::server {
namespace {

using Json = nlohmann::json;

RunningServer& shared_server() {
  static RunningServer server;
  return server;
}

// One API as a client uses it.
struct Client {
  const char* path;
  Json body;
  const char* options;     // the object that holds sampling fields; "" = the body
  const char* max_tokens;  // the field's name
  std::function<std::string(const Json&)> text;

  Json request(const Json& fields, int64_t n_tokens) const {
    Json result = body;
    Json& place = *options == '\0' ? result : result[options];
    place[max_tokens] = n_tokens;
    place.update(fields);
    return result;
  }
  std::string answer(const Json& fields, int64_t n_tokens = 12) const {
    const RawReply reply = shared_server().post(path, request(fields, n_tokens));
    EXPECT_EQ(reply.status, 200) << path << " " << fields << ": " << reply.body;
    return reply.status == 200 ? text(reply.json()) : "";
  }
};

const std::vector<Client>& clients() {
  static const Json messages = {{{"role", "user"}, {"content", "Define hope."}}};
  static const std::vector<Client> all = {
      {"/v1/chat/completions",
       {{"messages", messages}},
       "",
       "max_tokens",
       [](const Json& r) { return r["choices"][0]["message"]["content"].get<std::string>(); }},
      {"/v1/completions",
       {{"prompt", "In the beginning"}},
       "",
       "max_tokens",
       [](const Json& r) { return r["choices"][0]["text"].get<std::string>(); }},
      {"/completion",
       {{"prompt", "In the beginning"}},
       "",
       "n_predict",
       [](const Json& r) { return r["content"].get<std::string>(); }},
      {"/v1/responses",
       {{"input", "Define hope."}},
       "",
       "max_output_tokens",
       [](const Json& r) { return r["output"].back()["content"][0]["text"].get<std::string>(); }},
      {"/v1/messages",
       {{"model", "demo"}, {"messages", messages}},
       "",
       "max_tokens",
       [](const Json& r) {
         return r["content"].empty() ? "" : r["content"].back()["text"].get<std::string>();
       }},
      {"/api/chat",
       {{"model", "demo"}, {"messages", messages}, {"stream", false}},
       "options",
       "num_predict",
       [](const Json& r) { return r["message"]["content"].get<std::string>(); }},
      {"/api/generate",
       {{"model", "demo"}, {"prompt", "Define hope."}, {"stream", false}},
       "options",
       "num_predict",
       [](const Json& r) { return r["response"].get<std::string>(); }}};
  return all;
}

Json with(const Json& base, const Json& more) {
  Json result = base;
  if (more.is_object()) result.update(more);
  return result;
}

TEST(HonouredFields, SamplersOfEveryApi) {
  const Tokenizer& tokenizer = shared_server().tokenizer();
  for (const Client& c : clients()) {
    const Json greedy_fields = {{"temperature", 0}, {"ignore_eos", true}};
    const std::string greedy = c.answer(greedy_fields);
    const Json hot = {{"temperature", 2.0}, {"seed", 1}, {"ignore_eos", true}};
    EXPECT_EQ(c.answer(hot), c.answer(hot)) << c.path;
    EXPECT_NE(c.answer(hot), greedy) << c.path;
    EXPECT_NE(c.answer(hot), c.answer(with(hot, {{"seed", 2}}))) << c.path;
    for (const Json& narrow : {Json{{"top_k", 1}}, Json{{"top_p", 0.0}}, Json{{"min_p", 1.0}}}) {
      EXPECT_EQ(c.answer(with(hot, narrow)), greedy) << c.path << " " << narrow;
    }
    // What is left has one token, so the seed does not matter.
    const Json typical = {{"typical_p", 1e-6}};
    EXPECT_EQ(c.answer(with(hot, typical)), c.answer(with(with(hot, typical), {{"seed", 2}}))) << c.path;
    const std::string water = std::to_string(tokenizer.encode(" water").at(0));
    const auto biased = [&](const Json& bias) {
      return c.answer(with(greedy_fields, {{"logit_bias", {{water, bias}}}}));
    };
    EXPECT_NE(biased(1000).find("water water water"), std::string::npos) << c.path;
    EXPECT_EQ(biased(-1000), greedy) << c.path << ": it did not come anyway";
    EXPECT_EQ(biased(false), greedy) << c.path;
    const Json warm = {{"temperature", 1}, {"seed", 1}, {"ignore_eos", true}};
    const std::string free = c.answer(warm, 60);
    for (const Json& penalty :
         {Json{{"frequency_penalty", 2.0}}, Json{{"presence_penalty", 2.0}}, Json{{"repeat_penalty", 4.0}},
          Json{{"repetition_penalty", 4.0}}, Json{{"repeat_penalty", 4.0}, {"repeat_last_n", -1}}}) {
      EXPECT_NE(c.answer(with(warm, penalty), 60), free) << c.path << " " << penalty;
    }
    EXPECT_EQ(c.answer(with(warm, {{"repeat_penalty", 4.0}, {"repeat_last_n", 0}}), 60), free) << c.path;
  }
}

TEST(HonouredFields, FormsOfTheAnswerInEveryApi) {
  const std::set<std::string> words = {"yes", "no"};
  const Json schema = {{"type", "object"},
                       {"properties", {{"yes", {{"type", "boolean"}}}}},
                       {"required", {"yes"}},
                       {"additionalProperties", false}};
  for (const Client& c : clients()) {
    for (const float temperature : {0.0F, 1.0F}) {
      const Json base = {{"temperature", temperature}, {"seed", 1}};
      for (const Json& form :
           {Json{{"grammar", "root ::= \"yes\" | \"no\""}},
            Json{{"guided_grammar", "root ::= \"yes\" | \"no\""}}, Json{{"guided_choice", {"yes", "no"}}},
            Json{{"structured_outputs", {{"choice", {"yes", "no"}}}}}}) {
        EXPECT_TRUE(words.contains(c.answer(with(base, form)))) << c.path << " " << form;
      }
      for (const Json& form :
           {Json{{"json_schema", schema}}, Json{{"guided_json", schema}},
            Json{{"guided_json", schema.dump()}}, Json{{"structured_outputs", {{"json", schema}}}}}) {
        const Json value = Json::parse(c.answer(with(base, form), 40), nullptr, false);
        EXPECT_TRUE(value.is_object() && value["yes"].is_boolean()) << c.path << " " << form << ": " << value;
      }
    }
    const RawReply damaged = shared_server().post(c.path, c.request({{"grammar", "root ::= ("}}, 4));
    EXPECT_EQ(damaged.status, 400) << c.path;
    EXPECT_NE(damaged.body.find("grammar"), std::string::npos) << damaged.body;
  }
  const Json format = {{"type", "json_schema"}, {"json_schema", {{"name", "s"}, {"schema", schema}}}};
  for (const size_t api : {0, 1}) {
    const Json value = Json::parse(clients()[api].answer({{"response_format", format}}, 40), nullptr, false);
    EXPECT_TRUE(value.is_object() && value["yes"].is_boolean()) << api << ": " << value;
  }
}

TEST(HonouredFields, EndsOfTheAnswerInEveryApi) {
  RunningServer& s = shared_server();
  const auto n_tokens = [&](const Client& c, const Json& fields, int64_t most) {
    const std::string text = c.answer(fields, most);
    return static_cast<int64_t>(s.tokenizer().encode(text).size());
  };
  for (const Client& c : clients()) {
    const Json greedy = {{"temperature", 0}};
    const std::string whole = c.answer(with(greedy, {{"ignore_eos", true}}), 60);
    EXPECT_GE(n_tokens(c, with(greedy, {{"ignore_eos", true}}), 60), 50) << c.path << ": " << whole;
    EXPECT_GE(n_tokens(c, with(greedy, {{"min_tokens", 60}}), 60), 50) << c.path;
    EXPECT_LE(n_tokens(c, greedy, 3), 4) << c.path;
    // The text ends before the first token with that id.
    const std::vector<int32_t> ids = s.tokenizer().encode(whole);
    const std::string cut = c.answer(with(greedy, {{"stop_token_ids", {ids.at(4)}}}), 60);
    EXPECT_LT(cut.size(), whole.size() / 2) << c.path;
    EXPECT_EQ(cut, whole.substr(0, cut.size())) << c.path;
    if (std::string_view(c.path) == "/v1/responses") continue;  // has no stop strings
    const char* field = std::string_view(c.path) == "/v1/messages" ? "stop_sequences" : "stop";
    for (size_t at = 0; at < 24; ++at) {  // beginning and ending inside of tokens, too
      const std::string stop = whole.substr(at, 3);
      const Json stops = {{field, {"never said", stop}}, {"ignore_eos", true}};
      EXPECT_EQ(c.answer(with(greedy, stops), 60), whole.substr(0, whole.find(stop))) << c.path << stop;
      // Does not count before so many tokens.
      const size_t late = c.answer(with(greedy, with(stops, {{"min_tokens", 40}})), 60).size();
      EXPECT_GT(late, 80U) << c.path << stop;
    }
  }
}

TEST(HonouredFields, ReasoningIsBoundedAndShownAsAsked) {
  RunningServer& s = shared_server();
  const Json base = {{"messages", {{{"role", "user"}, {"content", "Define hope."}}}},
                     {"temperature", 0},
                     {"max_tokens", 200}};
  const auto ask = [&](const Json& fields) {
    return s.post("/v1/chat/completions", with(base, fields)).json();
  };
  EXPECT_FALSE(ask({})["choices"][0]["message"].contains("reasoning_content"));
  for (const Json& on : {Json{{"reasoning_effort", "high"}}, Json{{"thinking", {{"type", "enabled"}}}},
                         Json{{"chat_template_kwargs", {{"enable_thinking", true}}}}}) {
    const Json reply = ask(on);
    EXPECT_FALSE(reply["choices"][0]["message"].value("reasoning_content", "").empty()) << on;
    const int64_t free = reply["usage"]["completion_tokens_details"]["reasoning_tokens"];
    const Json bounded = ask(with(on, {{"reasoning_budget", 3}}));
    const int64_t held = bounded["usage"]["completion_tokens_details"]["reasoning_tokens"];
    EXPECT_GT(free, 10) << on;
    EXPECT_LE(held, 3 + 4) << on << ": the budget and the markers";
    EXPECT_FALSE(bounded["choices"][0]["message"]["content"].get<std::string>().empty()) << on;
  }
  const Json inline_reply = ask({{"reasoning_effort", "high"}, {"reasoning_format", "none"}});
  const std::string content = inline_reply["choices"][0]["message"]["content"];
  EXPECT_TRUE(content.starts_with("<|channel>thought\n")) << content;
  EXPECT_NE(content.find("<channel|>"), std::string::npos) << content;
  EXPECT_FALSE(ask({{"reasoning_effort", "none"}})["choices"][0]["message"].contains("reasoning_content"));
}

TEST(HonouredFields, CacheProgressTimesAndIds) {
  RunningServer& s = shared_server();
  std::string text = "Define hope.";
  for (int i = 0; i < 120; ++i) text += " and the earth was without form";
  Json body = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"temperature", 0}, {"max_tokens", 4}};
  const auto cached = [&](const Json& fields) {
    return s.post("/v1/chat/completions", with(body, fields))
        .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int64_t>();
  };
  EXPECT_LT(cached({{"cache_prompt", false}}), 20);
  EXPECT_EQ(cached({{"cache_prompt", false}}), 0);
  cached({});
  EXPECT_GT(cached({}), 500);
  EXPECT_EQ(cached({{"cache_prompt", false}}), 0);

  const Json progress = {
      {"stream", true}, {"return_progress", true}, {"timings_per_token", true}, {"cache_prompt", false}};
  const std::string stream = s.post("/v1/chat/completions", with(body, progress)).body;
  EXPECT_NE(stream.find("\"prompt_progress\""), std::string::npos);
  EXPECT_NE(stream.find("\"timings\""), std::string::npos);
  const std::string plain = s.post("/v1/chat/completions", with(body, {{"stream", true}})).body;
  EXPECT_EQ(plain.find("\"prompt_progress\""), std::string::npos);

  const Json native = s.post("/completion", {{"prompt", "In the beginning"},
                                             {"n_predict", 4},
                                             {"temperature", 0},
                                             {"n_probs", 2},
                                             {"return_tokens", true}})
                          .json();
  const auto ids = native["tokens"].get<std::vector<int32_t>>();
  ASSERT_EQ(ids.size(), 4U);
  EXPECT_EQ(s.tokenizer().decode(ids), native["content"]);
  ASSERT_EQ(native["completion_probabilities"].size(), 4U);
  EXPECT_EQ(native["completion_probabilities"][0]["top_logprobs"].size(), 2U);
  EXPECT_EQ(native["timings"]["predicted_n"], 4);
}

TEST(HonouredFields, TheTemplateEndsAsAsked) {
  RunningServer& s = shared_server();
  const Json turn = {{"role", "assistant"}, {"content", "It is"}};
  const Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}, turn}}};
  const auto prompt = [&](const Json& fields) {
    return s.post("/apply-template", with(body, fields)).json()["prompt"].get<std::string>();
  };
  EXPECT_TRUE(prompt({{"continue_final_message", true}}).ends_with("It is"));
  EXPECT_TRUE(prompt({{"add_generation_prompt", false}}).ends_with("It is<turn|>\n"));
  EXPECT_EQ(s.post("/apply-template",
                   {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"continue_final_message", true}})
                .status,
            400);
}

}  // namespace
}  // namespace synod::server
