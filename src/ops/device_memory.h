// Memory that the host cannot touch. A backend whose buffers lie in such memory is one of these as well; the
// buffers of all others are read and written directly.
#pragma once

#include <cstddef>
#include <cstdint>

namespace synod {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Copies between buffers of the backend, or between one and host memory, in either direction: after what
  // was issued before, and done on return.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
};

}  // namespace synod
