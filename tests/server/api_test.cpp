// The APIs on the demonstration model, as clients see them.
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "running_server.h"
#include "temp_folder.h"

namespace synod::server {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

Json define_hope(int64_t max_tokens = 12) {
  return {{"messages", {{{"role", "user"}, {"content", "Define hope."}}}},
          {"max_tokens", max_tokens},
          {"temperature", 0}};
}

RunningServer& shared_server() {
  static RunningServer server;
  return server;
}

std::vector<Json> sse_events(const std::string& body) {
  std::vector<Json> events;
  size_t at = 0;
  while ((at = body.find("data: ", at)) != std::string::npos) {
    const size_t end = body.find("\n\n", at);
    const std::string text = body.substr(at + 6, end - at - 6);
    if (text != "[DONE]") events.push_back(Json::parse(text));
    at = end;
  }
  return events;
}

TEST(Api, ChatGivesAnAnswerWithUsage) {
  const RawReply reply = shared_server().post("/v1/chat/completions", define_hope());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json j = reply.json();
  EXPECT_EQ(j["object"], "chat.completion");
  EXPECT_EQ(j["model"], "demo");
  EXPECT_FALSE(j["choices"][0]["message"]["content"].get<std::string>().empty());
  EXPECT_EQ(j["usage"]["total_tokens"].get<int>(),
            j["usage"]["prompt_tokens"].get<int>() + j["usage"]["completion_tokens"].get<int>());
  EXPECT_NE(reply.head.find("x-request-id: req_"), std::string::npos);
}

TEST(Api, StreamsEqualWholeReplies) {
  Json request = define_hope();
  const Json whole = shared_server().post("/v1/chat/completions", request).json();
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  const RawReply reply = shared_server().post("/v1/chat/completions", request, "x-request-id: mine-1\r\n");
  EXPECT_NE(reply.head.find("text/event-stream"), std::string::npos);
  EXPECT_NE(reply.head.find("x-request-id: mine-1"), std::string::npos);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
  std::string text;
  const std::vector<Json> events = sse_events(reply.body);
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) text += choice["delta"].value("content", "");
  }
  EXPECT_EQ(text, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

TEST(Api, InformationRoutesAnswer) {
  RunningServer& s = shared_server();
  EXPECT_EQ(s.get("/health").body, R"({"status":"ok"})");
  EXPECT_EQ(s.get("/ready").status, 200);
  EXPECT_EQ(s.get("/v1/models").json()["data"][0]["id"], "demo");
  EXPECT_EQ(s.get("/v1/models/demo").status, 200);
  EXPECT_EQ(s.get("/v1/models/other").status, 404);
  EXPECT_EQ(s.get("/props").json()["total_slots"], 32);
  EXPECT_EQ(s.get("/slots").json().size(), 32U);
  EXPECT_EQ(s.get("/api/tags").json()["models"][0]["name"], "demo");
  EXPECT_EQ(s.get("/nowhere").status, 404);
  EXPECT_EQ(s.get("/v1/chat/completions").status, 405);
  EXPECT_EQ(s.post("/v1/embeddings", Json::object()).status, 501);
  const Json tokens = s.post("/tokenize", {{"content", "In the beginning"}}).json();
  EXPECT_EQ(s.post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["content"], "In the beginning");
  EXPECT_NE(s.post("/apply-template", define_hope()).json()["prompt"].get<std::string>().find("Define hope."),
            std::string::npos);
  EXPECT_EQ(s.post("/detokenize", {{"tokens", {1 << 30}}}).status, 400);
  const std::string metrics = s.get("/metrics").body;
  for (const char* name :
       {"synod_generated_tokens_total", "synod_time_to_first_token_seconds_bucket",
        "llamacpp:requests_processing", "synod_http_requests_total{route=\"/v1/models\",status=\"200\"}"}) {
    EXPECT_NE(metrics.find(name), std::string::npos) << name;
  }
}

// Text of people never becomes a control token, whatever field it is in.
TEST(Api, SpecialStringsInAnyFieldStayText) {
  RunningServer& s = shared_server();
  const auto count = [&](const std::string& text) {
    Json request = {
        {"messages", {{{"role", "system"}, {"content", text}}, {{"role", "user"}, {"content", text}}}},
        {"max_tokens", 1}};
    return s.post("/v1/chat/completions", request).json()["usage"]["prompt_tokens"].get<int>();
  };
  // One control token would be one id; as text the same characters are several.
  const Tokenizer& tokenizer = s.tokenizer();
  int specials = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.kind(id) != TokenKind::kControl) continue;
    const std::string text(tokenizer.bytes_of(id));
    const auto as_text = static_cast<int>(tokenizer.encode(text).size());
    if (as_text < 2) continue;
    EXPECT_GE(count(text), count("") + 2 * (as_text - 1)) << text;
    ++specials;
  }
  EXPECT_GE(specials, 5);
}

