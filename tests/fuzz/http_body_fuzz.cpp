// Any body gives a request or an ApiError, for every API; what is accepted can be shown in every reply
// format. The first byte chooses the API.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "server/chat.h"
#include "server/ollama.h"
#include "server/openai.h"

namespace {

using namespace synod;
using namespace synod::server;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = [] {
    TokenizerData data;
    data.pieces = {"<unk>", "<bos>", "<turn|>"};
    data.kinds = {TokenKind::kUnknown, TokenKind::kControl, TokenKind::kControl};
    for (int byte = 0; byte < 256; ++byte) {
      data.pieces.push_back(fmt::format("<0x{:02X}>", byte));
      data.kinds.push_back(TokenKind::kByte);
    }
    data.unk = 0;
    data.bos = 1;
    data.eos = 2;
    return Tokenizer(std::move(data), "fuzz");
  }();
  return instance;
}

// A completion with everything in it.
void show(ReplyFormat& format, size_t n_choices) {
  Completion c;
  c.id = "id";
  c.choices.resize(n_choices);
  std::string out = format.begin(c) + format.progress(c, {1, 2});
  const TokenInfo token{3, "\xff", -1.0F, {{4, -2.0F}, {5, -2.0F}}};
  for (size_t i = 0; i < n_choices; ++i) {
    const auto choice = static_cast<int64_t>(i);
    c.choices[i].calls = {{"call_1", "f", R"({"a":1})", false}};
    out += format.delta(c, {Delta::Kind::kReasoning, choice, "r", 0, {}});
    out += format.delta(c, {Delta::Kind::kContent, choice, "\xc3\xa4", 0, {token}});
    for (const auto kind : {Delta::Kind::kCallBegin, Delta::Kind::kCallArguments, Delta::Kind::kCallEnd}) {
      out += format.delta(c, {kind, choice, "{}", 0, {}});
    }
    if (i + 1 < n_choices) out += format.choice_end(c, choice);
  }
  out += format.end(c, static_cast<int64_t>(n_choices) - 1);
  out += format.error(ApiError(500, "x"), "id");
  out += format.body(c);
  // No control character may break a frame.
  if (out.find('\0') != std::string::npos) __builtin_trap();
}

void use(uint8_t api, std::string_view text) {
  const RequestLimits limits{tokenizer(), 4, {}, false};
  const Json body = parse_json(text);
  const auto chat = [&](const ChatRequest& request, std::unique_ptr<ReplyFormat> format) {
    show(*format, static_cast<size_t>(request.parameters.n));
  };
  switch (api % 7) {
    case 0: {
      const ChatRequest r = read_openai_chat(body, limits);
      return chat(r, openai_chat_format(r));
    }
    case 1: {
      const ChatRequest r = read_anthropic(body, limits, false);
      return chat(r, anthropic_format(r));
    }
    case 2: {
      const ChatRequest r = read_responses(body, limits);
      return chat(r, responses_format(r, body));
    }
    case 3: {
      const ChatRequest r = read_ollama_chat(body, limits);
      return chat(r, ollama_chat_format(r));
    }
    case 4: {
      const TextRequest r = read_openai_completion(body, limits);
      return show(*openai_completion_format(r), r.prompts.size() * static_cast<size_t>(r.parameters.n));
    }
    case 5: {
      const TextRequest r = read_native_completion(body, limits);
      return show(*native_completion_format(r), static_cast<size_t>(r.parameters.n));
    }
    default: {
      const OllamaGenerate r = read_ollama_generate(body, limits);
      return show(*ollama_generate_format(r), 1);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  set_log_level(LogLevel::kError);
  if (size == 0) return 0;
  try {
    use(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const ApiError&) {
  } catch (const Error&) {
  }
  return 0;
}
