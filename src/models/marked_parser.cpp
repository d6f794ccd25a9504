#include "models/marked_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace synod {

using Kind = OutputEvent::Kind;

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
}

bool is_json(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) return false;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return nlohmann::json::accept(text.begin(), text.end());
}

ParsedOutput collect(const std::vector<OutputEvent>& events) {
  ParsedOutput output;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kContent:
        output.content += event.text;
        break;
      case Kind::kReasoning:
        output.reasoning += event.text;
        break;
      case Kind::kToolCallBegin:
        output.tool_calls.push_back({event.text, ""});
        break;
      case Kind::kToolCallArguments:
        output.tool_calls.back().arguments += event.text;
        break;
      case Kind::kToolCallEnd:
        break;
      case Kind::kToolCallError:
        output.tool_calls.pop_back();
        output.content += event.text;
        break;
    }
  }
  return output;
}

MarkedParser::MarkedParser(const Tokenizer& tokenizer, std::span<const Marker> markers,
                           const OutputParserOptions& options)
    : tokenizer_(tokenizer), markers_(markers), options_(options) {
  for (const Marker& marker : markers) {
    if (const auto id = tokenizer.find(marker.text)) {
      ids_.emplace_back(*id, marker.byte);
    } else {
      spelled_.push_back(&marker);
    }
  }
  if (const auto eos = tokenizer.data().eos) ids_.emplace_back(*eos, kStopMarker);
}

void MarkedParser::begin_push(std::vector<OutputEvent>& events) {
  events_ = &events;
  n_old_events_ = events.size();
}

void MarkedParser::push(int32_t id, std::vector<OutputEvent>& events) {
  if (stopped_ || id < 0 || id >= tokenizer_.vocab_size()) return;
  begin_push(events);
  const auto known =
      std::find_if(ids_.begin(), ids_.end(), [&](const auto& entry) { return entry.first == id; });
  const TokenKind kind = tokenizer_.kind(id);
  if (known != ids_.end()) {
    border();
    mark(known->second);
  } else if (kind == TokenKind::kControl || kind == TokenKind::kUnknown || kind == TokenKind::kUnused) {
    border();  // a control token that means nothing here
  } else {
    take_bytes(tokenizer_.bytes_of(id));
  }
  events_ = nullptr;
}

void MarkedParser::push_text(std::string_view bytes, std::vector<OutputEvent>& events) {
  if (stopped_) return;
  begin_push(events);
  take_bytes(bytes);
  events_ = nullptr;
}

void MarkedParser::finish(bool complete, std::vector<OutputEvent>& events) {
  if (stopped_) return;
  begin_push(events);
  border();
  if (!stopped_) end(complete);
  stopped_ = true;
  events_ = nullptr;
}

void MarkedParser::take_bytes(std::string_view bytes) {
  const bool characters = tokenizer_.data().scheme == TokenizerData::Scheme::kCharacterBpe;
  undecoded_ += bytes;
  std::string text;
  undecoded_.erase(0, append_repaired(text, undecoded_,
                                      characters ? Utf8Repair::kPerByte : Utf8Repair::kPerSubpart, false));
  take_text(text);
}

void MarkedParser::border() {
  const bool characters = tokenizer_.data().scheme == TokenizerData::Scheme::kCharacterBpe;
  std::string text;
  append_repaired(text, undecoded_, characters ? Utf8Repair::kPerByte : Utf8Repair::kPerSubpart, true);
  undecoded_.clear();
  take_text(text);
  if (!stopped_) match_spelled(/*at_end=*/true);
}

void MarkedParser::take_text(std::string_view text) {
  if (spelled_.empty()) {
    for (const char c : text) step(static_cast<unsigned char>(c));
    return;
  }
  unmatched_ += text;
  match_spelled(/*at_end=*/false);
}

// The longest marker wins; where a longer one could still come, it is waited for.
void MarkedParser::match_spelled(bool at_end) {
  size_t at = 0;
  while (at < unmatched_.size() && !stopped_) {
    const std::string_view rest = std::string_view(unmatched_).substr(at);
    const Marker* match = nullptr;
    bool wait = false;
    for (const Marker* marker : spelled_) {
      if (rest.starts_with(marker->text)) {
        if (match == nullptr || marker->text.size() > match->text.size()) match = marker;
      } else if (!at_end && marker->text.starts_with(rest)) {
        wait = true;
      }
    }
    if (wait) break;
    if (match != nullptr) {
      at += match->text.size();
      mark(match->byte);
    } else {
      step(static_cast<unsigned char>(unmatched_[at++]));
    }
  }
  unmatched_.erase(0, at);
}

void MarkedParser::mark(MarkerByte byte) {
  if (stopped_) return;
  if (byte == kStopMarker) {
    end(/*complete=*/true);
    stopped_ = true;
  } else {
    consume(byte);
  }
}

void MarkedParser::step(unsigned char byte) {
  if (!stopped_) consume(byte);
}

void MarkedParser::emit(Kind kind, std::string_view text, int32_t call) {
  const bool joins = kind == Kind::kContent || kind == Kind::kReasoning || kind == Kind::kToolCallArguments;
  if (joins && text.empty()) return;
  const bool of_call = kind == Kind::kToolCallBegin || kind == Kind::kToolCallArguments;
  const bool waits = of_call && !options_.stream_arguments;
  std::vector<OutputEvent>& events = waits ? call_events_ : *events_;
  if (joins && events.size() > (waits ? 0 : n_old_events_) && events.back().kind == kind &&
      events.back().tool_call == call) {
    events.back().text += text;
  } else {
    events.push_back({kind, std::string(text), call});
  }
}

void MarkedParser::begin_raw() {
  raw_.clear();
  call_events_.clear();
  call_begun_ = false;
  muted_ = n_calls_ >= options_.max_tool_calls;
}

bool MarkedParser::raw(unsigned char byte) {
  if (raw_.size() >= options_.max_call_bytes) {
    raw_ += static_cast<char>(byte);
    fail_call();
    return false;
  }
  raw_ += static_cast<char>(byte);
  return true;
}

void MarkedParser::begin_call(std::string_view name) {
  call_begun_ = true;
  if (!muted_) emit(Kind::kToolCallBegin, name, n_calls_);
}

void MarkedParser::arguments(std::string_view json) {
  if (!muted_) emit(Kind::kToolCallArguments, json, n_calls_);
}

void MarkedParser::end_call() {
  if (muted_) {
    fail_call();
    return;
  }
  for (OutputEvent& event : call_events_) events_->push_back(std::move(event));
  emit(Kind::kToolCallEnd, "", n_calls_++);
  begin_raw();
}

void MarkedParser::fail_call() {
  const std::string text = plain(raw_);
  if (call_begun_ && !muted_ && options_.stream_arguments) {
    emit(Kind::kToolCallError, text, n_calls_++);
  } else {
    content(text);
  }
  begin_raw();
}

std::string MarkedParser::plain(std::string_view marked) const {
  std::string text;
  for (const char c : marked) {
    if (!is_marker(static_cast<unsigned char>(c))) {
      text += c;
      continue;
    }
    for (const Marker& marker : markers_) {
      if (marker.byte != static_cast<unsigned char>(c)) continue;
      text += marker.plain;
      break;
    }
  }
  return text;
}

}  // namespace synod