struct Numeric {
  const char* path;
  const char* field;  // dots descend
};

TEST(Api, NumericFieldsWithAnyValueAre4xxOrAnswered) {
  RunningServer& s = shared_server();
  const std::vector<Numeric> fields = {{"/v1/chat/completions", "max_tokens"},
                                       {"/v1/chat/completions", "max_completion_tokens"},
                                       {"/v1/chat/completions", "temperature"},
                                       {"/v1/chat/completions", "top_p"},
                                       {"/v1/chat/completions", "top_k"},
                                       {"/v1/chat/completions", "min_p"},
                                       {"/v1/chat/completions", "typical_p"},
                                       {"/v1/chat/completions", "n"},
                                       {"/v1/chat/completions", "seed"},
                                       {"/v1/chat/completions", "frequency_penalty"},
                                       {"/v1/chat/completions", "presence_penalty"},
                                       {"/v1/chat/completions", "repeat_penalty"},
                                       {"/v1/chat/completions", "repeat_last_n"},
                                       {"/v1/chat/completions", "top_logprobs"},
                                       {"/v1/chat/completions", "min_tokens"},
                                       {"/v1/chat/completions", "n_probs"},
                                       {"/v1/chat/completions", "reasoning_budget"},
                                       {"/v1/chat/completions", "n_keep"},
                                       {"/v1/chat/completions", "id_slot"},
                                       {"/v1/chat/completions", "top_n_sigma"},
                                       {"/v1/chat/completions", "dry_multiplier"},
                                       {"/v1/chat/completions", "xtc_probability"},
                                       {"/v1/chat/completions", "mirostat"},
                                       {"/v1/chat/completions", "dynatemp_range"},
                                       {"/v1/completions", "max_tokens"},
                                       {"/v1/completions", "best_of"},
                                       {"/v1/completions", "logprobs"},
                                       {"/v1/completions", "n"},
                                       {"/v1/completions", "prompt"},
                                       {"/completion", "n_predict"},
                                       {"/v1/responses", "max_output_tokens"},
                                       {"/v1/responses", "top_logprobs"},
                                       {"/v1/messages", "max_tokens"},
                                       {"/v1/messages", "top_k"},
                                       {"/v1/messages", "top_p"},
                                       {"/v1/messages", "temperature"},
                                       {"/v1/messages", "thinking.budget_tokens"},
                                       {"/api/chat", "options.num_predict"},
                                       {"/api/chat", "options.temperature"},
                                       {"/api/chat", "options.num_ctx"},
                                       {"/api/chat", "options.repeat_last_n"},
                                       {"/api/chat", "keep_alive"},
                                       {"/completion", "id_slot"},
                                       {"/completion", "n_probs"},
                                       {"/completion", "temperature"},
                                       {"/v1/completions", "temperature"},
                                       {"/v1/completions", "top_p"},
                                       {"/v1/completions", "seed"},
                                       {"/api/generate", "options.top_k"},
                                       {"/api/generate", "options.seed"}};
  const std::vector<std::string> values = {"null",    "\"\"", "-1", "0",    "1e9",    "9223372036854775808",
                                           "\"NaN\"", "[]",   "{}", "true", "-1e300", "1.5"};
  for (const Numeric& f : fields) {
    for (const std::string& value : values) {
      // max_tokens comes first, so that the tested field wins where it is the same.
      Json body = {{"model", "demo"},
                   {"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                   {"prompt", "Hi"},
                   {"input", "Hi"},
                   {"stop", "e"},
                   {"max_tokens", 3},
                   {"n_predict", 3},
                   {"max_output_tokens", 3},
                   {"options", {{"num_predict", 3}}},
                   {"logprobs", std::string_view(f.path) == "/v1/completions" ? Json() : Json(true)},
                   {"thinking", {{"type", "disabled"}}}};
      if (std::string_view(f.path) == "/api/chat" || std::string_view(f.path) == "/api/generate")
        body["stream"] = false;
      const std::string field = f.field;
      const size_t dot = field.find('.');
      Json& place =
          dot == std::string::npos ? body[field] : body[field.substr(0, dot)][field.substr(dot + 1)];
      place = Json::parse(value);
      const RawReply reply = s.post(f.path, body);
      EXPECT_TRUE(reply.status == 200 || (reply.status >= 400 && reply.status < 500))
          << f.path << " " << field << "=" << value << ": " << reply.status << " " << reply.body;
      if (reply.status == 400 && std::string_view(f.path).starts_with("/v1/c")) {
        EXPECT_NE(reply.body.find(field), std::string::npos) << field << "=" << value << ": " << reply.body;
      }
    }
  }
  EXPECT_EQ(s.post("/v1/chat/completions", define_hope()).status, 200);
}

TEST(Api, SlotsAreSavedRestoredAndErased) {
  const test::TempFolder folder;
  ApiOptions api;
  api.slot_save_path = folder.path().string();
  EngineOptions engine;
  engine.max_sequences = 2;
  RunningServer s(RunningServer::any_port(), api, engine);
  const Json request = {{"prompt", "In the beginning God created the heaven and the earth."},
                        {"n_predict", 8},
                        {"temperature", 0},
                        {"id_slot", 1}};
  const auto act = [&](const char* target, const Json& body = Json::object()) {
    return s.post(target, body);
  };
  EXPECT_EQ(act("/slots/1?action=save", {{"filename", "a.kv"}}).status, 409) << "nothing was said yet";
  const Json first = s.post("/completion", request).json();
  EXPECT_EQ(first["id_slot"], 1);
  const RawReply saved = act("/slots/1?action=save", {{"filename", "a.kv"}});
  ASSERT_EQ(saved.status, 200) << saved.body;
  const int64_t n_saved = saved.json()["n_saved"];
  EXPECT_EQ(n_saved, first["tokens_evaluated"].get<int64_t>() + first["tokens_predicted"].get<int64_t>() - 1);
  EXPECT_EQ(saved.json()["n_written"], std::filesystem::file_size(folder / "a.kv"));
  s.engine().clear_cache();
  const RawReply restored = act("/slots/0?action=restore", {{"filename", "a.kv"}});
  ASSERT_EQ(restored.status, 200) << restored.body;
  EXPECT_EQ(restored.json()["n_restored"], n_saved);
  const Json again = s.post("/completion", request).json();
  EXPECT_EQ(again["content"], first["content"]);
  EXPECT_GT(again["tokens_cached"], 0);
  EXPECT_EQ(act("/slots/0?action=erase").json()["n_erased"], n_saved);
  EXPECT_EQ(act("/slots/0?action=erase").json()["n_erased"], 0);

  for (const char* name : {"", "..", "../a.kv", "/etc/passwd", ".hidden", "a b", "a\nb"}) {
    EXPECT_EQ(act("/slots/1?action=save", {{"filename", name}}).status, 400) << name;
  }
  EXPECT_EQ(act("/slots/1?action=save").status, 400);
  EXPECT_EQ(act("/slots/1?action=restore", {{"filename", "missing"}}).status, 404);
  std::ofstream(folder / "bad.kv") << "not a slot";
  EXPECT_EQ(act("/slots/1?action=restore", {{"filename", "bad.kv"}}).status, 400);
  EXPECT_EQ(act("/slots/1?action=dance").status, 400);
  for (const char* slot : {"/slots/2?action=erase", "/slots/-1?action=erase", "/slots/x?action=erase"}) {
    EXPECT_EQ(act(slot).status, 404) << slot;
  }
  EXPECT_EQ(shared_server().post("/slots/0?action=save", {{"filename", "a"}}).status, 501);
}

TEST(Api, UnsupportedFieldsAreRefusedByNameAndUnknownOnesIgnored) {
  RunningServer& s = shared_server();
  const auto status = [&](const char* path, Json extra) {
    Json body = define_hope(2);
    body["input"] = "Hi";
    body["prompt"] = "Hi";
    body.update(extra);
    return s.post(path, body);
  };
  const std::vector<std::tuple<const char*, Json, const char*>> refused = {
      {"/v1/chat/completions", {{"audio", {{"voice", "x"}}}}, "audio"},
      {"/v1/chat/completions", {{"modalities", {"audio"}}}, "modalities"},
      {"/v1/chat/completions", {{"web_search_options", {{"a", 1}}}}, "web_search_options"},
      {"/v1/chat/completions", {{"xtc_probability", 0.5}}, "xtc_probability"},
      {"/v1/chat/completions", {{"samplers", {"top_k"}}}, "samplers"},
      {"/v1/chat/completions", {{"n", 1000}}, "n"},
      {"/v1/chat/completions", {{"tool_choice", "required"}}, "tool_choice"},
      {"/v1/chat/completions", {{"response_format", {{"type", "xml"}}}}, "response_format.type"},
      {"/v1/chat/completions", {{"grammar", "root ::= ("}}, "grammar"},
      {"/v1/chat/completions", {{"logit_bias", {{"99999999", 1}}}}, "logit_bias.99999999"},
      {"/v1/chat/completions", {{"stop", {""}}}, "stop[0]"},
      {"/v1/completions", {{"suffix", "x"}}, "suffix"},
      {"/v1/completions", {{"best_of", 5}}, "best_of"},
      {"/v1/responses", {{"background", true}}, "background"},
      {"/v1/responses", {{"previous_response_id", "resp_1"}}, "previous_response_id"},
      {"/v1/responses", {{"conversation", "c"}}, "conversation"}};
  for (const auto& [path, extra, field] : refused) {
    const RawReply reply = status(path, extra);
    EXPECT_EQ(reply.status, 400) << path << field << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
  }
  const Json harmless = {{"metadata", {{"a", "b"}}},  {"store", true},           {"user", "u"},
                         {"service_tier", "auto"},    {"prompt_cache_key", "k"}, {"verbosity", "low"},
                         {"no_such_field", {1, 2, 3}}};
  EXPECT_EQ(status("/v1/chat/completions", harmless).status, 200);
}

TEST(Api, GrammarBombsAre400AndQuick) {
  RunningServer& s = shared_server();
  const std::clock_t start = std::clock();  // processor time: other programs do not count
  Json schema = {{"type", "string"}};
  for (int i = 0; i < 90; ++i) schema = {{"type", "array"}, {"items", schema}, {"minItems", 1000}};
  Json body = define_hope();
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  const int with_schema = s.post("/v1/chat/completions", body).status;
  EXPECT_TRUE(with_schema == 200 || with_schema == 400) << with_schema;
  body = define_hope();
  body["grammar"] = "root ::= (((\"a\"{1,9999}){1,9999}){1,9999}){1,9999}";
  const int with_repeats = s.post("/v1/chat/completions", body).status;
  EXPECT_TRUE(with_repeats == 200 || with_repeats == 400) << with_repeats;
  body["grammar"] = "root ::= root \"a\" | root";
  EXPECT_EQ(s.post("/v1/chat/completions", body).status, 400);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 20.0);
  EXPECT_EQ(s.post("/v1/chat/completions", define_hope()).status, 200);
}

