// One prompt, one answer, by the same engine and parsers that serve and chat use.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/buffer.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/verbs.h"
#include "engine/grammar_constraint.h"

namespace synod::cli {
namespace {

// What --raw gives is the caller's own markup: special tokens in it count.
GenerationRequest raw_request(const EngineBundle& bundle, const Options& options, const std::string& text) {
  GenerationRequest request;
  request.prompt = bundle.tokenizer->encode(text, true);
  const auto& bos = bundle.tokenizer->data().bos;
  if (bos && (request.prompt.empty() || request.prompt.front() != *bos)) {
    request.prompt.insert(request.prompt.begin(), *bos);
  }
  request.keep_special = true;
  request.sampling = bundle.sampling;
  request.max_tokens = options.max_tokens;
  return request;
}

std::string text_or_file(const std::string& text, const std::string& file) {
  return file.empty() ? text : read_text_file(file);
}

// Null without a grammar or schema.
std::shared_ptr<const ConstraintFactory> constraint(const EngineBundle& bundle, const Options& options) {
  int given = 0;
  for (const std::string* source :
       {&options.grammar, &options.grammar_file, &options.json_schema, &options.json_schema_file}) {
    given += source->empty() ? 0 : 1;
  }
  if (given == 0) return nullptr;
  if (given > 1) fail(Error::Kind::kUsage, "expected one grammar or schema, got {}", given);
  const std::string grammar = text_or_file(options.grammar, options.grammar_file);
  if (!grammar.empty()) return constrain(Grammar::from_gbnf(grammar, bundle.vocabulary));
  const std::string schema = text_or_file(options.json_schema, options.json_schema_file);
  return constrain(Grammar::from_json_schema(schema, bundle.vocabulary));
}

GenerationRequest make_request(const EngineBundle& bundle, const Options& options) {
  const std::string text = read_prompt(options);
  GenerationRequest request;
  if (options.raw) {
    request = raw_request(bundle, options, text);
  } else {
    std::vector<ChatMessage> messages;
    if (!options.system.empty()) messages.push_back({"system", options.system, ""});
    messages.push_back({"user", text, ""});
    request = chat_request(bundle, options, messages, options.reasoning == "on");
  }
  request.sampling.seed = options.seed.value_or(0);
  request.ignore_eos = options.ignore_eos;
  request.constraint = constraint(bundle, options);
  return request;
}

void print_json(const Answer& answer, double load_seconds) {
  const Usage& usage = answer.finished.usage;
  const Timings& timings = answer.finished.timings;
  const int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  nlohmann::ordered_json calls = nlohmann::ordered_json::array();
  for (const ParsedToolCall& call : answer.output.tool_calls) {
    calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  }
  const nlohmann::ordered_json object = {
      {"schema_version", 1},
      {"text", answer.output.content},
      {"reasoning", answer.output.reasoning},
      {"tool_calls", std::move(calls)},
      {"ids", answer.ids},
      {"finish_reason", name(answer.finished.reason)},
      {"timings",
       {{"load_ms", load_seconds * 1e3},
        {"cache_n", usage.cached_tokens},
        {"prompt_n", computed},
        {"prompt_ms", timings.prompt_seconds * 1e3},
        {"prompt_per_second", server::tokens_per_second(computed, timings.prompt_seconds)},
        {"predicted_n", usage.completion_tokens},
        {"predicted_ms", timings.decode_seconds * 1e3},
        {"predicted_per_second",
         server::tokens_per_second(usage.completion_tokens - 1, timings.decode_seconds)}}}};
  std::printf("%s\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace

int run_verb(const Options& options) {
  const std::unique_ptr<EngineBundle> bundle = load_engine(options);
  GenerationRequest request = make_request(*bundle, options);
  const auto n_prompt = static_cast<int64_t>(request.prompt.size());
  AnswerPrinter printer(::isatty(STDOUT_FILENO) == 1, !options.quiet);
  std::optional<Progress> progress;
  progress.emplace("prompt", n_prompt, "tokens");
  int64_t done = 0;
  AnswerEvents events;
  events.prefill = [&](const PrefillEvent& event) {
    if (progress) progress->advance(event.done - std::exchange(done, event.done));
  };
  events.output = [&](const OutputEvent& event) {
    progress.reset();
    if (!options.json) printer.show(event);
  };
  const Answer answer = generate_answer(*bundle, std::move(request), !options.raw, events);
  progress.reset();
  bundle->engine->stop();
  bundle->profiler->finish(n_prompt + static_cast<int64_t>(answer.ids.size()));
  if (options.json) {
    print_json(answer, bundle->load_seconds);
  } else {
    printer.end_line();
    const Usage& usage = answer.finished.usage;
    const Timings& timings = answer.finished.timings;
    log_info("{} prompt tokens at {:.1f}/s, {} generated at {:.1f}/s, {}", usage.prompt_tokens,
             server::tokens_per_second(usage.prompt_tokens - usage.cached_tokens, timings.prompt_seconds),
             usage.completion_tokens,
             server::tokens_per_second(usage.completion_tokens - 1, timings.decode_seconds),
             name(answer.finished.reason));
  }
  return g_signal != 0 ? 128 + g_signal : 0;
}

}  // namespace synod::cli
