#include "formats/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace synod {
namespace {

// Converters write row by row; below this size a system call per row would show.
constexpr size_t kBufferBytes = 1 << 20;
// The disk is told to start after so much, or all of a large file would wait for the fsync at the end.
constexpr int64_t kWriteBackBytes = int64_t{32} << 20;

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  static std::atomic<uint64_t> counter{0};
  do {
    temporary_ = target_;
    temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), counter++);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) failed("cannot create a file beside it");
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::failed(const char* action) const {
  const int error = errno;
  fail(Error::Kind::kFailure, "{}: {}: {}", target_.string(), action, std::strerror(error));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  SYNOD_ASSERT(fd_ >= 0);
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    write_through(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write_zeros(int64_t count) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (count > 0) {
    const auto n = std::min<int64_t>(count, kZeros.size());
    write(std::span(kZeros).first(static_cast<size_t>(n)));
    count -= n;
  }
}

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("cannot write");
    bytes = bytes.subspan(static_cast<size_t>(n));
    written_ += n;
  }
  if (written_ - handed_on_ < kWriteBackBytes) return;
  // A hint: where it does not work, nothing is lost.
  static_cast<void>(::sync_file_range(fd_, handed_on_, written_ - handed_on_, SYNC_FILE_RANGE_WRITE));
  handed_on_ = written_;
}

void AtomicFile::commit() {
  flush();
  if (::fsync(fd_) != 0) failed("cannot write to the disk");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) failed("cannot close");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) failed("cannot rename the finished file to it");
  committed_ = true;
  // Without this a crash may forget the rename. Some file systems cannot sync a directory: not an error.
  const int directory = ::open(directory_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

}  // namespace synod
