#include <algorithm>
#include <random>

#include "api/impl.h"
#include "backends/backends.h"
#include "base/log.h"
#include "engine/text_stream.h"

#ifndef SYNOD_VERSION
#define SYNOD_VERSION "unknown"
#endif

namespace synod::api {
namespace {

int64_t tensor_bytes(const Checkpoint& checkpoint) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) sum += tensor.bytes();
  return sum;
}

void report(const LoadOptions& options, int64_t done, int64_t total) {
  if (options.progress && !options.progress(done, total)) {
    fail(synod::Error::Kind::kFailure, "loading was cancelled");
  }
}

// Touches every page of the mapped weights, so that the first token does not wait for the disk.
void read_ahead(const Checkpoint& checkpoint, const LoadOptions& options, int64_t total) {
  if (!options.progress) return;
  constexpr int64_t kPage = 4096, kReport = int64_t{64} << 20;
  int64_t done = 0, reported = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const int64_t bytes = tensor.bytes();
    const volatile std::byte* data = tensor.data;
    for (int64_t i = 0; i < bytes; i += kPage) {
      static_cast<void>(data[i]);
      if (done + i - reported < kReport) continue;
      reported = done + i;
      report(options, reported, total);
    }
    done += bytes;
  }
}

struct Opened {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<synod::Model> model;
  synod::MemoryPlan plan;
};

Opened open(const LoadOptions& options) {
  // Results and errors reach the caller; the program's own log is not the library's.
  set_log_level(LogLevel::kError);
  set_progress_enabled(false);
  if (options.context_length < 0 || options.cache_bytes < 0 || options.max_sessions < 1) {
    fail(synod::Error::Kind::kUsage,
         "context_length and cache_bytes must be at least 0 and max_sessions at least 1, got {}, {}, {}",
         options.context_length, options.cache_bytes, options.max_sessions);
  }
  Opened opened;
  opened.checkpoint = std::make_unique<Checkpoint>(Checkpoint::open(options.path));
  opened.model = load_model(*opened.checkpoint, {});
  constexpr int64_t kChunk = 512;
  // A context nobody asked for must not refuse a model that runs well with less: pages grow as they are
  // needed.
  constexpr int64_t kModestContext = 4096;
  const int64_t whole = opened.model->info().context_length;
  const int64_t context =
      options.context_length > 0 ? options.context_length : std::min(whole, kModestContext);
  opened.plan = plan_memory(*opened.model, context, kChunk);
  return opened;
}

MemoryPlan public_plan(const synod::MemoryPlan& plan) {
  MemoryPlan result;
  result.context_length = plan.context_length;
  result.weight_bytes = plan.weight_bytes;
  result.cache_bytes = plan.cache_bytes;
  result.scratch_bytes = plan.scratch_bytes;
  result.available_bytes = available_memory();
  return result;
}

Finish public_finish(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return Finish::kStop;
    case FinishReason::kLength:
      return Finish::kLength;
    case FinishReason::kCancelled:
      break;
  }
  return Finish::kCancelled;
}

GenerationRequest make_request(std::vector<int32_t> prompt, const GenerateOptions& options) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = options.max_tokens;
  request.stop = options.stop;
  request.sampling.temperature = options.temperature;
  request.sampling.top_k = options.top_k;
  request.sampling.top_p = options.top_p;
  request.sampling.min_p = options.min_p;
  request.sampling.repetition_penalty = options.repetition_penalty;
  request.sampling.seed = options.seed ? *options.seed : std::random_device{}();
  return request;
}

// Collects a reply from the engine's events and hands pieces on.
class Receiver {
 public:
  // With a parser, `stops` end the content; without one the engine sees to them.
  Receiver(OutputParser* parser, const PieceCallback& on_piece, std::vector<std::string> stops)
      : parser_(parser), on_piece_(on_piece), stops_(std::move(stops)) {}

  // False to cancel.
  bool take(const TokensEvent& event) {
    if (parser_ == nullptr) return give({.channel = Channel::kContent, .text = event.text}, reply.content);
    // Ids say more than text: markers are tokens.
    std::vector<OutputEvent> events;
    for (const TokenInfo& token : event.tokens) parser_->push(token.id, events);
    return take(events);
  }
  void finish(bool complete) {
    if (parser_ == nullptr) return;
    std::vector<OutputEvent> events;
    parser_->finish(complete, events);
    take(events);
    give({.channel = Channel::kContent, .text = stops_.finish()}, reply.content);
  }
  bool stopped() const { return stops_.stopped().has_value(); }