TEST(Api, HostileBodiesAre400OnEveryRoute) {
  RunningServer& s = shared_server();
  const std::string deep(100'000, '[');
  const std::string deep_object = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += R"({"messages":)";
    return text;
  }();
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                           "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens",
                           "/v1/responses/input_tokens", "/api/chat", "/api/generate", "/api/show",
                           "/completion", "/tokenize", "/detokenize", "/apply-template"}) {
    for (const std::string& body :
         {std::string(), std::string("null"), std::string("[]"), std::string("\"text\""), deep,
          deep + std::string(deep.size(), ']'), deep_object, std::string("{\"model\": \"\xFF\xFE\"}"),
          std::string("{\"model\": \"\xED\xA0\x80\"}"), std::string("{\"model\": \"\\ud800\"}"),
          std::string("{\"model\""), std::string("\0\0\0\0", 4)}) {
      const int status = exchange(s.port(), post_text(path, body)).status;
      EXPECT_EQ(status, 400) << path << " " << body.substr(0, 40);
    }
  }
  EXPECT_EQ(s.post("/v1/chat/completions", define_hope()).status, 200);
}

TEST(Api, KeysGuardAllButHealth) {
  ApiOptions options;
  options.keys = {"first-key", "second-key"};
  RunningServer s(RunningServer::any_port(), options);
  EXPECT_EQ(s.get("/health").status, 200);
  EXPECT_EQ(s.get("/ready").status, 200);
  EXPECT_EQ(s.get("/v1/models").status, 401);
  EXPECT_EQ(s.get("/nowhere").status, 401);
  EXPECT_EQ(s.get("/v1/models", "Authorization: Bearer second-key\r\n").status, 200);
  EXPECT_EQ(s.get("/v1/models", "authorization: bearer first-key\r\n").status, 200);
  EXPECT_EQ(s.get("/v1/models", "x-api-key: first-key\r\n").status, 200);
  EXPECT_EQ(s.get("/v1/models", "x-api-key: first-ke\r\n").status, 401);
  EXPECT_EQ(s.get("/v1/models", "Authorization: Basic first-key\r\n").status, 401);
  const RawReply reply = s.post("/v1/messages", Json::object());
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.json()["error"]["type"], "authentication_error");
}

