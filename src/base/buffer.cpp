#include "base/buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace synod {

Buffer Buffer::host(int64_t bytes) {
  SYNOD_ASSERT(bytes >= 0);
  const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
  void* p = rounded == 0 ? std::aligned_alloc(64, 64) : std::aligned_alloc(64, rounded);
  if (p == nullptr) fail(Error::Kind::kNoMemory, "cannot allocate {} bytes", bytes);
  std::memset(p, 0, rounded);
  return Buffer(static_cast<std::byte*>(p), bytes, [](std::byte* q, int64_t) { std::free(q); });
}

MappedFile MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: a FIFO with no writer must be refused below, not waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) fail(Error::Kind::kNotFound, "{}: no such file", path.string());
    bad_file("{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    bad_file("{}: not a regular file", path.string());
  }
  MappedFile file;
  file.path_ = path;
  if (st.st_size > 0) {
    void* p = ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      ::close(fd);
      bad_file("{}: cannot map: {}", path.string(), std::strerror(errno));
    }
    file.buffer_ = Buffer::adopt(static_cast<std::byte*>(p), st.st_size,
                                 [](std::byte* q, int64_t n) { ::munmap(q, static_cast<size_t>(n)); });
  }
  ::close(fd);
  return file;
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  const MappedFile file = MappedFile::open(path);
  const auto bytes = file.bytes();
  if (static_cast<int64_t>(bytes.size()) > max_bytes) {
    bad_file("{}: expected at most {} bytes, got {}", path.string(), max_bytes, bytes.size());
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace synod
