#include "server/generation_run.h"

#include <algorithm>

#include "base/log.h"
#include "server/fields.h"

namespace synod::server {

void GenerationRun::launch(const Services& services, RunPlan plan, std::shared_ptr<HttpReply> reply) {
  const auto run = std::make_shared<GenerationRun>(services, std::move(plan), std::move(reply));
  run->submit();
}

GenerationRun::GenerationRun(const Services& services, RunPlan plan, std::shared_ptr<HttpReply> reply)
    : services_(services), plan_(std::move(plan)), reply_(std::move(reply)) {
  completion_.id = random_id(plan_.id_prefix);
  completion_.created = unix_seconds();
  completion_.model = plan_.model;
  completion_.slot = plan_.slot == nullptr ? -1 : plan_.slot->slot();
  for (const GenerationRequest& generation : plan_.generations) {
    for (int64_t c = 0; c < generation.n; ++c) {
      Writer writer;
      if (plan_.dialogue != nullptr) {
        writer.parser = plan_.dialogue->output_parser(services_.tokenizer, generation.prompt, plan_.parser);
      }
      writers_.push_back(std::move(writer));
    }
  }
  completion_.choices.resize(writers_.size());
}

void GenerationRun::submit() {
  const auto self = shared_from_this();
  try {
    for (size_t i = 0; i < plan_.generations.size(); ++i) {
      cancels_.push_back(services_.generator.submit(
          plan_.generations[i], [self, i](EngineEvent&& event) { self->receive(i, std::move(event)); }));
    }
  } catch (...) {
    cancel();  // the prompts before the one that was refused
    {
      const std::lock_guard lock(mutex_);
      inbox_.clear();
      is_done_ = true;
    }
    throw;
  }
  if (plan_.parameters.stream) {
    HttpHead head;
    head.content_type = plan_.format->content_type();
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    reply_->start(std::move(head), plan_.format->keepalive(), plan_.ping_interval);
  }
  reply_->on_close([weak = weak_from_this()] {
    if (const auto run = weak.lock()) run->cancel();
  });
  services_.tasks.post([self] { self->work(); });
}

void GenerationRun::cancel() {
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }
  for (const auto& cancel_one : cancels_) cancel_one();
}

void GenerationRun::receive(size_t generation, EngineEvent&& event) {
  bool must_post = false;
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_ && !is_last(event)) return;
    inbox_.push_back({generation, std::move(event), Clock::now()});
    must_post = !std::exchange(is_scheduled_, true);
  }
  if (must_post) services_.tasks.post([self = shared_from_this()] { self->work(); });
}

void GenerationRun::work() {
  while (true) {
    std::vector<Stamped> events;
    {
      const std::lock_guard lock(mutex_);
      if (inbox_.empty()) {
        is_scheduled_ = false;
        return;
      }
      events.swap(inbox_);
    }
    std::string out;
    try {
      for (const Stamped& stamped : events) {
        if (!is_done_) handle(stamped, out);
      }
    } catch (const std::exception& error) {
      log_line(LogLevel::kError, fmt::format("{}: unexpected: {}", plan_.request_id, error.what()));
      is_done_ = true;
      cancel();
      if (reply_) reply_->abort();
      reply_.reset();
      return;
    }
    if (!reply_) continue;
    if (plan_.parameters.stream) reply_->write(std::move(out));
    if (is_done_) {
      if (plan_.parameters.stream) reply_->finish();
      reply_.reset();  // the connection's callback holds this run no longer
    }
  }
}

