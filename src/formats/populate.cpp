#include "formats/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/log.h"

namespace synod {
namespace {

constexpr uintptr_t kStep = uintptr_t{8} << 20;

#ifndef MADV_POPULATE_READ
constexpr int MADV_POPULATE_READ = 22;
#endif

struct Range {
  uintptr_t begin, end;
};

// Whole pages of all tensors, neighbours joined, cut into steps.
std::vector<Range> steps(const Checkpoint& checkpoint) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::vector<Range> ranges;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.data == nullptr || tensor.bytes() == 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
    ranges.push_back(
        {begin / page * page, (begin + static_cast<uintptr_t>(tensor.bytes()) + page - 1) / page * page});
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> result;
  uintptr_t done = 0;
  for (const Range& range : ranges) {
    for (uintptr_t at = std::max(range.begin, done); at < range.end;) {
      const uintptr_t end = std::min(range.end, (at / kStep + 1) * kStep);
      result.push_back({at, end});
      at = end;
    }
    done = std::max(done, range.end);
  }
  return result;
}

}  // namespace

void populate(const Checkpoint& checkpoint, int n_threads) {
  const std::vector<Range> all = steps(checkpoint);
  int64_t bytes = 0;
  for (const Range& range : all) bytes += static_cast<int64_t>(range.end - range.begin);
  Progress progress("weights", bytes, "B");
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done{0};
  std::atomic<bool> refused{false};
  const auto work = [&](const auto& report) {
    for (size_t i; !refused && (i = next++) < all.size();) {
      const auto size = static_cast<size_t>(all[i].end - all[i].begin);
      if (::madvise(reinterpret_cast<void*>(all[i].begin), size, MADV_POPULATE_READ) != 0) refused = true;
      report(done += static_cast<int64_t>(size));
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < n_threads; ++t) threads.emplace_back([&work] { work([](int64_t) {}); });
  int64_t shown = 0;
  work([&](int64_t now) {  // progress belongs to one thread: it shows what all have done
    progress.advance(now - shown);
    shown = now;
  });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace synod
