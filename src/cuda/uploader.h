// Streams pieces of weights to the device: reader threads fill a ring of pinned buffers while copies and
// re-laying kernels of earlier pieces run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cuda/device.h"

namespace synod::cuda {

struct Piece {
  int64_t bytes = 0;                             // at most the uploader's piece size
  std::function<void(std::byte* to)> read;       // fills `bytes` bytes; called on a reader thread
  std::function<void(std::byte* staged)> place;  // issues device work on the staged copy; called in order
};

class Uploader {
 public:
  static constexpr int64_t kPieceBytes = 16 << 20;  // smaller pieces do not fill the link
  static constexpr int kBuffers = 8;
  static_assert(kBuffers <= Device::kMarks);

  Uploader(Device& device, int n_threads, int64_t piece_bytes = kPieceBytes);
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  int64_t piece_bytes() const { return piece_bytes_; }

  // Returns when all pieces are on the device. An exception of a reader is rethrown here.
  void run(std::span<const Piece> pieces, const std::function<void(int64_t bytes_done)>& progress = {});

 private:
  struct Ring;
  Device& device_;
  int n_threads_;
  int64_t piece_bytes_;
  std::vector<std::byte*> pinned_, staged_;  // [kBuffers]
};

}  // namespace synod::cuda
