// What the parsers of all families share: ids become one stream of bytes in which every marker is a single
// byte that UTF-8 text never contains, so that a family is a plain state machine over bytes, and how the
// output was split into tokens cannot matter.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/output_parser.h"
#include "text/tokenizer.h"

namespace synod {

// Bytes of markers. UTF-8 has no byte from 0xF5 on; damaged output is repaired before markers are put in.
using MarkerByte = unsigned char;
inline constexpr MarkerByte kFirstMarker = 0xF5;
inline constexpr bool is_marker(unsigned char byte) { return byte >= kFirstMarker; }

struct Marker {
  std::string_view text;  // as in the vocabulary
  MarkerByte byte = 0;    // kStopMarker ends the output
  // What stands for it in text that is no call after all; empty for most.
  std::string_view plain = {};
};
inline constexpr MarkerByte kStopMarker = 0xFF;

// Appends `text` with the escapes that JSON strings need; the quotes are the caller's.
void append_json_escaped(std::string& out, std::string_view text);
// Is `text` JSON, nested at most `max_depth` deep?
bool is_json(std::string_view text, int max_depth);

class MarkedParser : public OutputParser {
 public:
  // `markers` must outlive the parser (a constexpr table).
  MarkedParser(const Tokenizer& tokenizer, std::span<const Marker> markers,
               const OutputParserOptions& options);

  void push(int32_t id, std::vector<OutputEvent>& events) final;
  void push_text(std::string_view bytes, std::vector<OutputEvent>& events) final;
  void finish(bool complete, std::vector<OutputEvent>& events) final;

 protected:
  // One byte of text or a marker, never kStopMarker.
  virtual void consume(unsigned char byte) = 0;
  // The output ended; whatever is held back must go.
  virtual void end(bool complete) = 0;

  void content(std::string_view text) { emit(OutputEvent::Kind::kContent, text, -1); }
  void reasoning(std::string_view text) { emit(OutputEvent::Kind::kReasoning, text, -1); }

  // One call at a time: begin_raw, then raw() for everything the model writes for it, begin_call when its
  // name is known, arguments, and end_call or fail_call. They keep the promises of OutputParserOptions.
  void begin_raw();
  // False when the call has become too long: it has then failed.
  bool raw(unsigned char byte);
  void begin_call(std::string_view name);
  void arguments(std::string_view json);
  void end_call();
  void fail_call();
  const OutputParserOptions& options() const { return options_; }
  // Text of what the model wrote: markers go, or become what stands for them.
  std::string plain(std::string_view marked) const;

 private:
  void emit(OutputEvent::Kind kind, std::string_view text, int32_t call);
  void begin_push(std::vector<OutputEvent>& events);
  void take_bytes(std::string_view bytes);  // ordinary text, possibly cut inside a character
  void border();                            // a special token: no character or spelled marker goes across it
  void take_text(std::string_view text);    // whole characters
  void match_spelled(bool at_end);
  void mark(MarkerByte byte);
  void step(unsigned char byte);

  const Tokenizer& tokenizer_;
  std::span<const Marker> markers_;
  OutputParserOptions options_;
  std::vector<std::pair<int32_t, MarkerByte>> ids_;  // markers that are tokens
  std::vector<const Marker*> spelled_;               // markers that are not
  std::string undecoded_;                            // an incomplete character
  std::string unmatched_;                            // could become a spelled marker
  std::vector<OutputEvent>* events_ = nullptr;       // of the push in progress
  size_t n_old_events_ = 0;  // in `events_` before it: the caller's, not to be changed
  bool stopped_ = false;

  std::string raw_;
  bool call_begun_ = false;
  bool muted_ = false;                    // more calls than allowed: this one becomes text
  std::vector<OutputEvent> call_events_;  // of the call in progress, unless arguments are streamed
  int32_t n_calls_ = 0;
};

}  // namespace synod