// What people and models say stays out of the log, in good requests and bad ones; ids and routes are in it.
TEST(Api, TheLogHasIdsAndNoTexts) {
  for (const bool is_json : {false, true}) {
    ApiOptions options;
    options.log_json = is_json;
    ::testing::internal::CaptureStderr();
    std::string answer;
    {
      RunningServer s(RunningServer::any_port(), options);
      Json request = define_hope();
      request["messages"][0]["content"] = "Define hope. xyzzyplugh";
      answer = s.post("/v1/chat/completions", request, "x-request-id: mine-1\r\n")
                   .json()["choices"][0]["message"]["content"];
      request["stream"] = true;
      s.post("/v1/chat/completions", request);
      request["temperature"] = "xyzzyplugh";
      EXPECT_EQ(s.post("/v1/chat/completions", request).status, 400);
      EXPECT_EQ(s.post("/v1/chat/completions",
                       {{"model", "xyzzyplugh"}, {"messages", {{{"role", "user"}, {"content", "x"}}}}})
                    .status,
                404);
      EXPECT_EQ(exchange(s.port(), post_text("/v1/chat/completions", "{\"xyzzyplugh")).status, 400);
      EXPECT_EQ(s.get("/v1/models?xyzzyplugh", "Authorization: Bearer xyzzyplugh\r\n").status, 200);
    }
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("xyzzyplugh"), std::string::npos) << log;
    EXPECT_EQ(log.find(answer), std::string::npos) << log;
    EXPECT_NE(log.find("mine-1"), std::string::npos) << log;
    EXPECT_NE(log.find("/v1/chat/completions"), std::string::npos) << log;
    if (!is_json) continue;
    for (size_t at = 0, end = 0; (end = log.find('\n', at)) != std::string::npos; at = end + 1) {
      EXPECT_TRUE(Json::accept(log.substr(at, end - at))) << log.substr(at, end - at);
    }
  }
}

