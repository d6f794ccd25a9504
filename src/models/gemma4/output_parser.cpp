#include "models/gemma4/output_parser.h"

#include <array>

#include "models/gemma4/argument_reader.h"
#include "models/marked_parser.h"

namespace synod::gemma4 {
namespace {

enum : MarkerByte {
  kChannelOpen = kFirstMarker,
  kChannelClose,
  kCallOpen,
  kCallClose,
  kQuote,
};
static_assert(kQuote == ArgumentReader::kQuote);

constexpr std::array kMarkers = {
    Marker{"<|channel>", kChannelOpen},      Marker{"<channel|>", kChannelClose},
    Marker{"<|tool_call>", kCallOpen},       Marker{"<tool_call|>", kCallClose},
    Marker{"<|\"|>", kQuote, "\""},          Marker{"<turn|>", kStopMarker},
    Marker{"<|tool_response>", kStopMarker}, Marker{"<eos>", kStopMarker},
};

constexpr std::string_view kThought = "thought\n";
constexpr std::string_view kCall = "call:";
constexpr size_t kMaxChannelName = 64;  // bytes; what is longer is no name
constexpr size_t kMaxCallHead = 512;    // bytes of "call:NAME"

enum class State {
  kContent,
  kUnmarkedThought,  // after a tool's response reasoning may begin without its marker
  kChannelName,
  kReasoning,
  kCallHead,
  kArguments,
  kCallDone,    // the braces are closed
  kFailedCall,  // what is left of a malformed call is content
};

class Gemma4OutputParser final : public MarkedParser {
 public:
  Gemma4OutputParser(const Tokenizer& tokenizer, const OutputParserOptions& options, State state,
                     std::string held)
      : MarkedParser(tokenizer, kMarkers, options),
        state_(state),
        held_(std::move(held)),
        arguments_(options.max_depth) {}

 private:
  void consume(unsigned char byte) override {
    switch (state_) {
      case State::kContent:
        in_content(byte);
        break;
      case State::kUnmarkedThought:
        in_unmarked_thought(byte);
        break;
      case State::kChannelName:
        in_channel_name(byte);
        break;
      case State::kReasoning:
        in_reasoning(byte);
        break;
      case State::kCallHead:
      case State::kArguments:
      case State::kCallDone:
        in_call(byte);
        break;
      case State::kFailedCall:
        if (byte == kCallClose) {
          state_ = State::kContent;
        } else {
          in_content(byte);
        }
        break;
    }
  }

  void end(bool /*complete*/) override {
    switch (state_) {
      case State::kUnmarkedThought:
        content(held_);
        break;
      case State::kChannelName:
        leave_channel_name();
        break;
      case State::kCallHead:
      case State::kArguments:
        fail_call();
        break;
      case State::kCallDone:
        end_call();
        break;
      default:
        break;
    }
    held_.clear();
  }

  void in_content(unsigned char byte) {
    if (byte == kChannelOpen) {
      enter_channel();
    } else if (byte == kCallOpen) {
      enter_call();
    } else if (byte == kQuote) {
      content("\"");
    } else if (!is_marker(byte)) {
      const char c = static_cast<char>(byte);
      content(std::string_view(&c, 1));
    }
  }

  void in_unmarked_thought(unsigned char byte) {
    if (!is_marker(byte)) {
      held_ += static_cast<char>(byte);
      if (held_ == kThought) {
        held_.clear();
        enter_reasoning();
        return;
      }
      if (kThought.starts_with(held_)) return;
      content(held_);
    } else {
      content(held_);
      in_content(byte);
    }
    held_.clear();
    if (state_ == State::kUnmarkedThought) state_ = State::kContent;
  }

  void enter_channel() {
    held_.clear();
    state_ = State::kChannelName;
  }

  void in_channel_name(unsigned char byte) {
    if (is_marker(byte)) {
      leave_channel_name();
      in_reasoning(byte);
      return;
    }
    held_ += static_cast<char>(byte);
    if (byte == '\n' || held_.size() >= kMaxChannelName) leave_channel_name();
  }

  // Another name than "thought" is kept: it may be text of a model that forgot the name.
  void leave_channel_name() {
    std::string name;
    name.swap(held_);
    enter_reasoning();
    if (name == "thought" || name == kThought) return;
    for (const char c : name) in_reasoning(static_cast<unsigned char>(c));
  }

  void enter_reasoning() {
    state_ = State::kReasoning;
    newlines_ = 0;
    reasoning_begun_ = false;
  }

