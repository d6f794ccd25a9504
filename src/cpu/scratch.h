// What the matrix ops share: prepared activations, lists of products, and the phase that runs them. Memory
// only grows, so a step allocates nothing once the largest one has run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"
#include "cpu/cpu_backend.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "quant/matrix.h"

namespace synod::cpu {

inline constexpr int kActivationKinds = 5;
inline constexpr int64_t kMaxPanelTokens = 512;  // tokens of one kernel call

// Uninitialized 64-byte aligned memory; growing loses the contents.
class GrowingBuffer {
 public:
  std::byte* bytes(int64_t n) {
    if (n > buffer_.bytes()) {
      const int64_t larger = std::max(n, buffer_.bytes() + buffer_.bytes() / 2);
      buffer_ = {};  // before the new one: both may be large
      buffer_ = Buffer::host(larger);
    }
    return buffer_.data();
  }
  float* floats(int64_t n) { return reinterpret_cast<float*>(bytes(n * int64_t{sizeof(float)})); }

 private:
  Buffer buffer_;
};

// Prepared activations of the rows of one input, for each kind that some matrix asks for.
class Records {
 public:
  // Rows of `x`, outer dimensions flattened.
  void prepare(Pool& pool, const KernelTable& table, ActivationKind kind, const Tensor& x);
  const std::byte* const* of(ActivationKind kind) const {
    return pointers_[static_cast<size_t>(kind)].data();
  }

 private:
  GrowingBuffer buffers_[kActivationKinds];
  std::vector<const std::byte*> pointers_[kActivationKinds];  // one per row
};

// A matrix times some tokens: outputs[m][r] = row r of `weight` times token m.
struct Product {
  Matrix weight;
  const std::byte* const* records = nullptr;  // [n_tokens]
  float* const* outputs = nullptr;            // [n_tokens]
  int64_t n_tokens = 0;
  int64_t call_tokens = kMaxPanelTokens;  // tokens that one kernel call may take
};

// Rows and tokens of one product that one thread computes.
struct Item {
  int64_t product = 0;
  int64_t row_begin = 0, row_end = 0;
  int64_t token_begin = 0, token_end = 0;
};

struct alignas(64) ThreadScratch {
  GrowingBuffer kernel;  // scratch_bytes() of the table
  GrowingBuffer up;      // [tokens of a call, rows of an item]
  std::vector<float*> out, up_out;
  std::vector<const float*> terms;
  std::byte* for_kernel(int64_t n_tokens) { return kernel.bytes(scratch_bytes(n_tokens)); }
};

// What the cutting of a phase depends on; never the results.
struct PhasePart {
  int64_t n_rows = 0;
  int64_t row_bytes = 0;  // stored bytes per row
  int64_t n_tokens = 0;
};
// Cuts the parts of one phase into items of about 256 KiB of weights.
void cut_into_items(std::span<const PhasePart> parts, int n_threads, std::vector<Item>& items);

// Distinct matrices of a phase and the phase itself.
struct ProductPhase {
  std::vector<Product> products;
  std::vector<PhasePart> parts;
  std::vector<Item> items;
  void run(Pool& pool, const KernelTable& table, std::span<ThreadScratch> threads);
};

// Slots of a batch by expert, ascending; inside an expert by token. A slot is token * k + its place.
struct ExpertSchedule {
  struct Group {
    int64_t expert = 0;
    int64_t begin = 0, end = 0;  // in `slots`
    int64_t size() const { return end - begin; }
  };
  std::vector<Group> groups;     // experts that have slots, the largest first
  std::vector<int64_t> slots;    // by expert
  std::vector<int64_t> place;    // of each slot in `slots`; -1 where the id is out of range
  std::vector<int64_t> offsets;  // [n_experts + 1]

  // False when an id is out of range.
  bool assign(const Tensor& ids, int64_t n_experts);
};

}  // namespace synod::cpu

namespace synod {

struct CpuBackend::Scratch {
  explicit Scratch(int n_threads) : threads(static_cast<size_t>(n_threads)) {}

  std::vector<cpu::ThreadScratch> threads;
  cpu::ProductPhase phase;
  cpu::Records inputs, hidden;
  std::vector<float*> outputs;
  cpu::ExpertSchedule schedule;
  std::vector<const std::byte*> gate_records, up_records, down_records;  // by place in the schedule
  cpu::GrowingBuffer hidden_rows, slot_rows;                             // by place
  std::vector<float> ones;
  uint32_t logged_routes = 0;
};

}  // namespace synod