TEST(Api, PagesOfOtherOriginsAreRefusedUnlessAllowed) {
  RunningServer& closed = shared_server();
  EXPECT_EQ(closed.get("/v1/models", "Origin: https://evil.example\r\n").status, 403);
  EXPECT_EQ(closed.get("/v1/models", "Origin: http://localhost\r\n").status, 200);  // equals Host
  ApiOptions options;
  options.cors_origins = {"https://app.example"};
  RunningServer open(RunningServer::any_port(), options);
  const RawReply allowed = open.get("/v1/models", "Origin: https://app.example\r\n");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_NE(allowed.head.find("Access-Control-Allow-Origin: https://app.example"), std::string::npos);
  EXPECT_EQ(open.get("/v1/models", "Origin: https://evil.example\r\n").status, 403);
  const RawReply preflight =
      exchange(open.port(),
               "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n"
               "Access-Control-Request-Headers: x-stainless-os, authorization\r\n\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_NE(preflight.head.find("Access-Control-Allow-Headers: x-stainless-os, authorization"),
            std::string::npos);
}

TEST(Api, AFullQueueIs429WithRetryAfter) {
  EngineOptions engine;
  engine.max_sequences = 1;
  engine.max_queued = 2;
  RunningServer s(RunningServer::any_port(), {}, engine);
  std::vector<RawClient> clients;
  Json request = define_hope(2000);
  request["ignore_eos"] = true;
  int refused = 0;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back(s.port());
    clients.back().send(post_text("/v1/chat/completions", request.dump()));
    std::this_thread::sleep_for(30ms);
  }
  for (RawClient& client : clients) {
    const std::string text = client.receive(50ms);
    if (text.find(" 429 ") == std::string::npos) continue;
    ++refused;
    EXPECT_NE(text.find("Retry-After: "), std::string::npos);
    EXPECT_NE(text.find("rate_limit_exceeded"), std::string::npos);
  }
  EXPECT_GE(refused, 2);
  clients.clear();  // all leave
  EXPECT_TRUE(s.becomes_idle());
  EXPECT_EQ(s.post("/v1/chat/completions", define_hope()).status, 200);
}

