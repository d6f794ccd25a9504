// What the backend needs of a device: memory, one stream of copies and launches, captured graphs. The CUDA
// implementation is cuda_device.cpp; tests have one in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/kernels/params.h"

namespace synod::cuda {

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  virtual int64_t free_bytes() const = 0;
  virtual int64_t total_bytes() const = 0;

  // Throws kNoMemory with the sizes.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* data) = 0;
  virtual std::byte* allocate_pinned(int64_t bytes) = 0;
  virtual void release_pinned(std::byte* data) = 0;

  // Stream-ordered. The host side of a copy must stay until the mark after it was passed.
  virtual void upload(std::byte* device, const std::byte* host, int64_t bytes) = 0;
  virtual void download(std::byte* host, const std::byte* device, int64_t bytes) = 0;
  // Between any two of device and host memory.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void clear(std::byte* device, int64_t bytes) = 0;
  virtual void launch(const Launch& launch) = 0;
  virtual void synchronize() = 0;
  // A point in the stream, and waiting until the device has passed it. Marks are numbered 0 to kMarks - 1.
  static constexpr int kMarks = 32;
  virtual void set_mark(int mark) = 0;
  virtual void wait_mark(int mark) = 0;
  virtual double seconds_between(int first, int second) = 0;  // both passed

  // Captures the launches issued between the calls; returns a graph to replay.
  using Graph = void*;
  virtual void begin_capture() = 0;
  virtual Graph end_capture() = 0;
  virtual void replay(Graph graph) = 0;
  virtual void drop(Graph graph) = 0;
};

}  // namespace synod::cuda