void GenerationRun::handle(const Stamped& stamped, std::string& out) {
  std::visit(
      [&](const auto& event) {
        using E = std::decay_t<decltype(event)>;
        if constexpr (std::is_same_v<E, StartedEvent>) {
          started(event, stamped.generation, out);
        } else if constexpr (std::is_same_v<E, PrefillEvent>) {
          completion_.timings.prompt_seconds = std::chrono::duration<double>(stamped.time - arrival_).count();
          if (plan_.parameters.stream && n_started_ == plan_.generations.size()) {
            out += plan_.format->progress(completion_, event);
          }
        } else if constexpr (std::is_same_v<E, TokensEvent>) {
          tokens(event, stamped.generation, stamped.time, out);
        } else if constexpr (std::is_same_v<E, ChoiceFinishedEvent>) {
          choice_finished(event, stamped.generation, out);
        } else if constexpr (std::is_same_v<E, FinishedEvent>) {
          generation_over(event.usage, event.timings, stamped.time, out);
        } else {
          failed(event, out);
        }
      },
      stamped.event);
}

void GenerationRun::started(const StartedEvent& event, size_t, std::string& out) {
  completion_.usage.prompt_tokens += event.prompt_tokens;
  completion_.usage.cached_tokens += event.cached_tokens;
  if (n_started_++ == 0) {
    services_.metrics.queue_seconds.observe(std::chrono::duration<double>(Clock::now() - arrival_).count());
    if (plan_.parameters.stream) out += plan_.format->begin(completion_);
  }
}

void GenerationRun::tokens(const TokensEvent& event, size_t generation, Clock::time_point time,
                           std::string& out) {
  size_t choice = static_cast<size_t>(event.choice);
  for (size_t g = 0; g < generation; ++g) choice += static_cast<size_t>(plan_.generations[g].n);
  Writer& writer = writers_[choice];
  Choice& state = completion_.choices[choice];
  if (!event.tokens.empty()) {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    if (is_first_token_) {
      is_first_token_ = false;
      services_.metrics.time_to_first_token.observe(seconds(time - arrival_));
      completion_.timings.prompt_seconds = seconds(time - arrival_);
    }
    if (state.n_tokens > 0) services_.metrics.inter_token.observe(seconds(time - writer.last_token));
    writer.last_token = time;
    completion_.timings.decode_seconds = seconds(time - arrival_) - completion_.timings.prompt_seconds;
  }
  for (const TokenInfo& token : event.tokens) {
    ++state.n_tokens;
    ++completion_.usage.completion_tokens;
    if (choice == 0 && plan_.slot != nullptr) plan_.slot->ids.push_back(token.id);
    if (plan_.parameters.return_tokens) state.ids.push_back(token.id);
    if (writer.parser) {
      push_token(choice, token, out);
    } else if (plan_.parameters.logprobs && !token.bytes.empty()) {
      writer.unattributed.push_back(token);
    }
  }
  if (!writer.parser && !event.text.empty()) add_text(choice, Delta::Kind::kContent, event.text, out);
}

// Where the text may be cut: the first stop string in it, or the longest end with which one begins.
size_t GenerationRun::first_possible_stop(std::string_view text, bool with_whole_ones) const {
  size_t first = text.size();
  for (const std::string& stop : plan_.parameters.stop) {
    if (with_whole_ones) first = std::min(first, text.find(stop));
    for (size_t n = std::min(stop.size() - 1, text.size()); n > text.size() - first; --n) {
      if (text.substr(text.size() - n) == std::string_view(stop).substr(0, n)) {
        first = text.size() - n;
        break;
      }
    }
  }
  return first;
}

// The engine ends a text at a stop string but reports whole tokens; the parser needs tokens, because markers
// are tokens. So tokens wait here while they may be part of a stop string. With the token that completes one
// comes the end of the choice, unless stop strings do not count yet (min_tokens); then the next token tells.
void GenerationRun::push_token(size_t choice, TokenInfo token, std::string& out) {
  Writer& writer = writers_[choice];
  if (plan_.parameters.stop.empty()) return push_to_parser(choice, token, out);
  const auto release_before = [&](size_t end) {
    while (!writer.held.empty() && writer.held.front().bytes.size() <= end) {
      const size_t n_bytes = writer.held.front().bytes.size();
      push_to_parser(choice, writer.held.front(), out);
      writer.held_bytes.erase(0, n_bytes);
      writer.held.pop_front();
      end -= n_bytes;
    }
  };
  release_before(first_possible_stop(writer.held_bytes, /*with_whole_ones=*/false));
  writer.held_bytes += token.bytes;
  writer.held.push_back(std::move(token));
  release_before(first_possible_stop(writer.held_bytes, /*with_whole_ones=*/true));
}

