#include "cli/answer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace synod::cli {

GenerationRequest chat_request(const EngineBundle& bundle, const Options& options,
                               const std::vector<ChatMessage>& messages, bool thinks) {
  const Tokenizer& tokenizer = *bundle.tokenizer;
  const Dialogue& dialogue = *bundle.dialogue;
  DialogueOptions form;
  form.thinking = thinks;
  GenerationRequest request;
  request.prompt = encode_prompt(tokenizer, dialogue.render(messages, form));
  request.sampling = bundle.sampling;
  request.max_tokens = options.max_tokens;
  ReasoningOptions& reasoning = request.reasoning;
  reasoning.open_ids = tokenizer.encode(dialogue.reasoning_open(), true);
  reasoning.close_ids = tokenizer.encode(dialogue.reasoning_close(), true);
  reasoning.max_tokens = options.reasoning_budget;
  reasoning.starts_open =
      !reasoning.open_ids.empty() && request.prompt.size() >= reasoning.open_ids.size() &&
      std::equal(reasoning.open_ids.rbegin(), reasoning.open_ids.rend(), request.prompt.rbegin());
  request.constrain_after_reasoning = thinks;
  return request;
}

Answer generate_answer(const EngineBundle& bundle, GenerationRequest request, bool parses,
                       const AnswerEvents& events) {
  std::unique_ptr<OutputParser> parser;
  // A call is shown when it is complete: what is on the screen cannot be taken back.
  if (parses) {
    parser = bundle.dialogue->output_parser(*bundle.tokenizer, request.prompt, {.stream_arguments = false});
  }
  request.progress = static_cast<bool>(events.prefill);
  EventQueue queue;
  const GenerationHandle handle = bundle.engine->submit(std::move(request), queue.sink());
  Answer answer;
  std::vector<OutputEvent> all, fresh;
  const auto give = [&] {
    for (const OutputEvent& event : fresh) events.output(event);
    all.insert(all.end(), fresh.begin(), fresh.end());
    fresh.clear();
  };
  bool is_cancelled = false;
  constexpr std::chrono::milliseconds kSignalPoll{50};
  for (bool is_over = false; !is_over;) {
    if (g_signal != 0 && !std::exchange(is_cancelled, true)) handle.cancel();
    const auto event = queue.pop(kSignalPoll);
    if (!event) continue;
    is_over = is_last(*event);
    if (const auto* prefill = std::get_if<PrefillEvent>(&*event)) {
      events.prefill(*prefill);
    } else if (const auto* tokens = std::get_if<TokensEvent>(&*event)) {
      for (const TokenInfo& token : tokens->tokens) {
        answer.ids.push_back(token.id);
        if (parser != nullptr) parser->push(token.id, fresh);
      }
      if (parser == nullptr && !tokens->text.empty()) {
        fresh.push_back({OutputEvent::Kind::kContent, tokens->text, -1});
      }
    } else if (const auto* finished = std::get_if<FinishedEvent>(&*event)) {
      if (parser != nullptr) parser->finish(finished->reason == FinishReason::kStop, fresh);
      answer.finished = *finished;
    } else if (const auto* failed = std::get_if<FailedEvent>(&*event)) {
      throw Error(failed->kind, failed->message);
    }
    give();
  }
  answer.output = collect(all);
  return answer;
}

void AnswerPrinter::show(const OutputEvent& event) {
  switch (event.kind) {
    case OutputEvent::Kind::kToolCallBegin:
      return print((is_at_line_start_ ? "" : "\n") + event.text + "(", false);
    case OutputEvent::Kind::kToolCallEnd:
      return print(")\n", false);
    case OutputEvent::Kind::kReasoning:
      return print(event.text, true);
    case OutputEvent::Kind::kContent:
    case OutputEvent::Kind::kToolCallArguments:
    case OutputEvent::Kind::kToolCallError:
      return print(event.text, false);
  }
}

void AnswerPrinter::print(const std::string& text, bool is_reasoning) {
  if (text.empty() || (is_reasoning && !shows_reasoning_)) return;
  if (is_reasoning != in_reasoning_ && is_terminal_)
    std::fputs(is_reasoning ? "\x1b[2m" : "\x1b[0m\n", stdout);
  in_reasoning_ = is_reasoning;
  const bool is_result = is_terminal_ || !is_reasoning;
  std::FILE* out = is_result ? stdout : stderr;
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
  if (is_result) is_at_line_start_ = text.back() == '\n';
}

void AnswerPrinter::end_line() {
  if (in_reasoning_ && is_terminal_) std::fputs("\x1b[0m", stdout);
  if (!is_at_line_start_) std::fputc('\n', stdout);
  std::fflush(stdout);
  in_reasoning_ = false;
  is_at_line_start_ = false;
}

}  // namespace synod::cli
