// Any sequence of tokens is parsed by both families without a crash, arguments of finished calls are JSON,
// and the events are the same when the text comes byte by byte. First byte: family and options; then bytes
// below 32 (but the newline) are special tokens and the others text.
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/deepseek4/output_parser.h"
#include "models/gemma4/output_parser.h"

namespace {

using namespace synod;

Tokenizer tokenizer(std::initializer_list<const char*> specials) {
  TokenizerData data;
  data.pieces.emplace_back("<unk>");
  data.kinds.push_back(TokenKind::kUnknown);
  for (const char* special : specials) {
    data.pieces.emplace_back(special);
    data.kinds.push_back(TokenKind::kControl);
  }
  for (int byte = 0; byte < 256; ++byte) {
    data.pieces.push_back(fmt::format("<0x{:02X}>", byte));
    data.kinds.push_back(TokenKind::kByte);
  }
  data.unk = 0;
  return Tokenizer(std::move(data), "fuzz");
}

std::vector<OutputEvent> merged(const std::vector<OutputEvent>& events) {
  std::vector<OutputEvent> result;
  for (const OutputEvent& event : events) {
    const bool joins = event.kind == OutputEvent::Kind::kContent ||
                       event.kind == OutputEvent::Kind::kReasoning ||
                       event.kind == OutputEvent::Kind::kToolCallArguments;
    if (joins && !result.empty() && result.back().kind == event.kind &&
        result.back().tool_call == event.tool_call) {
      result.back().text += event.text;
    } else {
      result.push_back(event);
    }
  }
  return result;
}

std::vector<OutputEvent> run(OutputParser& parser, std::string_view input, int n_specials, bool bytewise,
                             bool complete) {
  std::vector<OutputEvent> events;
  size_t begin = 0;
  for (size_t i = 0; i <= input.size(); ++i) {
    const bool special = i < input.size() && static_cast<unsigned char>(input[i]) < 32 && input[i] != '\n';
    if (i == input.size() || special || bytewise) {
      const size_t end = i == input.size() || special ? i : i + 1;
      parser.push_text(input.substr(begin, end - begin), events);
      begin = i + 1;
      if (special) parser.push(1 + input[i] % n_specials, events);
    }
  }
  parser.finish(complete, events);
  return merged(events);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer gemma =
      tokenizer({"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>", "<turn|>", "<|turn>"});
  static const Tokenizer deepseek =
      tokenizer({"<think>", "</think>", "｜DSML｜", "<｜end▁of▁sentence｜>", "<｜User｜>"});
  static const Tokenizer spelled = tokenizer({});
  if (size == 0) return 0;
  const uint8_t flags = data[0];
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const OutputParserOptions options{
      .stream_arguments = (flags & 1) != 0, .max_tool_calls = 3, .max_call_bytes = 500, .max_depth = 5};
  const bool is_gemma = (flags & 2) != 0;
  const bool spells = (flags & 4) != 0;
  const Tokenizer& used = spells ? spelled : is_gemma ? gemma : deepseek;
  const int n_specials = spells ? 1 : is_gemma ? 7 : 5;
  const std::vector<int32_t> prompt =
      (flags & 8) != 0 && !spells ? std::vector<int32_t>{1} : std::vector<int32_t>{};
  const auto parser = [&] {
    return is_gemma ? gemma4::make_output_parser(used, prompt, options)
                    : deepseek4::make_output_parser(used, prompt, options);
  };
  const bool complete = (flags & 16) != 0;
  const auto events = run(*parser(), input, n_specials, false, complete);
  if (events != run(*parser(), input, n_specials, true, complete)) __builtin_trap();
  for (const ParsedToolCall& call : collect(events).tool_calls) {
    if (!nlohmann::json::accept(call.arguments)) __builtin_trap();
  }
  return 0;
}