void GenerationRun::release_held(size_t choice, std::string& out) {
  Writer& writer = writers_[choice];
  const std::string& stop = completion_.choices[choice].stop_string;
  const size_t end = stop.empty() ? std::string::npos : writer.held_bytes.find(stop);
  size_t at = 0;
  for (const TokenInfo& token : writer.held) {
    if (end != std::string::npos && at + token.bytes.size() > end) {
      std::vector<OutputEvent> events;
      writer.parser->push_text(std::string_view(token.bytes).substr(0, end - at), events);
      apply(choice, events, out);
      break;
    }
    push_to_parser(choice, token, out);
    at += token.bytes.size();
  }
  writer.held.clear();
  writer.held_bytes.clear();
}

void GenerationRun::push_to_parser(size_t choice, const TokenInfo& token, std::string& out) {
  Writer& writer = writers_[choice];
  if (plan_.parameters.logprobs && !token.bytes.empty()) writer.unattributed.push_back(token);
  std::vector<OutputEvent> events;
  writer.parser->push(token.id, events);
  apply(choice, events, out);
}

void GenerationRun::apply(size_t choice, const std::vector<OutputEvent>& events, std::string& out) {
  Choice& state = completion_.choices[choice];
  Writer& writer = writers_[choice];
  const auto call_at = [&](int32_t index) -> CompletedCall& {
    return state.calls[static_cast<size_t>(index)];
  };
  for (const OutputEvent& event : events) {
    const auto emit_call = [&](Delta::Kind kind) {
      emit({kind, static_cast<int64_t>(choice), event.text, static_cast<size_t>(event.tool_call), {}}, out);
    };
    switch (event.kind) {
      case OutputEvent::Kind::kContent:
        add_text(choice, Delta::Kind::kContent, event.text, out);
        break;
      case OutputEvent::Kind::kReasoning:
        writer.unattributed.clear();
        add_text(choice, Delta::Kind::kReasoning, event.text, out);
        break;
      case OutputEvent::Kind::kToolCallBegin:
        writer.unattributed.clear();
        state.calls.resize(static_cast<size_t>(event.tool_call) + 1);
        call_at(event.tool_call) = {random_id("call_"), event.text, "", false};
        emit_call(Delta::Kind::kCallBegin);
        break;
      case OutputEvent::Kind::kToolCallArguments:
        writer.unattributed.clear();
        call_at(event.tool_call).arguments += event.text;
        emit_call(Delta::Kind::kCallArguments);
        break;
      case OutputEvent::Kind::kToolCallEnd:
        emit_call(Delta::Kind::kCallEnd);
        break;
      case OutputEvent::Kind::kToolCallError:
        call_at(event.tool_call).is_error = true;
        emit_call(Delta::Kind::kCallEnd);
        // Streams have shown the call and cannot take it back; saying the same twice would not help them.
        if (!plan_.parameters.stream) add_text(choice, Delta::Kind::kContent, event.text, out);
        break;
    }
  }
}

