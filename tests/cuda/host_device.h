// A device in host memory: copies are made at once, launches are counted and compute nothing.
#pragma once

#include <cstring>
#include <vector>

#include "cuda/device.h"

namespace synod::testing {

class HostDevice final : public cuda::Device {
 public:
  std::string name() const override { return "host"; }
  int64_t free_bytes() const override { return 1 << 30; }
  int64_t total_bytes() const override { return 1 << 30; }
  std::byte* allocate(int64_t bytes) override { return ++live_, new std::byte[static_cast<size_t>(bytes)]; }
  void release(std::byte* data) override { --live_, delete[] data; }
  std::byte* allocate_pinned(int64_t bytes) override { return allocate(bytes); }
  void release_pinned(std::byte* data) override { release(data); }
  void upload(std::byte* device, const std::byte* host, int64_t bytes) override {
    ++copies, uploaded.assign(host, host + bytes);
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void download(std::byte* host, const std::byte* device, int64_t bytes) override {
    ++copies, std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void clear(std::byte* device, int64_t bytes) override {
    std::memset(device, 0, static_cast<size_t>(bytes));
  }
  void launch(const cuda::Launch&) override { ++launches; }
  void synchronize() override {}
  void set_mark(int) override {}
  void wait_mark(int) override {}  // passed when it is waited for
  double seconds_between(int, int) override { return 0.0; }
  void begin_capture() override {}
  Graph end_capture() override { return ++captures, this; }
  void replay(Graph) override { ++replays; }
  void drop(Graph) override {}
  int live() const { return live_; }

  int copies = 0, launches = 0, captures = 0, replays = 0;
  std::vector<std::byte> uploaded;  // by the last upload

 private:
  int live_ = 0;
};

}  // namespace synod::testing
