// Threads of the CPU backend. A phase ends when its items are done, not when every worker has looked at it: a
// worker that is asleep or descheduled without an item delays nobody.
#include "cpu/pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace synod::cpu {
namespace {

constexpr std::chrono::microseconds kSpinTime{50};  // about the cost of a sleep and its wake-up
constexpr int kPausesPerClock = 16;                 // about 0.7 us

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True when `ready` became true within the spin time.
template <typename Ready>
bool spin_until(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerClock; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

bool read_number(const std::filesystem::path& file, int64_t& value) {
  std::ifstream in(file);
  return static_cast<bool>(in >> value);
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  constexpr int kMaxCpus = 1 << 16;
  for (int size = 1024; size <= kMaxCpus; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (known) break;
  }
  return cpus;
}

int physical_cores(const std::vector<int>& cpus) {
  std::set<std::pair<int64_t, int64_t>> cores;
  for (const int cpu : cpus) {
    const std::filesystem::path topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology", cpu);
    int64_t package = 0, core = 0;
    if (read_number(topology / "physical_package_id", package) && read_number(topology / "core_id", core)) {
      cores.emplace(package, core);
    } else {
      cores.emplace(-1, cpu);
    }
  }
  return static_cast<int>(cores.size());
}

// CPUs of one cpu.max file, "max 100000" or "quota period"; INT_MAX when it sets no limit.
int cpus_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string quota_text;
  int64_t quota = 0, period = 0;
  if (!(in >> quota_text >> period) || period <= 0) return INT_MAX;
  const char* end = quota_text.data() + quota_text.size();
  const auto parsed = std::from_chars(quota_text.data(), end, quota);
  if (parsed.ec != std::errc{} || parsed.ptr != end || quota <= 0) return INT_MAX;
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, INT_MAX));
}

}  // namespace

int cgroup_cpus(const std::filesystem::path& membership, const std::filesystem::path& mount) {
  std::ifstream in(membership);
  int limit = INT_MAX;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("0::/")) continue;  // other lines belong to version 1 hierarchies
    // Quotas of all ancestors bind as well.
    auto group = std::filesystem::path(line.substr(4)).lexically_normal();
    for (;; group = group.parent_path()) {
      limit = std::min(limit, cpus_of(mount / group / "cpu.max"));
      if (group.empty()) break;
    }
  }
  return limit;
}

int default_threads() {
  const std::vector<int> cpus = allowed_cpus();
  const int cores =
      cpus.empty() ? static_cast<int>(std::thread::hardware_concurrency()) : physical_cores(cpus);
  return std::max(1, std::min(cores, cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup")));
}

// `left` counts the unclaimed items of the current phase down; a claim is one fetch_sub and holds when the
// old value was positive. Whoever holds an item may read the phase: it changes only after all items are done,
// which includes that one. Every claimer reports its items to `done` when it finds no more.
struct Pool::Impl {
  alignas(64) std::atomic<int64_t> left{0};
  alignas(64) std::atomic<int64_t> done{0};
  // Written by the caller before `left`.
  alignas(64) Phase phase;
  int64_t n_items = 0;
  bool ahead = false;  // claim the next item before starting one

  // Sleeping. A sleeper announces itself and then looks again; a waker publishes and then looks for sleepers:
  // with sequentially consistent order one of them sees the other.
  alignas(64) std::atomic<uint64_t> epoch{0};  // phases published
  std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable work, finished;
  std::vector<std::thread> workers;

  void claim_items(int thread) noexcept {
    const auto claim = [&] { return left.fetch_sub(1, std::memory_order_acquire); };
    int64_t mine = 0, total = 0;
    for (int64_t old = claim(); old > 0; ++mine) {
      total = n_items;
      const bool claim_ahead = ahead;  // the phase may change once the last item is reported
      const int64_t next = claim_ahead ? claim() : 0;
      phase.invoke(phase.context, total - old, next > 0 ? total - next : -1, thread);
      old = claim_ahead ? next : claim();
    }
    if (mine == 0) return;
    if (done.fetch_add(mine) + mine == total && caller_sleeps.load()) {
      const std::lock_guard lock(mutex);
      finished.notify_one();
    }
  }

  void worker(int thread) noexcept {
    while (!stop.load(std::memory_order_acquire)) {
      const uint64_t seen = epoch.load();
      const auto ready = [&] {
        return left.load(std::memory_order_relaxed) > 0 || stop.load(std::memory_order_acquire);
      };
      if (!spin_until(ready)) {
        std::unique_lock lock(mutex);
        ++sleepers;
        work.wait(lock, [&] { return epoch.load() != seen || stop.load(); });
        --sleepers;
        continue;
      }
      claim_items(thread);
    }
  }

  void publish(int64_t n, const Phase& next, bool claim_ahead) {
    phase = next;
    n_items = n;
    ahead = claim_ahead;
    done.store(0, std::memory_order_relaxed);
    left.store(n, std::memory_order_release);
    ++epoch;
    if (sleepers.load() == 0) return;
    { const std::lock_guard lock(mutex); }
    work.notify_all();
  }

  void wait_until_done(int64_t n) {
    if (spin_until([&] { return done.load(std::memory_order_acquire) == n; })) return;
    std::unique_lock lock(mutex);
    caller_sleeps = true;
    finished.wait(lock, [&] { return done.load() == n; });
    caller_sleeps = false;
  }
};

Pool::Pool(int n_threads) : impl_(std::make_unique<Impl>()) {
  const int n = n_threads > 0 ? n_threads : default_threads();
  try {
    for (int thread = 1; thread < n; ++thread) {
      impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->worker(thread); });
    }
  } catch (const std::system_error&) {
    log_warning("only {} of {} threads could be started", impl_->workers.size() + 1, n);
  }
}

Pool::~Pool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->work.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int Pool::n_threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void Pool::run_phase(int64_t n_items, const Phase& phase, bool ahead) {
  if (impl_->workers.empty() || n_items <= 1) {
    for (int64_t item = 0; item < n_items; ++item) {
      phase.invoke(phase.context, item, item + 1 < n_items ? item + 1 : -1, 0);
    }
    return;
  }
  impl_->publish(n_items, phase, ahead);
  impl_->claim_items(0);
  impl_->wait_until_done(n_items);
}

}  // namespace synod::cpu
