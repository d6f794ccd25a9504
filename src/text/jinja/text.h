// A string that knows, byte by byte, where it comes from: written by the template's author (markup), or given
// by whoever wrote the messages (foreign). Operations on strings keep the origin of every byte, so that after
// rendering only the author's bytes may become control tokens.
//
// The other shape considered, a rope of shared pieces, makes concatenation cheap and everything else (slices,
// searches, comparison) slow; templates do more of the latter on short strings. Here the bytes are one string
// and the origins a short list of runs, one for almost every string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace synod::jinja {

enum class Origin : uint8_t { kMarkup, kForeign };

class Text {
 public:
  struct Run {
    size_t end;  // exclusive; the run begins where the one before ends
    Origin origin;
    bool operator==(const Run&) const = default;
  };

  Text() = default;
  Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
    if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
  }

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Neighbours differ in origin, no run is empty, the last ends at size().
  const std::vector<Run>& runs() const { return runs_; }
  Origin origin_at(size_t at) const;
  // Of a text made from this one as a whole: foreign if any byte is.
  Origin origin() const;

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

// Byte offsets of the characters of `bytes`, with bytes.size() at the end. Damaged UTF-8 counts per maximal
// subpart.
std::vector<size_t> character_offsets(std::string_view bytes);
int64_t count_characters(std::string_view bytes);
// What Python's str.isspace and str.strip take for white space.
bool is_space(char32_t c);

}  // namespace synod::jinja
