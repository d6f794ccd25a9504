// Work that is done by many threads and written by one, in order: what a conversion is.
//
// Items are numbered; workers take them in ascending order, the calling thread takes their results in the
// same order. At most `window` results exist at a time, so memory does not depend on the number of items, and
// what is written does not depend on the number of threads. The first error in item order ends the run and is
// thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace synod {

struct RowPipeline {
  int n_threads = 1;
  // Fills `out` with the bytes of item `index`. Called by several threads at a time; `worker` < n_threads.
  std::function<void(int64_t index, int worker, std::vector<std::byte>& out)> make;
  // Takes the bytes, on the calling thread. Returns false to stop (cancelled).
  std::function<bool(int64_t index, std::vector<std::byte>& bytes)> take;

  // Returns false when `take` stopped it. No thread is left behind.
  bool run(int64_t n_items) const;
};

// CPUs this process may use: its affinity, at most the cgroup's quota. Encoding gains from hyper-threads.
int default_convert_threads();

}  // namespace synod
