// Only the DSML mark is a token; the rest of a tag is ordinary text around it:
//   <DSML tool_calls> <DSML invoke name="F"> <DSML parameter name="P" string="true">raw</DSML parameter> ...
// Text that could begin a tag ("\n\n<", "</") is held back until the next byte tells.
#include "models/deepseek4/output_parser.h"

#include <array>
#include <optional>
#include <unordered_set>

#include "models/marked_parser.h"

namespace synod::deepseek4 {
namespace {

enum : MarkerByte { kThink = kFirstMarker, kEndThink, kDsml };

constexpr std::array kMarkers = {
    Marker{"<think>", kThink},
    Marker{"</think>", kEndThink},
    Marker{"｜DSML｜", kDsml},
    Marker{"<｜end▁of▁sentence｜>", kStopMarker},
    Marker{"<｜User｜>", kStopMarker},
    Marker{"<｜Assistant｜>", kStopMarker},
    Marker{"<｜begin▁of▁sentence｜>", kStopMarker},
};

constexpr size_t kMaxTag = 1024;  // bytes between the mark and ">"

struct Tag {
  enum class Kind { kCalls, kInvoke, kParameter, kOther };
  Kind kind = Kind::kOther;
  bool closes = false;
  std::string_view name;               // of an invoke or parameter
  std::optional<bool> is_string = {};  // of a parameter that says so
};

// `text`: what stands between the mark and ">".
Tag parse_tag(std::string_view text, bool closes) {
  Tag tag{.closes = closes};
  const auto take = [&](std::string_view head) {
    if (!text.starts_with(head)) return false;
    text.remove_prefix(head.size());
    return true;
  };
  const auto take_end = [&](std::string_view tail) {
    if (!text.ends_with(tail)) return false;
    text.remove_suffix(tail.size());
    return true;
  };
  if (text == "tool_calls" || text == "function_calls") {
    tag.kind = Tag::Kind::kCalls;
  } else if (closes) {
    if (text == "invoke") tag.kind = Tag::Kind::kInvoke;
    if (text == "parameter") tag.kind = Tag::Kind::kParameter;
  } else if (take("invoke name=\"")) {
    if (take_end("\"") && !text.empty()) tag.kind = Tag::Kind::kInvoke;
    tag.name = text;
  } else if (take("parameter name=\"")) {
    if (take_end("\" string=\"true\"")) {
      tag.is_string = true;
    } else if (take_end("\" string=\"false\"")) {
      tag.is_string = false;
    } else if (!take_end("\"")) {
      return tag;
    }
    tag.kind = Tag::Kind::kParameter;
    tag.name = text;
  }
  return tag;
}

// A quoted name may contain ">": such a tag ends at `">`.
bool tag_ends(std::string_view text) {
  const bool quoted = text.find('"') != std::string_view::npos;
  return !quoted ||
         (text.ends_with('"') && text.substr(0, text.size() - 1).find('"') != std::string_view::npos);
}

bool is_blank(unsigned char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

enum class State {
  kReasoning,
  kContent,
  kAfterCalls,  // content, but blanks alone are not worth reporting
  kCalls,       // in the block, between calls
  kInvoke,      // in a call, between parameters
  kParameter,   // in a value
};

class Deepseek4OutputParser final : public MarkedParser {
 public:
  Deepseek4OutputParser(const Tokenizer& tokenizer, const OutputParserOptions& options, State state)
      : MarkedParser(tokenizer, kMarkers, options), state_(state) {}

 private:
  void consume(unsigned char byte) override {
    if (in_tag_) {
      continue_tag(byte);
    } else if (byte == kDsml) {
      begin_tag();
    } else if (byte == kThink || byte == kEndThink) {
      think(byte);
    } else {
      text(byte);
    }
  }

  void end(bool complete) override {
    if (in_tag_) abandon_tag();
    const bool in_value = state_ == State::kParameter;
    release();
    if (in_value || (state_ == State::kInvoke && !complete)) {
      fail_call();
    } else if (state_ == State::kInvoke) {
      close_call();
    }
    state_ = State::kContent;
  }

  bool in_call() const { return state_ == State::kInvoke || state_ == State::kParameter; }

  // What may precede a tag and belongs to it: up to two newlines and "<" before the block, "<" or "</"
  // elsewhere.
  bool may_precede(std::string_view held) const {
    if (state_ == State::kReasoning || state_ == State::kContent) {
      return held == "\n" || held == "\n\n" || held == "<" || held == "\n<" || held == "\n\n<" ||
             held == "</" || held == "\n</" || held == "\n\n</";
    }
    if (state_ == State::kParameter) return held == "<" || held == "</";
    while (!held.empty() && is_blank(static_cast<unsigned char>(held.front()))) held.remove_prefix(1);
    return held.empty() || held == "<" || held == "</";
  }

  void text(unsigned char byte) {
    held_ += static_cast<char>(byte);
    // A run of blanks between tags says nothing; one is enough.
    const bool structural = state_ == State::kCalls || state_ == State::kInvoke;
    if (structural && is_blank(byte) && held_.size() > 1 && is_blank(static_cast<unsigned char>(held_[0]))) {
      if (is_blank(static_cast<unsigned char>(held_[held_.size() - 2]))) held_.pop_back();
    }
    while (!held_.empty() && (!may_precede(held_) || held_.size() > kMaxTag)) {
      const auto first = static_cast<unsigned char>(held_.front());
      held_.erase(0, 1);
      plain_text(first);
    }
  }

  // Text that belongs to no tag.
  void plain_text(unsigned char byte) {
    const char c = static_cast<char>(byte);
    const std::string_view one(&c, 1);
    switch (state_) {
      case State::kReasoning:
        reasoning(one);
        break;
      case State::kAfterCalls:
        state_ = State::kContent;
        [[fallthrough]];
      case State::kContent:
        content(one);
        break;
      case State::kCalls:
        if (is_blank(byte)) break;
        state_ = State::kContent;
        content(one);
        break;
      case State::kInvoke:
        if (!is_blank(byte)) abandon_call(byte);
        break;
      case State::kParameter:
        value(byte);
        break;
    }
  }

  // Lets go of what was held back for a tag that did not come.
  void release() {
    std::string held;
    held.swap(held_);
    if (state_ != State::kAfterCalls || held.find('<') != std::string::npos) {
      for (const char c : held) plain_text(static_cast<unsigned char>(c));
    }
  }

  void think(unsigned char byte) {
    release();
    if (in_call()) {
      // In a value it is text that the model means.
      for (const char c : kMarkers[byte == kThink ? 0 : 1].text) plain_text(static_cast<unsigned char>(c));
    } else {
      state_ = byte == kThink ? State::kReasoning : State::kContent;
    }
  }

  void begin_tag() {
    const bool opens = held_.ends_with('<');
    if (!opens && !held_.ends_with("</")) {  // a mark alone means nothing
      release();
      return;
    }
    in_tag_ = true;
    tag_closes_ = !opens;
    tag_.clear();
  }

  void continue_tag(unsigned char byte) {
    if (byte == '>' && tag_ends(tag_)) {
      in_tag_ = false;
      const std::string text = tag_;
      take(parse_tag(text, tag_closes_), text);
    } else if (is_marker(byte) || tag_.size() >= kMaxTag || byte == '\n') {
      abandon_tag();
      consume(byte);
    } else {
      tag_ += static_cast<char>(byte);
    }
  }

  // It was no tag: its text stays, without the mark.
  void abandon_tag() {
    in_tag_ = false;
    release();
    for (const char c : tag_) plain_text(static_cast<unsigned char>(c));
    tag_.clear();
  }

  void take(const Tag& tag, const std::string& text) {
    switch (tag.kind) {
      case Tag::Kind::kCalls:
        take_calls(tag);
        break;
      case Tag::Kind::kInvoke:
        take_invoke(tag);
        break;
      case Tag::Kind::kParameter:
        take_parameter(tag, text);
        break;
      case Tag::Kind::kOther:
        tag_ = text + ">";
        abandon_tag();
        break;
    }
  }

  // The newlines and the bracket that were held for a tag belong to it; other text before it does not.
  void drop_held() { held_.clear(); }

  void take_calls(const Tag& tag) {
    drop_held();
    if (in_call()) close_call();
    state_ = tag.closes ? State::kAfterCalls : State::kCalls;
  }

  void take_invoke(const Tag& tag) {
    drop_held();
    if (in_call()) close_call();
    if (tag.closes) return;  // a stray one means nothing
    begin_raw();
    for (const char c : "<invoke name=\"" + std::string(tag.name) + "\">") {
      if (!raw_or_fail(static_cast<unsigned char>(c))) return;
    }
    names_.clear();
    begin_call(tag.name);
    arguments("{");
    state_ = State::kInvoke;
  }

  void take_parameter(const Tag& tag, const std::string& text) {
    if (!in_call()) {  // a parameter of no call
      tag_ = text + ">";
      abandon_tag();
      return;
    }
    if (state_ == State::kParameter) close_value();
    drop_held();
    const std::string shown = (tag.closes ? "</" : "<") + text + ">";
    for (const char c : shown) {
      if (!raw_or_fail(static_cast<unsigned char>(c))) return;
    }
    if (tag.closes) return;
    if (!names_.insert(std::string(tag.name)).second) {  // the second would hide the first
      fail();
      return;
    }
    std::string json = names_.size() > 1 ? "," : "";
    json += '"';
    append_json_escaped(json, tag.name);
    json += "\":";
    is_string_ = tag.is_string.value_or(false);
    if (is_string_) json += '"';
    arguments(json);
    value_.clear();
    state_ = State::kParameter;
  }

  void value(unsigned char byte) {
    if (!raw_or_fail(byte)) return;
    const char c = static_cast<char>(byte);
    if (!is_string_) {
      value_ += c;
      return;
    }
    std::string json;
    append_json_escaped(json, std::string_view(&c, 1));
    arguments(json);
  }

  void close_value() {
    if (is_string_) {
      arguments("\"");
    } else if (is_json(value_, options().max_depth)) {
      arguments(value_);
    } else {  // not JSON after all: kept as it stands
      std::string json = "\"";
      append_json_escaped(json, value_);
      arguments(json + '"');
    }
    value_.clear();
    state_ = State::kInvoke;
  }

  void close_call() {
    if (state_ == State::kParameter) close_value();
    arguments("}");
    end_call();
    state_ = State::kCalls;
  }

  bool raw_or_fail(unsigned char byte) {
    if (raw(byte)) return true;
    state_ = State::kContent;  // it has failed already, and the rest is text
    return false;
  }

  void fail() {
    fail_call();
    state_ = State::kContent;
  }

  // Text where a parameter should be.
  void abandon_call(unsigned char byte) {
    fail();
    plain_text(byte);
  }

  State state_;
  std::string held_;  // may precede a tag
  bool in_tag_ = false;
  bool tag_closes_ = false;
  std::string tag_;                        // since the mark
  std::unordered_set<std::string> names_;  // parameters of the call
  bool is_string_ = false;
  std::string value_;  // of a parameter that is not a string
};

// Reasoning goes on when the last mark of the prompt is <think>.
State state_after(const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  constexpr std::string_view kOpen = "<think>";
  const auto open = tokenizer.find(kOpen);
  if (!open) {
    const size_t tail = std::min<size_t>(prompt.size(), kOpen.size());
    return tokenizer.decode(prompt.last(tail)).ends_with(kOpen) ? State::kReasoning : State::kContent;
  }
  for (size_t i = prompt.size(); i > 0; --i) {
    const int32_t id = prompt[i - 1];
    if (id == *open) return State::kReasoning;
    for (const Marker& marker : kMarkers) {
      if (marker.byte != kDsml && tokenizer.find(marker.text) == id) return State::kContent;
    }
  }
  return State::kContent;
}

}  // namespace

std::unique_ptr<OutputParser> make_output_parser(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                                 const OutputParserOptions& options) {
  return std::make_unique<Deepseek4OutputParser>(tokenizer, options, state_after(tokenizer, prompt));
}

}  // namespace synod::deepseek4