void GenerationRun::add_text(size_t choice, Delta::Kind kind, std::string text, std::string& out) {
  Choice& state = completion_.choices[choice];
  Writer& writer = writers_[choice];
  if (plan_.dialogue != nullptr && plan_.parameters.reasoning_format == ReasoningFormat::kInline) {
    const bool is_reasoning = kind == Delta::Kind::kReasoning;
    if (is_reasoning != writer.in_reasoning) {
      text.insert(0, is_reasoning ? plan_.dialogue->reasoning_open() : plan_.dialogue->reasoning_close());
      writer.in_reasoning = is_reasoning;
    }
    kind = Delta::Kind::kContent;
  }
  (kind == Delta::Kind::kReasoning ? state.reasoning : state.content) += text;
  Delta delta{kind, static_cast<int64_t>(choice), std::move(text), 0, {}};
  if (kind == Delta::Kind::kContent && plan_.parameters.logprobs) {
    delta.logprobs = std::exchange(writer.unattributed, {});
    state.logprobs.insert(state.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  }
  emit(delta, out);
}

void GenerationRun::emit(const Delta& delta, std::string& out) {
  if (plan_.parameters.stream) out += plan_.format->delta(completion_, delta);
}

void GenerationRun::choice_finished(const ChoiceFinishedEvent& event, size_t generation, std::string& out) {
  size_t choice = static_cast<size_t>(event.choice);
  for (size_t g = 0; g < generation; ++g) choice += static_cast<size_t>(plan_.generations[g].n);
  Choice& state = completion_.choices[choice];
  Writer& writer = writers_[choice];
  state.is_finished = true;
  state.reason = event.reason;
  state.stop_string = event.stop_string;
  if (writer.parser) {
    release_held(choice, out);
    std::vector<OutputEvent> events;
    writer.parser->finish(event.reason == FinishReason::kStop, events);
    apply(choice, events, out);
    writer.parser.reset();
  }
  ++n_choices_finished_;
  if (n_choices_finished_ < writers_.size()) {
    if (plan_.parameters.stream) out += plan_.format->choice_end(completion_, static_cast<int64_t>(choice));
  } else {
    last_choice_ = choice;
  }
}

void GenerationRun::generation_over(const Usage& usage, const Timings& timings, Clock::time_point time,
                                    std::string& out) {
  final_usage_.prompt_tokens += usage.prompt_tokens;
  final_usage_.cached_tokens += usage.cached_tokens;
  final_usage_.completion_tokens += usage.completion_tokens;
  final_usage_.reasoning_tokens += usage.reasoning_tokens;
  final_usage_.drafted_tokens += usage.drafted_tokens;
  final_usage_.accepted_tokens += usage.accepted_tokens;
  final_timings_.queued_seconds = std::max(final_timings_.queued_seconds, timings.queued_seconds);
  final_timings_.prompt_seconds += timings.prompt_seconds;
  final_timings_.decode_seconds = std::max(final_timings_.decode_seconds, timings.decode_seconds);
  if (++n_over_ < plan_.generations.size()) return;
  plan_.slot.reset();  // before the reply: the client may ask for it at once
  completion_.usage = final_usage_;
  completion_.timings = final_timings_;
  services_.metrics.request_seconds.observe(std::chrono::duration<double>(time - arrival_).count());
  services_.metrics.prompt_tokens.observe(static_cast<double>(final_usage_.prompt_tokens));
  services_.metrics.completion_tokens.observe(static_cast<double>(final_usage_.completion_tokens));
  is_done_ = true;
  bool was_cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    was_cancelled = is_cancelled_;
  }
  if (was_cancelled) {
    reply_->abort();
    reply_.reset();
  } else if (plan_.parameters.stream) {
    out += plan_.format->end(completion_, static_cast<int64_t>(last_choice_));
  } else {
    HttpHead head;
    reply_->send(std::move(head), plan_.format->body(completion_));
  }
}

void GenerationRun::failed(const FailedEvent& event, std::string& out) {
  is_done_ = true;
  plan_.slot.reset();
  ApiError error(500, event.message);
  if (event.cause == FailedEvent::Cause::kDeadline) {
    error = ApiError(504, event.message, "", "timeout");
  } else if (event.cause == FailedEvent::Cause::kDrained) {
    error = ApiError(503, "the server is shutting down", "", "unavailable");
  } else {
    error = as_api_error(Error(event.kind, event.message));
  }
  log_line(LogLevel::kWarning, fmt::format("{}: {}", plan_.request_id, event.message));
  cancel();  // the other prompts of this request
  if (plan_.parameters.stream) {
    out += plan_.format->error(error, plan_.request_id);
    return;
  }
  HttpHead head;
  head.status = error.status;
  reply_->send(std::move(head), dump(error_json(error, plan_.style, plan_.request_id)));
}

}  // namespace synod::server