  Reply reply;

 private:
  bool take(const std::vector<OutputEvent>& events) {
    bool go_on = true;
    for (const OutputEvent& event : events) {
      using Kind = OutputEvent::Kind;
      const auto call = static_cast<size_t>(std::max(event.tool_call, 0));
      switch (event.kind) {
        case Kind::kContent:
          go_on &= content(event.text);
          break;
        case Kind::kReasoning:
          go_on &= give({.channel = Channel::kReasoning, .text = event.text}, reply.reasoning);
          break;
        case Kind::kToolCallBegin:
          if (reply.tool_calls.size() <= call) reply.tool_calls.resize(call + 1);
          reply.tool_calls[call].name = event.text;
          go_on &= give({.channel = Channel::kToolCall,
                         .text = {},
                         .tool_call = event.tool_call,
                         .tool_name = reply.tool_calls[call].name},
                        scratch_);
          break;
        case Kind::kToolCallArguments:
          go_on &= give({.channel = Channel::kToolCall, .text = event.text, .tool_call = event.tool_call},
                        reply.tool_calls[call].arguments);
          break;
        case Kind::kToolCallEnd:
          break;
        case Kind::kToolCallError:  // complete calls only (stream_arguments = false): never begun
          go_on &= content(event.text);
          break;
      }
    }
    return go_on;
  }

  bool content(const std::string& text) {
    const std::string certain = stops_.push(text);
    return give({.channel = Channel::kContent, .text = certain}, reply.content) && !stopped();
  }

  bool give(const Piece& piece, std::string& whole) {
    whole += piece.text;
    if (piece.text.empty() && piece.tool_name.empty()) return true;
    return !on_piece_ || on_piece_(piece);
  }

  OutputParser* parser_;
  const PieceCallback& on_piece_;
  StopMatcher stops_;
  std::string scratch_;
};

}  // namespace

void rethrow_as_public() {
  try {
    throw;
  } catch (const QueueFull& error) {
    throw Error(ErrorKind::kBusy, error.what());
  } catch (const synod::Error& error) {
    switch (error.kind()) {
      case synod::Error::Kind::kUsage:
        throw Error(ErrorKind::kUsage, error.what());
      case synod::Error::Kind::kBadFile:
        throw Error(ErrorKind::kBadFile, error.what());
      case synod::Error::Kind::kNoMemory:
        throw Error(ErrorKind::kNoMemory, error.what());
      case synod::Error::Kind::kNotFound:
        throw Error(ErrorKind::kNotFound, error.what());
      default:
        throw Error(ErrorKind::kFailure, error.what());
    }
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kNoMemory, "out of memory");
  }
}

MemoryPlan Model::plan(const LoadOptions& options) {
  return translated([&] { return public_plan(open(options).plan); });
}

Model Model::load(const LoadOptions& options) {
  return translated([&] {
    auto impl = std::make_shared<Impl>();
    Opened opened = open(options);
    impl->checkpoint = std::move(opened.checkpoint);
    impl->model = std::move(opened.model);
    impl->plan = opened.plan;
    BackendOptions backend;
    backend.name = options.backend;
    backend.n_threads = options.n_threads;
    backend.plugin_dir = options.plugin_dir;
    impl->backend = open_backend(backend);
    const int64_t total = tensor_bytes(*impl->checkpoint);
    report(options, 0, total);
    if (!place_weights(*impl->model, *impl->backend, impl->plan, options.force)) {
      if (!options.force) require_fits(impl->plan, available_memory());
      read_ahead(*impl->checkpoint, options, total);
    }
    report(options, total, total);
    impl->tokenizer = std::make_unique<Tokenizer>(load_tokenizer(*impl->checkpoint));
    impl->dialogue = impl->model->dialogue();
    EngineOptions engine;
    engine.context_length = options.context_length;
    engine.cache_bytes = options.cache_bytes;
    engine.max_sequences = options.max_sessions;
    engine.cache_dir = options.cache_dir;
    engine.stop_ids = stop_ids(*impl->checkpoint, *impl->tokenizer, *impl->dialogue);
    engine.suppress = suppressed_ids(*impl->checkpoint, *impl->tokenizer);
    impl->engine = std::make_unique<Engine>(*impl->model, *impl->backend, *impl->tokenizer, engine);
    return Model(std::move(impl));
  });
}

