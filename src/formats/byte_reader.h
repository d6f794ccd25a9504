// Checked little-endian reads from a span, and names from hostile files made fit for messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace synod {

// Control characters escaped, long text cut: a file must not be able to write to the user's terminal.
std::string printable(std::string_view text, size_t max_chars = 200);

class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  // `what` names the value in the message, `subject` the key or tensor being read (may be empty).
  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > remaining()) {
      bad_file("{}: {}{}{}: expected {} bytes at offset {}, only {} are left", file_, subject_,
               subject_.empty() ? "" : ", ", what, count, position_, remaining());
    }
    const auto result = bytes_.subspan(position_, count);
    position_ += count;
    return result;
  }

  template <typename T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view text(uint64_t count, std::string_view what) {
    const auto bytes = take(count, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void set_subject(std::string subject) { subject_ = std::move(subject); }
  const std::string& subject() const { return subject_; }

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::string subject_;
  uint64_t position_ = 0;
};

}  // namespace synod
