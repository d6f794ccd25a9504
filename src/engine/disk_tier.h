// Prefix blocks on disk: a folder of one file per block, named by the block's chained hash, below a folder
// named by the fingerprint of what computed them. Files are written by a background thread (atomically:
// kv/page_image.h in formats/atomic_file.h), read on the engine's thread. A file that is damaged, or of other
// tokens, is a miss and is deleted. The oldest files go when the folder exceeds its cap.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv/page_image.h"
#include "kv/prefix_index.h"

namespace synod {

class DiskTier {
 public:
  // Creates the folder and lists what is there. Throws kFailure when it cannot be created.
  DiskTier(KvCache& cache, const std::filesystem::path& folder, uint64_t fingerprint, int64_t vocab_size,
           int64_t max_bytes);
  ~DiskTier();  // finishes what is being written
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  bool has(uint64_t hash, bool with_state) const;
  // False (a miss) for whatever reason.
  bool fetch(uint64_t hash, uint64_t parent, std::span<const int32_t> tokens, bool with_state,
             PrefixIndex::Fetched& out);
  // Queues a block for writing, unless it is there already; its pages stay referenced until poll() after it
  // was written. Dropped when much is queued.
  void store(const PrefixBlock& block, bool with_state);
  void poll();   // gives back the pages of what was written
  void flush();  // waits until all is written, then poll()

  int64_t bytes() const { return bytes_; }
  int64_t hits() const { return hits_; }

 private:
  struct File {
    bool has_state = false;
    int64_t bytes = 0;
    uint64_t tick = 0;  // of the last use
  };
  struct Job {
    uint64_t hash = 0;
    PageImage image;
    std::vector<std::span<const std::byte>> pages;
    bool with_state = false;
    int64_t bytes = 0;  // written; 0 = failed
  };
  std::filesystem::path path_of(uint64_t hash) const;
  void list();
  void forget(uint64_t hash, bool remove_file);
  void use(uint64_t hash);
  void enforce_cap();
  void write_loop();

  KvCache& cache_;
  std::filesystem::path folder_;
  uint64_t fingerprint_;
  int64_t vocab_size_;
  int64_t max_bytes_;
  std::unordered_map<uint64_t, File> files_;
  std::map<uint64_t, uint64_t> order_;  // tick -> hash
  uint64_t tick_ = 0;
  int64_t bytes_ = 0;
  int64_t hits_ = 0;

  std::unordered_set<uint64_t> queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;      // to write
  std::vector<Job> written_;  // pages to give back
  int64_t in_flight_ = 0;     // jobs not yet in written_
  bool stopping_ = false;
  std::thread writer_;
};

}  // namespace synod