  // Newlines at both ends belong to the markup.
  void in_reasoning(unsigned char byte) {
    if (byte == '\n') {
      ++newlines_;
    } else if (byte == kChannelClose) {
      state_ = State::kContent;
    } else if (byte == kChannelOpen) {
      enter_channel();
    } else if (byte == kCallOpen) {
      enter_call();
    } else if (byte == kQuote || !is_marker(byte)) {
      if (reasoning_begun_) reasoning(std::string(newlines_, '\n'));
      newlines_ = 0;
      reasoning_begun_ = true;
      const char c = byte == kQuote ? '"' : static_cast<char>(byte);
      reasoning(std::string_view(&c, 1));
    }
  }

  void enter_call() {
    begin_raw();
    held_.clear();
    state_ = State::kCallHead;
  }

  void in_call(unsigned char byte) {
    if (byte == kCallClose || byte == kCallOpen) {
      leave_call();
      if (byte == kCallOpen) enter_call();
      return;
    }
    const bool channel = byte == kChannelOpen || byte == kChannelClose;
    if (channel) {
      // In a string it is text that the model means; elsewhere the call is over.
      if (state_ != State::kArguments || !arguments_.in_string()) {
        leave_call();
        in_content(byte);
        return;
      }
      for (const char c : byte == kChannelOpen ? kMarkers[0].text : kMarkers[1].text) {
        if (state_ == State::kArguments) in_call(static_cast<unsigned char>(c));
      }
      return;
    }
    if (!raw(byte)) {
      state_ = State::kFailedCall;
    } else if (state_ == State::kCallHead) {
      in_call_head(byte);
    } else if (state_ == State::kArguments) {
      in_arguments(byte);
    } else if (byte != ' ' && byte != '\n') {
      fail();  // text after the closing brace
    }
  }

  void in_call_head(unsigned char byte) {
    if (byte != '{') {
      held_ += static_cast<char>(byte);
      if (is_marker(byte) || held_.size() > kMaxCallHead) fail();
      return;
    }
    std::string_view head = held_;
    while (!head.empty() && (head.front() == ' ' || head.front() == '\n')) head.remove_prefix(1);
    if (!head.starts_with(kCall)) return fail();
    head.remove_prefix(kCall.size());
    while (!head.empty() && head.front() == ' ') head.remove_prefix(1);
    while (!head.empty() && head.back() == ' ') head.remove_suffix(1);
    if (head.empty() || head.find('\n') != std::string_view::npos) return fail();
    begin_call(head);
    std::string json;
    arguments_.open(json);
    arguments(json);
    state_ = State::kArguments;
  }

  void in_arguments(unsigned char byte) {
    std::string json;
    const ArgumentReader::Status status = arguments_.take(byte, json);
    arguments(json);
    if (status == ArgumentReader::Status::kDone) state_ = State::kCallDone;
    if (status == ArgumentReader::Status::kFailed) fail();
  }

  void leave_call() {
    if (state_ == State::kCallDone) {
      end_call();
    } else {
      fail_call();
    }
    state_ = State::kContent;
  }

  void fail() {
    fail_call();
    state_ = State::kFailedCall;
  }

  State state_;
  std::string held_;  // the beginning of a channel's name, a call's head or an unmarked thought
  size_t newlines_ = 0;
  bool reasoning_begun_ = false;
  ArgumentReader arguments_;
};

// Where does the prompt leave the model? Its last marker says it. `name` gets what it wrote of a channel's
// name.
State state_after(const Tokenizer& tokenizer, std::span<const int32_t> prompt, std::string& name) {
  const auto is = [&](int32_t id, std::string_view text) { return tokenizer.find(text) == id; };
  for (size_t i = prompt.size(); i > 0; --i) {
    const int32_t id = prompt[i - 1];
    if (is(id, "<|channel>")) {
      const std::string text = tokenizer.decode(prompt.subspan(i));
      if (text.size() >= kMaxChannelName || text.find('\n') != std::string::npos) return State::kReasoning;
      name = text;
      return State::kChannelName;
    }
    if (is(id, "<tool_response|>") && i == prompt.size()) return State::kUnmarkedThought;
    if (is(id, "<channel|>") || is(id, "<|turn>") || is(id, "<turn|>")) break;
  }
  return State::kContent;
}

}  // namespace

std::unique_ptr<OutputParser> make_output_parser(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                                 const OutputParserOptions& options) {
  std::string name;
  const State state = state_after(tokenizer, prompt, name);
  return std::make_unique<Gemma4OutputParser>(tokenizer, options, state, std::move(name));
}

}  // namespace synod::gemma4
