// A file that gets its name only when it is complete: written beside the target under a temporary name,
// fsynced and renamed by commit(). Errors are kFailure and name the target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace synod {

class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();  // removes the temporary file unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  void write_zeros(int64_t count);
  void commit();

  const std::filesystem::path& target() const { return target_; }

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);
  [[noreturn]] void failed(const char* action) const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::vector<std::byte> buffer_;
  int64_t written_ = 0;    // bytes of the file so far
  int64_t handed_on_ = 0;  // of these, bytes the disk has been told to write
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace synod
