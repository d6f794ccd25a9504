#include "text/jinja/text.h"

#include <algorithm>

#include "text/utf8.h"

namespace synod::jinja {

Origin Text::origin_at(size_t at) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), at,
                                    [](size_t position, const Run& r) { return position < r.end; });
  return run == runs_.end() ? Origin::kMarkup : run->origin;
}

Origin Text::origin() const {
  const bool foreign =
      std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.origin == Origin::kForeign; });
  return foreign ? Origin::kForeign : Origin::kMarkup;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& other, size_t begin, size_t end) {
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](size_t position, const Run& r) { return position < r.end; });
  while (begin < end && run != other.runs_.end()) {
    const size_t stop = std::min(end, run->end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), run->origin);
    begin = stop;
    ++run;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

std::vector<size_t> character_offsets(std::string_view bytes) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < bytes.size(); at += decode_utf8(bytes, at).length) offsets.push_back(at);
  offsets.push_back(bytes.size());
  return offsets;
}

int64_t count_characters(std::string_view bytes) {
  int64_t n = 0;
  for (size_t at = 0; at < bytes.size(); at += decode_utf8(bytes, at).length) ++n;
  return n;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace synod::jinja