TEST(Api, LeavingFreesTheSlotAtEveryStage) {
  EngineOptions engine;
  engine.max_sequences = 1;
  RunningServer s(RunningServer::any_port(), {}, engine);
  Json request = define_hope(4000);
  request["ignore_eos"] = true;
  request["stream"] = true;
  RawClient decoding(s.port());
  decoding.send(post_text("/v1/chat/completions", request.dump()));
  std::string text;
  while (text.find("content\":\"") == std::string::npos) text += decoding.receive(5s);
  RawClient queued(s.port());
  queued.send(post_text("/v1/chat/completions", request.dump()));
  std::this_thread::sleep_for(50ms);
  queued.close();
  for (int i = 0; i < 200 && s.engine().stats().waiting > 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(s.engine().stats().waiting, 0);
  decoding.close();
  EXPECT_TRUE(s.becomes_idle(2.0));
  std::string long_text;
  for (int i = 0; i < 3000; ++i) long_text += "word ";
  request["messages"][0]["content"] = long_text;
  RawClient prefilling(s.port());
  prefilling.send(post_text("/v1/chat/completions", request.dump()));
  std::this_thread::sleep_for(50ms);
  prefilling.close();
  EXPECT_TRUE(s.becomes_idle(3.0));
}

TEST(Api, DrainLetsStreamsFinish) {
  RunningServer s;
  Json request = define_hope(200);
  request["ignore_eos"] = true;
  request["stream"] = true;
  RawClient client(s.port());
  client.send(post_text("/v1/chat/completions", request.dump()));
  std::this_thread::sleep_for(50ms);
  s.api().set_draining();
  EXPECT_TRUE(s.http().drain(60s));
  const RawReply reply = client.read_reply();
  EXPECT_TRUE(reply.is_complete);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST(Api, ManyClientsGetTheirOwnAnswers) {
  RunningServer& s = shared_server();
  const std::vector<std::string> questions = {"Define hope.", "What does door mean?", "Quote Genesis 1:1.",
                                              "Define sea."};
  const auto ask = [&](const std::string& question) {
    Json request = define_hope(16);
    request["messages"][0]["content"] = question;
    return s.post("/v1/chat/completions", request)
        .json()["choices"][0]["message"]["content"]
        .get<std::string>();
  };
  std::vector<std::string> alone;
  for (const std::string& q : questions) alone.push_back(ask(q));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i) {
        const auto q = static_cast<size_t>(t + i) % questions.size();
        if (ask(questions[q]) != alone[q]) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Api, FiveHundredHalfOpenSocketsDoNotStopTheNextRequest) {
  RunningServer& s = shared_server();
  std::vector<RawClient> clients;
  for (int i = 0; i < 500; ++i) {
    clients.emplace_back(s.port());
    clients.back().send(i % 2 == 0 ? "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{"
                                   : "GET /v1/mod");
  }
  EXPECT_EQ(s.post("/v1/chat/completions", define_hope()).status, 200);
}

}  // namespace
}  // namespace synod::server
