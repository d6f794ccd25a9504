// What a model writes, taken apart while it is written: content, reasoning and tool calls. One implementation
// per family (models/<family>/output_parser.*), made by Dialogue::output_parser.
//
// Markers are tokens, not spellings: where the tokenizer has a special token for a marker, only that token is
// the marker, and ordinary tokens that spell the same text stay text. Where it has none, the text is the
// marker.
//
// Guarantees, for any ids in any order:
//   - the concatenated events do not depend on how the same bytes were split into tokens or pushes;
//   - every `text` is whole, valid UTF-8 (a cut sequence at the end becomes U+FFFD);
//   - no marker and no control token shows in any text; text that might be the beginning of one is held back;
//   - nothing else is lost: what is not a call is content;
//   - work is linear in the output, memory is bounded by OutputParserOptions; no input throws.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace synod {

struct OutputEvent {
  enum class Kind {
    kContent,            // text: more of the answer
    kReasoning,          // text: more of the reasoning
    kToolCallBegin,      // text: name of the function; `tool_call` is the call's index, 0, 1, ...
    kToolCallArguments,  // text: the next part of the arguments, which together are a JSON object
    kToolCallEnd,        // the call is complete and its arguments are valid JSON
    // The call that was begun is no call after all (malformed, or cut off). `text` is what the model wrote,
    // without control tokens. Whoever collects a whole reply drops the call and appends `text` to the
    // content; whoever streams cannot take back what was sent and ends the call as it stands.
    kToolCallError,
  };
  Kind kind;
  std::string text;
  int32_t tool_call = -1;
  bool operator==(const OutputEvent&) const = default;
};

struct OutputParserOptions {
  // With false, a call is reported only when it is complete: begin, arguments in one event, end; a malformed
  // one is content. Slower for clients that show arguments as they come, but nothing need be taken back.
  bool stream_arguments = true;
  int32_t max_tool_calls = 128;     // further calls are content
  size_t max_call_bytes = 1 << 20;  // of one call as written; a longer one is an error
  int32_t max_depth = 64;           // of nested arguments
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Appends what `id` completes. Ids that end a turn, and all after them, add nothing.
  virtual void push(int32_t id, std::vector<OutputEvent>& events) = 0;
  // Text that came without ids, as from ordinary tokens; may be cut anywhere.
  virtual void push_text(std::string_view bytes, std::vector<OutputEvent>& events) = 0;
  // The rest. `complete`: the model ended its turn (a stop token or stop string), so that a call that lacks
  // only its closing markers counts; false when it was cut off by a limit. Later pushes are ignored.
  virtual void finish(bool complete, std::vector<OutputEvent>& events) = 0;
};

// A whole reply.
struct ParsedToolCall {
  std::string name;
  std::string arguments;  // JSON object
  bool operator==(const ParsedToolCall&) const = default;
};
struct ParsedOutput {
  std::string content;
  std::string reasoning;
  std::vector<ParsedToolCall> tool_calls;
  bool operator==(const ParsedOutput&) const = default;
};

// Collects events: calls that turned out to be none are dropped and their text becomes content.
ParsedOutput collect(const std::vector<OutputEvent>& events);

}  // namespace synod
