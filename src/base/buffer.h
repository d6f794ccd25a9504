// Owners of memory: host allocations and read-only mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace synod {

// Move-only owner of bytes. Device buffers pass their own deleter.
class Buffer {
 public:
  using Deleter = void (*)(std::byte*, int64_t bytes);

  Buffer() = default;
  // 64-byte aligned zeroed host memory; throws kNoMemory with the size when there is none.
  static Buffer host(int64_t bytes);
  static Buffer adopt(std::byte* data, int64_t bytes, Deleter deleter) {
    return Buffer(data, bytes, deleter);
  }

  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr) deleter_(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Buffer(std::byte* data, int64_t bytes, Deleter deleter) : data_(data), bytes_(bytes), deleter_(deleter) {}
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(deleter_, other.deleter_);
  }

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  Deleter deleter_ = nullptr;
};

// A whole file mapped read-only. The size is taken from the open descriptor, so a truncated file fails at
// open. (A file that shrinks while mapped still raises SIGBUS: models must not be edited while in use.)
class MappedFile {
 public:
  MappedFile() = default;
  // Throws kNotFound (missing) or kBadFile (not a regular file, not readable).
  static MappedFile open(const std::filesystem::path& path);

  std::span<const std::byte> bytes() const { return {buffer_.data(), static_cast<size_t>(buffer_.bytes())}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  Buffer buffer_;
  std::filesystem::path path_;
};

// Reads a small text file (configuration). Throws kNotFound, or kBadFile beyond `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes = 64 << 20);

}  // namespace synod
