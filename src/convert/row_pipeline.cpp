#include "convert/row_pipeline.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

namespace synod {
namespace {

struct Slot {
  std::vector<std::byte> bytes;
  std::exception_ptr error;
  bool ready = false;
};

class Run {
 public:
  Run(const RowPipeline& pipeline, int64_t n_items)
      : pipeline_(pipeline), n_items_(n_items), slots_(static_cast<size_t>(pipeline.n_threads) * 2 + 2) {}

  bool run() {
    std::vector<std::thread> threads;
    try {
      for (int i = 0; i < pipeline_.n_threads; ++i) threads.emplace_back([this, i] { work(i); });
    } catch (...) {  // no more threads: those there are will do, unless there is none
      if (threads.empty()) throw;
    }
    std::exception_ptr error;
    bool finished = true;
    try {
      finished = write();
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    room_.notify_all();
    for (std::thread& t : threads) t.join();
    if (error) std::rethrow_exception(error);
    return finished;
  }

 private:
  Slot& slot(int64_t index) { return slots_[static_cast<size_t>(index) % slots_.size()]; }

  void work(int worker) {
    while (true) {
      int64_t index = 0;
      {
        std::unique_lock lock(mutex_);
        room_.wait(lock, [this] { return stopped_ || next_ == n_items_ || next_ < taken_ + window(); });
        if (stopped_ || next_ == n_items_) return;
        index = next_++;
      }
      Slot& s = slot(index);
      try {
        pipeline_.make(index, worker, s.bytes);
      } catch (...) {
        s.error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      s.ready = true;
      if (index == taken_) ready_.notify_one();
    }
  }

  bool write() {
    for (int64_t index = 0; index < n_items_; ++index) {
      Slot& s = slot(index);
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [&s] { return s.ready; });
      }
      if (s.error) std::rethrow_exception(s.error);
      if (!pipeline_.take(index, s.bytes)) return false;
      {
        const std::lock_guard lock(mutex_);
        s.ready = false;
        taken_ = index + 1;
      }
      room_.notify_one();
    }
    return true;
  }

  int64_t window() const { return static_cast<int64_t>(slots_.size()); }

  const RowPipeline& pipeline_;
  const int64_t n_items_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable room_;   // an item may be started
  std::condition_variable ready_;  // the next item can be taken
  int64_t next_ = 0;               // first item not started
  int64_t taken_ = 0;              // items taken
  bool stopped_ = false;
};

// CPUs of the cgroup's quota ("max 100000" or "200000 100000"); 0 without one.
int cgroup_cpus() {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  std::string quota;
  int64_t period = 0;
  if (!(in >> quota >> period) || quota == "max" || period <= 0) return 0;
  try {
    return static_cast<int>(std::max<int64_t>((std::stoll(quota) + period - 1) / period, 1));
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace

bool RowPipeline::run(int64_t n_items) const { return Run(*this, n_items).run(); }

int default_convert_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int n = sched_getaffinity(0, sizeof(set), &set) == 0
              ? CPU_COUNT(&set)
              : static_cast<int>(std::thread::hardware_concurrency());
  const int quota = cgroup_cpus();
  if (quota > 0) n = std::min(n, quota);
  return std::max(n, 1);
}

}  // namespace synod
