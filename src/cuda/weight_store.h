// The model's constants on the device. Ops name a weight by where the host holds it; the store knows its
// device form. Weights placed together share one allocation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tensor.h"
#include "cuda/device.h"
#include "cuda/uploader.h"
#include "cuda/weight_layout.h"
#include "cuda/weight_set.h"
#include "quant/matrix.h"

namespace synod::cuda {

class WeightStore {
 public:
  explicit WeightStore(Device& device);
  ~WeightStore();

  // Bytes that placing the set takes.
  static int64_t planned_bytes(const WeightSet& set);
  // Replaces what was placed before. Throws kNoMemory with numbers when it does not fit.
  void place(const WeightSet& set);
  // Adds without removing; the memory lives until clear_extra(). For weights nobody placed.
  const DeviceMatrix& place_extra(std::span<const Matrix> experts, bool as_float);
  void clear_extra();
  bool has_extra() const { return !extra_memory_.empty(); }

  // Null when it was not placed. `experts` are found stacked, expert after expert.
  const DeviceMatrix* find(const Matrix& m) const;
  const DeviceMatrix* find(std::span<const Matrix> experts) const;
  const std::byte* find_constant(const void* host) const;

  int64_t bytes() const { return bytes_; }

 private:
  struct Item;
  void upload(Uploader& uploader, std::vector<Item>& items, std::byte* slab);
  const void* codebook(DType type);

  Device& device_;
  std::byte* slab_ = nullptr;
  int64_t bytes_ = 0;
  // By the address of the first row; `n_rows` tells a matrix from its stacked experts.
  std::unordered_map<const std::byte*, std::vector<DeviceMatrix>> matrices_, extra_;
  std::unordered_map<const void*, const std::byte*> constants_;
  std::vector<std::byte*> extra_memory_;
  std::unique_ptr<Uploader> extra_uploader_;
  std::map<DType, std::byte*> codebooks_;
};

}  // namespace synod::cuda
