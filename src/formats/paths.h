// File checks that never throw std::filesystem_error: names come from hostile files and may be anything.
#pragma once

#include <filesystem>
#include <system_error>

namespace synod {

// A regular file (or a link to one) that can be reached.
inline bool is_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

inline bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

}  // namespace synod
