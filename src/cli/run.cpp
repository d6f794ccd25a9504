#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/profiling.h"
#include "cli/verbs.h"
#include "engine/generate.h"

namespace synod::cli {
namespace {

// Flags win over the model's generation_config.json; greedy when neither says anything, so that a run
// repeats.
SamplerOptions sampler_options(const Options& options, const Checkpoint& checkpoint) {
  SamplerOptions s;
  if (checkpoint.container() == Checkpoint::Container::kSafetensors) {
    const nlohmann::json& config = checkpoint.generation_config();
    const auto number = [&](const char* key, auto fallback) {
      if (!config.is_object() || !config.contains(key) || !config[key].is_number()) return fallback;
      return config[key].get<decltype(fallback)>();
    };
    s.temperature = number("temperature", s.temperature);
    s.top_k = number("top_k", s.top_k);
    s.top_p = number("top_p", s.top_p);
  }
  if (options.temperature) s.temperature = static_cast<float>(*options.temperature);
  if (options.top_k) s.top_k = *options.top_k;
  if (options.top_p) s.top_p = static_cast<float>(*options.top_p);
  if (options.min_p) s.min_p = static_cast<float>(*options.min_p);
  s.seed = options.seed.value_or(0);
  s.check();
  return s;
}

std::vector<int32_t> prompt_ids(const Options& options, const LoadedModel& loaded,
                                const Tokenizer& tokenizer) {
  const std::string text = read_prompt(options);
  if (options.raw) {
    // What --raw gives is the caller's own markup: special tokens in it count.
    std::vector<int32_t> ids = tokenizer.encode(text, true);
    const auto& bos = tokenizer.data().bos;
    if (bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
    return ids;
  }
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system, ""});
  messages.push_back({"user", text, ""});
  const DialogueOptions dialogue{.thinking = options.reasoning == "on"};
  return encode_prompt(tokenizer, loaded.model->dialogue()->render(messages, dialogue));
}

// Splits the streamed text at the reasoning markers. Markers may arrive in pieces, so a tail that could still
// become one is held back.
class ChannelSplitter {
 public:
  ChannelSplitter(std::string open, std::string close, bool in_reasoning)
      : open_(std::move(open)), close_(std::move(close)), in_reasoning_(in_reasoning) {}

  template <typename Emit>  // emit(text, is_reasoning)
  void push(const std::string& text, bool last, Emit&& emit) {
    pending_ += text;
    while (true) {
      const std::string& marker = in_reasoning_ ? close_ : open_;
      const size_t at = marker.empty() ? std::string::npos : pending_.find(marker);
      if (at == std::string::npos) break;
      if (at > 0) emit(pending_.substr(0, at), in_reasoning_);
      pending_.erase(0, at + marker.size());
      in_reasoning_ = !in_reasoning_;
    }
    const size_t keep = last ? 0 : held_back();
    if (pending_.size() > keep) {
      emit(pending_.substr(0, pending_.size() - keep), in_reasoning_);
      pending_.erase(0, pending_.size() - keep);
    }
  }

 private:
  size_t held_back() const {
    const std::string& marker = in_reasoning_ ? close_ : open_;
    for (size_t n = std::min(marker.size() - (marker.empty() ? 0 : 1), pending_.size()); n > 0; --n) {
      if (std::string_view(pending_).substr(pending_.size() - n) == std::string_view(marker).substr(0, n))
        return n;
    }
    return 0;
  }

  std::string open_, close_, pending_;
  bool in_reasoning_;
};

bool ends_with_open_channel(const std::string& prompt, std::string_view open) {
  return !open.empty() && prompt.size() >= open.size() && std::string_view(prompt).ends_with(open);
}

}  // namespace

int run_verb(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const LoadedModel loaded = load(options);
  const Tokenizer tokenizer = load_tokenizer(*loaded.checkpoint);
  const std::unique_ptr<Dialogue> dialogue = loaded.model->dialogue();
  GenerateOptions generation;
  generation.sampler = sampler_options(options, *loaded.checkpoint);
  generation.sampler.suppress = suppressed_ids(*loaded.checkpoint, tokenizer);
  generation.max_tokens = options.max_tokens;
  generation.context_length = options.context_length;
  generation.prefill_chunk = options.chunk;
  if (!options.ignore_eos) generation.stop_ids = stop_ids(*loaded.checkpoint, tokenizer, *dialogue);
  const std::vector<int32_t> prompt = prompt_ids(options, loaded, tokenizer);

  Profiler profiler(options, *loaded.model, *loaded.backend);
  Session session(*loaded.model, profiler.backend());
  if (options.warm_up) session.warm_up();
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  StreamDecoder decoder(tokenizer, /*keep_special=*/true);
  const bool opened =
      !options.raw && ends_with_open_channel(tokenizer.decode(prompt), dialogue->reasoning_open());
  ChannelSplitter channels(options.raw ? "" : std::string(dialogue->reasoning_open()),
                           options.raw ? "" : std::string(dialogue->reasoning_close()), opened);
  std::string content, reasoning;
  const bool tty = ::isatty(STDOUT_FILENO) == 1;
  const auto emit = [&](const std::string& text, bool is_reasoning) {
    (is_reasoning ? reasoning : content) += text;
    // Reasoning is not the answer: it goes to stderr, dimmed on a terminal.
    if (options.json || (is_reasoning && options.quiet)) return;
    const bool dim = is_reasoning && tty;
    std::FILE* out = is_reasoning ? stderr : stdout;
    std::fprintf(out, "%s%s%s", dim ? "\x1b[2m" : "", text.c_str(), dim ? "\x1b[0m" : "");
    std::fflush(out);
  };
  std::optional<Progress> progress;
  progress.emplace("prompt", static_cast<int64_t>(prompt.size()), "tokens");
  const GenerateResult result = generate(
      session, prompt, generation,
      [&](int32_t token) {
        progress.reset();
        const std::string text = decoder.push(token);
        if (!text.empty()) channels.push(text, false, emit);
        return g_signal == 0;
      },
      [&](int64_t) {
        progress->advance(options.chunk);
        return g_signal == 0;
      });
  progress.reset();
  channels.push(decoder.flush(), true, emit);
  profiler.finish(session);

  const auto predicted = static_cast<int64_t>(result.ids.size());
  const auto rate = [](int64_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0.0; };
  const double decode_rate = rate(predicted - 1, result.decode_seconds);
  if (options.json) {
    const nlohmann::ordered_json object = {
        {"schema_version", 1},
        {"text", content},
        {"reasoning", reasoning},
        {"ids", result.ids},
        {"finish_reason", name(result.finish)},
        {"timings",
         {{"load_ms", load_seconds * 1e3},
          {"prompt_n", result.prompt_tokens},
          {"prompt_ms", result.prompt_seconds * 1e3},
          {"prompt_per_second", rate(result.prompt_tokens, result.prompt_seconds)},
          {"predicted_n", predicted},
          {"predicted_ms", result.decode_seconds * 1e3},
          {"predicted_per_second", decode_rate}}}};
    std::printf("%s\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    if (!content.empty() && content.back() != '\n') std::fputc('\n', stdout);
    log_info("{} prompt tokens at {:.1f}/s, {} generated at {:.1f}/s, {}", result.prompt_tokens,
             rate(result.prompt_tokens, result.prompt_seconds), predicted, decode_rate, name(result.finish));
  }
  return g_signal != 0 ? 128 + g_signal : 0;
}

}  // namespace synod::cli
