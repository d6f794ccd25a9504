// Device memory for intermediate results of launches. A buffer given back may be taken again at once:
// launches of a stream run in order.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "cuda/device.h"

namespace synod::cuda {

class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::byte* take(int64_t bytes);
  void give_back(std::byte* data);
  int64_t bytes() const { return total_; }

 private:
  Device& device_;
  std::multimap<int64_t, std::byte*> free_;  // by size
  std::unordered_map<std::byte*, int64_t> sizes_;
  int64_t total_ = 0;
};

}  // namespace synod::cuda
