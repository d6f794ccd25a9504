#include "engine/disk_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <system_error>

#include "base/buffer.h"
#include "base/error.h"
#include "formats/atomic_file.h"

namespace synod {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateSuffix = ".state.kv";  // with the windowed groups' rows
constexpr const char* kPlainSuffix = ".kv";
constexpr size_t kMaxQueued = 64;  // blocks; each keeps its pages in memory

}  // namespace

DiskTier::DiskTier(KvCache& cache, const fs::path& folder, uint64_t fingerprint, int64_t vocab_size,
                   int64_t max_bytes)
    : cache_(cache),
      folder_(folder / fmt::format("{:016x}", fingerprint)),
      fingerprint_(fingerprint),
      vocab_size_(vocab_size),
      max_bytes_(max_bytes) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(Error::Kind::kFailure, "cache folder {}: {}", folder_.string(), error.message());
  list();
  enforce_cap();
  writer_ = std::thread([this] { write_loop(); });
}

DiskTier::~DiskTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  writer_.join();
  poll();
}

fs::path DiskTier::path_of(uint64_t hash) const {
  const auto it = files_.find(hash);
  const bool with_state = it != files_.end() && it->second.has_state;
  return folder_ / fmt::format("{:016x}{}", hash, with_state ? kStateSuffix : kPlainSuffix);
}

// Oldest first, so that the order of use survives a restart. Names that are not ours are left alone.
void DiskTier::list() {
  struct Found {
    fs::file_time_type time;
    uint64_t hash;
    File file;
  };
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (!it->is_regular_file(ignored) || name.size() < 16) continue;
    uint64_t hash = 0;
    const auto [stop, bad] = std::from_chars(name.data(), name.data() + 16, hash, 16);
    const std::string suffix = name.substr(16);
    if (bad != std::errc() || stop != name.data() + 16 ||
        (suffix != kStateSuffix && suffix != kPlainSuffix)) {
      continue;
    }
    const auto bytes = static_cast<int64_t>(it->file_size(ignored));
    found.push_back({it->last_write_time(ignored), hash, {suffix == kStateSuffix, bytes, 0}});
  }
  std::ranges::sort(found, [](const Found& a, const Found& b) { return a.time < b.time; });
  for (const Found& f : found) {
    if (const auto it = files_.find(f.hash);
        it != files_.end()) {  // both kinds: the one with state says more
      if (it->second.has_state) continue;
      forget(f.hash, true);
    }
    files_[f.hash] = f.file;
    bytes_ += f.file.bytes;
    use(f.hash);
  }
}

void DiskTier::use(uint64_t hash) {
  File& file = files_.at(hash);
  if (file.tick != 0) order_.erase(file.tick);
  file.tick = ++tick_;
  order_[file.tick] = hash;
}

void DiskTier::forget(uint64_t hash, bool remove_file) {
  const auto it = files_.find(hash);
  if (it == files_.end()) return;
  std::error_code ignored;
  if (remove_file) fs::remove(path_of(hash), ignored);
  bytes_ -= it->second.bytes;
  order_.erase(it->second.tick);
  files_.erase(it);
}

void DiskTier::enforce_cap() {
  while (bytes_ > max_bytes_ && !order_.empty()) forget(order_.begin()->second, true);
}

bool DiskTier::has(uint64_t hash, bool with_state) const {
  const auto it = files_.find(hash);
  return it != files_.end() && (it->second.has_state || !with_state);
}

bool DiskTier::fetch(uint64_t hash, uint64_t parent, std::span<const int32_t> tokens, bool with_state,
                     PrefixIndex::Fetched& out) {
  if (!has(hash, with_state)) return false;
  const fs::path path = path_of(hash);
  try {
    const MappedFile file = MappedFile::open(path);
    PageImage image = read_image(file.bytes(), fingerprint_, vocab_size_, cache_, path.string());
    const bool fits = image.key == hash && chain_hash(parent, tokens) == hash && image.sets.size() == 2 &&
                      std::ranges::equal(image.ids, tokens);
    if (!fits) {
      for (auto& set : image.sets) {
        for (size_t g = 0; g < set.size(); ++g) cache_.drop(static_cast<int>(g), set[g]);
      }
      forget(hash, true);
      return false;
    }
    out.pages = std::move(image.sets[0]);
    out.state = std::move(image.sets[1]);
    std::error_code ignored;
    fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
    use(hash);
    ++hits_;
    return true;
  } catch (const Error& error) {
    // Without memory the file is still good.
    forget(hash, error.kind() != Error::Kind::kNoMemory);
    return false;
  }
}

void DiskTier::store(const PrefixBlock& block, bool with_state) {
  with_state = with_state && !block.state.empty();
  if (has(block.hash, with_state) || queued_.size() >= kMaxQueued || queued_.contains(block.hash)) return;
  Job job{.hash = block.hash, .with_state = with_state};
  job.image.fingerprint = fingerprint_;
  job.image.key = block.hash;
  job.image.ids.assign(block.tokens.begin(), block.tokens.end());
  job.image.sets.resize(2, std::vector<PageRun>(cache_.spec().groups.size()));
  for (size_t g = 0; g < cache_.spec().groups.size(); ++g) {
    job.image.sets[0][g] = cache_.share(static_cast<int>(g), block.pages[g]);
    if (with_state) job.image.sets[1][g] = cache_.share(static_cast<int>(g), block.state[g]);
    for (const auto& set : job.image.sets) {
      if (set[g].pages.empty()) continue;
      const int64_t rows = set[g].end() * cache_.spec().groups[g].rows_per_page;
      job.image.length = std::max(job.image.length, rows * cache_.spec().groups[g].tokens_per_row);
    }
  }
  job.image.length = std::max(job.image.length, static_cast<int64_t>(job.image.ids.size()));
  job.pages = page_bytes(job.image, cache_);
  queued_.insert(block.hash);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    ++in_flight_;
  }
  changed_.notify_all();
}

// Reads pages that nobody writes any more: they are full, and referenced by the job.
void DiskTier::write_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    const fs::path path =
        folder_ / fmt::format("{:016x}{}", job.hash, job.with_state ? kStateSuffix : kPlainSuffix);
    try {
      AtomicFile file(path);
      write_image(job.image, cache_.spec(), job.pages, cache_.copy(), [&](std::span<const std::byte> bytes) {
        file.write(bytes);
        job.bytes += static_cast<int64_t>(bytes.size());
      });
      file.commit();
    } catch (const Error&) {
      job.bytes = 0;  // a full disk costs a miss later, nothing now
    }
    lock.lock();
    written_.push_back(std::move(job));
    --in_flight_;
    changed_.notify_all();
  }
}

void DiskTier::poll() {
  std::vector<Job> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(written_);
  }
  for (Job& job : done) {
    for (auto& set : job.image.sets) {
      for (size_t g = 0; g < set.size(); ++g) cache_.drop(static_cast<int>(g), set[g]);
    }
    queued_.erase(job.hash);
    if (job.bytes == 0) continue;
    forget(job.hash, job.with_state);  // the file without state, if there was one
    files_[job.hash] = {.has_state = job.with_state, .bytes = job.bytes, .tick = 0};
    bytes_ += job.bytes;
    use(job.hash);
  }
  if (!done.empty()) enforce_cap();
}

void DiskTier::flush() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return in_flight_ == 0; });
  }
  poll();
}

}  // namespace synod