ModelInfo Model::info() const {
  const synod::ModelInfo& i = impl_->model->info();
  ModelInfo info;
  info.architecture = i.architecture;
  info.name = i.name;
  info.n_layers = i.n_layers;
  info.d_model = i.d_model;
  info.vocab_size = i.vocab_size;
  info.n_experts = i.n_experts;
  info.n_experts_used = i.n_experts_used;
  info.context_length = impl_->engine->options().context_length;
  info.weight_bytes = impl_->model->weights().bytes();
  return info;
}

MemoryPlan Model::memory_plan() const { return public_plan(impl_->plan); }

std::vector<int32_t> Model::tokenize(std::string_view text, bool parse_special) const {
  return translated([&] { return impl_->tokenizer->encode(text, parse_special); });
}

std::string Model::detokenize(const std::vector<int32_t>& ids) const {
  return translated([&] {
    for (const int32_t id : ids) {
      if (id >= 0 && id < impl_->tokenizer->vocab_size()) continue;
      fail(synod::Error::Kind::kUsage, "token id must be 0 to {}, got {}", impl_->tokenizer->vocab_size() - 1,
           id);
    }
    return impl_->tokenizer->decode(ids);
  });
}

Reply Model::complete(std::string_view prompt, const GenerateOptions& options,
                      const PieceCallback& on_piece) const {
  return translated([&] {
    std::vector<int32_t> ids = impl_->tokenizer->encode(prompt, true);
    const auto& bos = impl_->tokenizer->data().bos;
    if (bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
    std::atomic<bool> cancelled{false};
    return impl_->generate(std::move(ids), options, false, on_piece, cancelled);
  });
}

Reply Model::Impl::generate(std::vector<int32_t> prompt, const GenerateOptions& options, bool parse,
                            const PieceCallback& on_piece, std::atomic<bool>& cancelled) {
  std::unique_ptr<OutputParser> parser;
  GenerationRequest request = make_request(std::move(prompt), options);
  check_stops(options.stop);
  if (parse) {
    request.stop.clear();  // they count in the content, not in reasoning, calls or markup
    // Nothing given to the caller is taken back.
    parser = dialogue->output_parser(*tokenizer, request.prompt, {.stream_arguments = false});
    request.keep_special = true;
    if (options.reasoning) {
      request.reasoning.max_tokens = options.reasoning_budget;
      request.reasoning.open_ids = tokenizer->encode(dialogue->reasoning_open(), true);
      request.reasoning.close_ids = tokenizer->encode(dialogue->reasoning_close(), true);
      const std::vector<int32_t>& open = request.reasoning.open_ids;
      request.reasoning.starts_open = !open.empty() && request.prompt.size() >= open.size() &&
                                      std::equal(open.rbegin(), open.rend(), request.prompt.rbegin());
    }
  }
  Receiver receiver(parser.get(), on_piece, parse ? options.stop : std::vector<std::string>{});
  EventQueue queue;
  const GenerationHandle handle = engine->submit(std::move(request), queue.sink());
  bool told = false;
  const auto cancel = [&] {
    if (!told) handle.cancel();
    told = true;
  };
  constexpr std::chrono::milliseconds kCancelPoll{20};
  while (true) {
    const std::optional<EngineEvent> event = queue.pop(kCancelPoll);
    if (cancelled.load()) cancel();
    if (!event) continue;
    if (const auto* tokens = std::get_if<TokensEvent>(&*event); tokens != nullptr && !told) {
      try {
        if (!receiver.take(*tokens)) cancel();
      } catch (...) {
        cancel();
        throw;
      }
    }
    if (const auto* failed = std::get_if<FailedEvent>(&*event)) {
      throw synod::Error(failed->kind, failed->message);
    }
    const auto* finished = std::get_if<FinishedEvent>(&*event);
    if (finished == nullptr) continue;
    receiver.finish(finished->reason == FinishReason::kStop);
    Reply reply = std::move(receiver.reply);
    reply.finish = receiver.stopped() ? Finish::kStop : public_finish(finished->reason);
    reply.prompt_tokens = finished->usage.prompt_tokens;
    reply.cached_tokens = finished->usage.cached_tokens;
    reply.completion_tokens = finished->usage.completion_tokens;
    reply.prompt_seconds = finished->timings.prompt_seconds;
    reply.decode_seconds = finished->timings.decode_seconds;
    return reply;
  }
}

const char* version() { return SYNOD_VERSION; }

}  // namespace synod::api
