#include "cuda/uploader.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace synod::cuda {

// Piece i uses buffer i % kBuffers. Readers take pieces in order and wait for their buffer.
struct Uploader::Ring {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t next = 0;           // piece no reader has taken
  int64_t usable = kBuffers;  // pieces below may be filled
  std::vector<char> ready;    // [pieces]
  std::exception_ptr error;

  void read_all(std::span<const Piece> pieces, const std::vector<std::byte*>& pinned) {
    while (true) {
      int64_t i;
      {
        std::unique_lock lock(mutex);
        i = next++;
        if (i >= static_cast<int64_t>(pieces.size())) return;
        changed.wait(lock, [&] { return i < usable || error; });
        if (error) return;
      }
      std::exception_ptr failed;
      try {
        pieces[static_cast<size_t>(i)].read(pinned[static_cast<size_t>(i % kBuffers)]);
      } catch (...) {
        failed = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      ready[static_cast<size_t>(i)] = 1;
      if (failed && !error) error = failed;
      changed.notify_all();
    }
  }
};

Uploader::Uploader(Device& device, int n_threads, int64_t piece_bytes)
    : device_(device), n_threads_(n_threads), piece_bytes_(piece_bytes) {
  SYNOD_ASSERT(n_threads > 0 && piece_bytes > 0);
  for (int i = 0; i < kBuffers; ++i) {
    pinned_.push_back(device.allocate_pinned(piece_bytes));
    staged_.push_back(device.allocate(piece_bytes));
  }
}

Uploader::~Uploader() {
  for (std::byte* data : pinned_) device_.release_pinned(data);
  for (std::byte* data : staged_) device_.release(data);
}

void Uploader::run(std::span<const Piece> pieces, const std::function<void(int64_t)>& progress) {
  const auto n = static_cast<int64_t>(pieces.size());
  Ring ring;
  ring.ready.resize(pieces.size());
  std::vector<std::thread> readers;
  for (int t = 0; t < n_threads_; ++t) readers.emplace_back([&] { ring.read_all(pieces, pinned_); });
  const auto stop = [&](const std::exception_ptr& error) {
    {
      const std::lock_guard lock(ring.mutex);
      if (error && !ring.error) ring.error = error;
    }
    ring.changed.notify_all();
    for (std::thread& reader : readers) reader.join();
  };
  try {
    int64_t done = 0;
    for (int64_t i = 0; i < n; ++i) {
      {
        std::unique_lock lock(ring.mutex);
        ring.changed.wait(lock, [&] { return ring.ready[static_cast<size_t>(i)] != 0 || ring.error; });
        if (ring.error) std::rethrow_exception(ring.error);
      }
      const Piece& piece = pieces[static_cast<size_t>(i)];
      SYNOD_ASSERT(piece.bytes <= piece_bytes_);
      const auto slot = static_cast<size_t>(i % kBuffers);
      device_.upload(staged_[slot], pinned_[slot], piece.bytes);
      piece.place(staged_[slot]);
      device_.set_mark(static_cast<int>(slot));
      // The buffer half a ring back is free once the device has passed its mark.
      constexpr int64_t kLag = kBuffers / 2;
      if (i >= kLag) {
        device_.wait_mark(static_cast<int>((i - kLag) % kBuffers));
        {
          const std::lock_guard lock(ring.mutex);
          ring.usable = i - kLag + 1 + kBuffers;
        }
        ring.changed.notify_all();
      }
      done += piece.bytes;
      if (progress) progress(done);
    }
    device_.synchronize();
  } catch (...) {
    stop(std::current_exception());
    device_.synchronize();
    throw;
  }
  stop(nullptr);
}

}  // namespace synod::cuda
