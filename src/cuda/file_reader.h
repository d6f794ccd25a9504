// Reads bytes that lie in mapped files with pread: copying through page faults is several times slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace synod::cuda {

class FileReader {
 public:
  // Takes the files that are mapped now (/proc/self/maps); without any, bytes are copied from memory.
  FileReader();
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // Copies memory [from, from + bytes) to `to`. Any thread.
  void read(const std::byte* from, int64_t bytes, std::byte* to) const;
  int64_t n_files() const { return static_cast<int64_t>(ranges_.size()); }

 private:
  struct Range {
    uintptr_t begin, end;
    int64_t offset;
    int file;
  };
  std::vector<Range> ranges_;  // ascending
};

}  // namespace synod::cuda
