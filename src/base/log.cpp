#include "base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>

namespace synod {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<bool> g_progress{true};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void set_log_level(LogLevel level) { g_level = level; }
LogLevel log_level() { return g_level; }
void set_progress_enabled(bool enabled) { g_progress = enabled; }

void log_line(LogLevel level, std::string_view message) {
  constexpr std::array<const char*, 4> kPrefix = {"error: ", "warning: ", "", "debug: "};
  std::fprintf(stderr, "synod: %s%.*s\n", kPrefix[static_cast<size_t>(level)],
               static_cast<int>(message.size()), message.data());
}

std::string human_bytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

Progress::Progress(std::string label, int64_t total, std::string_view unit)
    : label_(std::move(label)),
      total_(total),
      bytes_(unit == "B"),
      enabled_(g_progress && ::isatty(STDERR_FILENO) == 1),
      start_ns_(now_ns()) {}

Progress::~Progress() {
  if (enabled_ && drawn_ns_ != 0) draw(true);
}

void Progress::advance(int64_t amount) {
  done_ += amount;
  constexpr int64_t kRedrawNs = 100'000'000;
  if (enabled_ && now_ns() - drawn_ns_ > kRedrawNs) draw(false);
}

void Progress::draw(bool last) {
  drawn_ns_ = now_ns();
  const double seconds = static_cast<double>(drawn_ns_ - start_ns_) * 1e-9;
  const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1.0;
  const double left = share > 0 ? seconds / share - seconds : 0.0;
  const auto rate = static_cast<int64_t>(seconds > 0 ? static_cast<double>(done_) / seconds : 0.0);
  const std::string amount =
      bytes_ ? fmt::format("{} / {}, {}/s", human_bytes(done_), human_bytes(total_), human_bytes(rate))
             : fmt::format("{} / {}, {}/s", done_, total_, rate);
  const std::string line =
      fmt::format("\r{} {:3.0f} %  {}  {:.0f} s left\x1b[K", label_, share * 100, amount, left);
  std::fputs(line.c_str(), stderr);
  if (last) std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace synod
