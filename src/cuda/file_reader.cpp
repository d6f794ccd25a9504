#include "cuda/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

namespace synod::cuda {
namespace {

constexpr uintptr_t kWorthwhile = 1 << 20;  // smaller mappings are libraries and configuration

// Opens the mapped file, or -1 when it is not (or no longer) the file at `path`.
int open_mapped(const std::string& path, const std::string& device, uint64_t inode) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  struct stat status {};
  unsigned major = 0, minor = 0;
  const bool same = std::sscanf(device.c_str(), "%x:%x", &major, &minor) == 2 && fstat(file, &status) == 0 &&
                    status.st_ino == inode && S_ISREG(status.st_mode);
  if (same) return file;
  close(file);
  return -1;
}

}  // namespace

FileReader::FileReader() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream in(line);
    std::string span, access, device, path;
    uint64_t offset = 0, inode = 0;
    in >> span >> access >> std::hex >> offset >> device >> std::dec >> inode;
    std::getline(in >> std::ws, path);
    const size_t dash = span.find('-');
    if (!in || path.empty() || path.front() != '/' || dash == std::string::npos ||
        access.find('x') != std::string::npos)
      continue;
    const uintptr_t begin = std::stoull(span.substr(0, dash), nullptr, 16);
    const uintptr_t end = std::stoull(span.substr(dash + 1), nullptr, 16);
    if (access[0] != 'r' || access[1] == 'w' || end - begin < kWorthwhile) continue;
    const int file = open_mapped(path, device, inode);
    if (file >= 0) ranges_.push_back({begin, end, static_cast<int64_t>(offset), file});
  }
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
}

FileReader::~FileReader() {
  for (const Range& range : ranges_) close(range.file);
}

void FileReader::read(const std::byte* from, int64_t bytes, std::byte* to) const {
  const auto address = reinterpret_cast<uintptr_t>(from);
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                      [](uintptr_t a, const Range& r) { return a < r.begin; });
  if (after != ranges_.begin()) {
    const Range& range = *(after - 1);
    if (address + static_cast<uintptr_t>(bytes) <= range.end) {
      int64_t offset = range.offset + static_cast<int64_t>(address - range.begin);
      while (bytes > 0) {
        const ssize_t n = pread(range.file, to, static_cast<size_t>(bytes), offset);
        if (n <= 0) break;
        to += n, from += n, offset += n, bytes -= n;
      }
    }
  }
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace synod::cuda
