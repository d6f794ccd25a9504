// The public API on the bundled models, C++ and C.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "synod/synod.h"
#include "synod/synod.hpp"
#include "temp_folder.h"

namespace synod::api {
namespace {

class Api : public ::testing::TestWithParam<const char*> {
 protected:
  std::string path() const {
    return std::string(SYNOD_SOURCE_DIR "/models/") + GetParam() + "-mini-q8_0.gguf";
  }
  Model load() const {
    LoadOptions options;
    options.path = path();
    return Model::load(options);
  }
};

TEST_P(Api, LoadsWithProgressAndTellsAboutTheModel) {
  LoadOptions options;
  options.path = path();
  int64_t last = -1, all = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    last = done;
    all = total;
    return true;
  };
  const Model model = Model::load(options);
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 1 << 20);
  EXPECT_EQ(model.info().architecture, GetParam());
  EXPECT_EQ(model.info().vocab_size, 8192);
  EXPECT_TRUE(model.memory_plan().fits());
  EXPECT_EQ(Model::plan(options).weight_bytes, model.info().weight_bytes);
  EXPECT_EQ(model.detokenize(model.tokenize("Two words")), "Two words");
  options.progress = [](int64_t, int64_t) { return false; };
  EXPECT_THROW(Model::load(options), Error);
}

TEST_P(Api, ConversationsStreamAndCostOnlyTheirOwnTokens) {
  const Model model = load();
  Session session = model.session("Be brief.");
  GenerateOptions options;
  options.max_tokens = 24;
  std::string streamed;
  const auto on_piece = [&](const Piece& piece) {
    if (piece.channel == Channel::kContent) streamed += piece.text;
    return true;
  };
  const Reply first = session.send("In the beginning", options, on_piece);
  EXPECT_EQ(streamed, first.content);
  EXPECT_GT(first.completion_tokens, 0);
  EXPECT_EQ(session.n_messages(), 3);
  const Reply second = session.send("And then?", options);
  EXPECT_GT(second.cached_tokens, 0);
  // The same conversation in another session says the same.
  Session again = model.session("Be brief.");
  EXPECT_EQ(again.send("In the beginning", options).content, first.content);
  EXPECT_EQ(again.send("And then?", options).content, second.content);
}

TEST_P(Api, CancelsFromTheCallbackAndFromAnotherThread) {
  const Model model = load();
  Session session = model.session();
  GenerateOptions options;
  options.max_tokens = 2000;
  options.temperature = 1.5F;
  options.seed = 5;
  int pieces = 0;
  const Reply reply = model.complete("In the", options, [&](const Piece&) { return ++pieces < 3; });
  EXPECT_TRUE(reply.finish == Finish::kCancelled || pieces < 3);
  EXPECT_LT(reply.completion_tokens, 2000);
}

TEST_P(Api, SavesAndRestoresConversations) {
  const test::TempFolder folder;
  const std::string file = (folder / "talk.json").string();
  GenerateOptions options;
  options.max_tokens = 16;
  std::string next;
  {
    const Model model = load();
    Session session = model.session(
        "A system text that is long enough to be worth keeping, word by word, for the "
        "next time that somebody asks about it.");
    session.send("In the beginning", options);
    session.save(file);
    next = session.send("And then?", options).content;
  }
  const Model model = load();
  Session session = model.session();
  session.restore(file);
  EXPECT_EQ(session.n_messages(), 3);
  const Reply reply = session.send("And then?", options);
  EXPECT_EQ(reply.content, next);
  EXPECT_GT(reply.cached_tokens, 0) << "the rows came back";
  // Damaged rows cost time, not truth; a damaged conversation is refused.
  std::filesystem::resize_file(file + ".kv", 1000);
  Session damaged = load().session();
  damaged.restore(file);
  EXPECT_EQ(damaged.send("And then?", options).content, next);
  std::ofstream(file) << "{\"synod_session\": 1, \"messages\": [3]}";
  EXPECT_THROW(damaged.restore(file), Error);
}

TEST_P(Api, ErrorsAreTypedAndLeaveTheConversation) {
  LoadOptions options;
  options.path = "/nowhere/model.gguf";
  try {
    Model::load(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  }
  options.path = path();
  options.backend = "abacus";
  EXPECT_THROW(Model::load(options), Error);
  const Model model = load();
  Session session = model.session();
  GenerateOptions bad;
  bad.top_p = 7;
  try {
    session.send("x", bad);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("top-p"), std::string::npos);
  }
  EXPECT_EQ(session.n_messages(), 0);
}

TEST_P(Api, TheCApiSaysTheSame) {
  synod_model* model = nullptr;
  ASSERT_EQ(synod_model_load(path().c_str(), nullptr, &model), SYNOD_OK) << synod_last_error();
  synod_model_info info{};
  EXPECT_EQ(synod_model_get_info(model, &info), SYNOD_USAGE) << "size was not set";
  info.size = sizeof(info);
  ASSERT_EQ(synod_model_get_info(model, &info), SYNOD_OK);
  EXPECT_STREQ(info.architecture, GetParam());
  int32_t ids[4];
  size_t n = 0;
  EXPECT_EQ(synod_model_tokenize(model, "one two three four five six", ids, 4, &n), SYNOD_USAGE);
  EXPECT_GT(n, 4U);
  synod_session* session = nullptr;
  ASSERT_EQ(synod_session_new(model, "Be brief.", &session), SYNOD_OK);
  synod_model_free(model);
  synod_generate_options options;
  synod_generate_options_init(&options);
  options.max_tokens = 24;
  std::string streamed;
  synod_reply reply{};
  reply.size = sizeof(reply);
  const auto on_piece = [](void* user, synod_channel channel, const char* text, size_t size) -> int32_t {
    if (channel == SYNOD_CONTENT) static_cast<std::string*>(user)->append(text, size);
    return 1;
  };
  ASSERT_EQ(synod_session_send(session, "In the beginning", &options, on_piece, &streamed, &reply), SYNOD_OK)
      << synod_last_error();
  EXPECT_EQ(streamed, reply.content);
  Session cpp = load().session("Be brief.");
  GenerateOptions same;
  same.max_tokens = 24;
  EXPECT_EQ(cpp.send("In the beginning", same).content, reply.content);
  const char* name = nullptr;
  const char* arguments = nullptr;
  EXPECT_EQ(synod_session_tool_call(session, 99, &name, &arguments), SYNOD_USAGE);
  EXPECT_EQ(synod_session_send(nullptr, "x", nullptr, nullptr, nullptr, nullptr), SYNOD_USAGE);
  EXPECT_NE(std::string(synod_last_error()).find("NULL"), std::string::npos);
  EXPECT_EQ(synod_model_load("/nowhere", nullptr, &model), SYNOD_NOT_FOUND);
  EXPECT_EQ(model, nullptr);
  synod_session_free(session);
  synod_session_free(nullptr);
  synod_model_free(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Families, Api, ::testing::Values("gemma4", "deepseek4"));

}  // namespace
}  // namespace synod::api
