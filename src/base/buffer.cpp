#include "base/buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Maps `size` bytes of `fd` at a multiple of 2 MiB and asks for huge pages: a file that arrives in large
// folios is then mapped by 2 MiB entries, which reads 10-20 % faster. Null when the mapping fails (errno).
std::byte* map_aligned(int fd, size_t size) {
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  void* reserved =
      ::mmap(nullptr, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* base = static_cast<std::byte*>(reserved);
  auto* aligned = base;
  if (slack > 0) {
    const auto address = reinterpret_cast<uintptr_t>(base);
    aligned = base + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::byte* end = aligned + (size + page - 1) / page * page;
    if (aligned > base) ::munmap(base, static_cast<size_t>(aligned - base));
    if (base + size + slack > end) ::munmap(end, static_cast<size_t>(base + size + slack - end));
  }
  if (::mmap(aligned, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(aligned, size);
    errno = error;
    return nullptr;
  }
  if (slack > 0) ::madvise(aligned, size, MADV_HUGEPAGE);  // a hint: kernels without it serve small pages
  return aligned;
}

}  // namespace

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
    std::byte* data = map_aligned(fd, static_cast<size_t>(st.st_size));
    if (data == nullptr) {
      const int error = errno;
      ::close(fd);
      bad_file("{}: cannot map: {}", path.string(), std::strerror(error));
    }
    file.buffer_ =
        Buffer::adopt(data, st.st_size, [](std::byte* q, int64_t n) { ::munmap(q, static_cast<size_t>(n)); });
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
