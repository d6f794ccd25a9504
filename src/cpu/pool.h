// The backend's threads: spin for a moment, then sleep. One phase of work at a time, items claimed
// dynamically.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

namespace synod::cpu {

// Threads to use by default: physical cores within the affinity mask and the cgroup's CPU quota, at least 1.
int default_threads();
// Whole CPUs that the cgroup v2 quota of the process allows, at least 1; INT_MAX without a quota. The file is
// /proc/self/cgroup, the folder is where the hierarchy is mounted.
int cgroup_cpus(const std::filesystem::path& membership, const std::filesystem::path& mount);

class Pool {
 public:
  // `n_threads` including the caller's; 0 = default_threads().
  explicit Pool(int n_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int n_threads() const;

  // Runs `body(item, thread)` for every item in [0, n_items), each once, on any thread in [0, n_threads);
  // returns when all are done. Not reentrant. What an item computes must not depend on the thread that runs
  // it. A body must not throw: the process would end.
  template <typename Body>
  void run(int64_t n_items, const Body& body) {
    run_phase(n_items,
              {&body, [](const void* context, int64_t item, int64_t,
                         int thread) noexcept { (*static_cast<const Body*>(context))(item, thread); }},
              false);
  }

  // The same, but a thread claims its next item before it starts the current one: body(item, next, thread),
  // next = -1 when there is none. For many short items that stream memory: the body can fetch ahead.
  template <typename Body>
  void run_ahead(int64_t n_items, const Body& body) {
    run_phase(n_items,
              {&body, [](const void* context, int64_t item, int64_t next,
                         int thread) noexcept { (*static_cast<const Body*>(context))(item, next, thread); }},
              true);
  }

 private:
  struct Phase {
    const void* context = nullptr;
    void (*invoke)(const void* context, int64_t item, int64_t next, int thread) noexcept = nullptr;
  };
  void run_phase(int64_t n_items, const Phase& phase, bool ahead);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace synod::cpu
