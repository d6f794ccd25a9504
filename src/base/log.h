// Log lines and progress bars, both on stderr: stdout carries results only.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace synod {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

void set_log_level(LogLevel level);
LogLevel log_level();
void log_line(LogLevel level, std::string_view message);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() >= LogLevel::kInfo)
    log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() >= LogLevel::kWarning) {
    log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
}

// One redrawn line while stderr is a terminal, nothing otherwise. `total` in `unit`s ("B" prints sizes).
class Progress {
 public:
  Progress(std::string label, int64_t total, std::string_view unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t amount);

 private:
  void draw(bool last);

  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  bool bytes_;
  bool enabled_;
  int64_t start_ns_;
  int64_t drawn_ns_ = 0;
};

void set_progress_enabled(bool enabled);
std::string human_bytes(int64_t bytes);  // "1.50 GiB"

}  // namespace synod
