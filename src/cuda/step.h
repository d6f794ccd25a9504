// One step as the host sees it: the ops issued since the last join, with every operand resolved to device
// memory. Small host operands (ids, positions, page tables) are copied into pinned blocks whose device twins
// have fixed addresses, so that two steps of the same shape differ only in the blocks' contents.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cuda/device.h"
#include "ops/backend.h"

namespace synod::cuda {

// Every op struct.
using AnyOp = std::variant<std::monostate
#define SYNOD_PRIMITIVE(Op) , Op
#define SYNOD_FUSED(Op) , Op
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED
                           >;

struct StepOp {
  AnyOp op;  // tensors hold device addresses
  uint32_t label = 0;
};

// Bump allocation with a pinned host twin. Chunks are kept; the same sequence of sizes gives the same
// addresses.
class StagingBlock {
 public:
  StagingBlock(Device& device, int64_t min_chunk) : device_(device), min_chunk_(min_chunk) {}
  ~StagingBlock();
  StagingBlock(const StagingBlock&) = delete;
  StagingBlock& operator=(const StagingBlock&) = delete;

  struct Slot {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };
  Slot take(int64_t bytes);
  void reset();
  void upload();  // what was taken since reset()

 private:
  struct Chunk {
    Slot base;
    int64_t bytes = 0, used = 0;
  };
  Device& device_;
  int64_t min_chunk_;
  std::vector<Chunk> chunks_;
  size_t current_ = 0;
};

class Step {
 public:
  Step(Device& device, const class WeightStore& weights);
  ~Step();

  // Ranges of device memory; other addresses are the host's.
  void add_device_range(const std::byte* begin, int64_t bytes);
  void remove_device_range(const std::byte* begin);
  bool on_device(const void* p) const;

  // Copies the op with its operands resolved and appends it.
  template <typename Op>
  void record(const Op& op, uint32_t label);

  bool empty() const { return ops_.empty(); }
  std::span<const StepOp> ops() const { return ops_; }
  std::span<const std::byte> key() const { return key_; }  // equal keys: equal launches

  // Of operands of recorded ops.
  const BatchArrays& batch(const BatchView* batch) const;
  CacheTable table(const CacheRows& rows) const;
  int64_t longest(const BatchView* batch) const;  // tokens of its longest sequence, these included

  void upload();            // host operands, before the launches
  void download();          // issues copies of host outputs, after the launches
  void finish_downloads();  // after a synchronize: into the caller's memory
  void clear();

 private:
  friend struct ResolveOperands;
  std::byte* resolve_input(const Tensor& t);
  std::byte* resolve_output(const Tensor& t, bool keep_contents);
  void resolve_batch(const BatchView* batch);
  void resolve_rows(const CacheRows& rows, int64_t n_sequences);
  template <typename T>
  void add_key(const T& value);
  void add_key(const Tensor& t);

  struct HostOutput {
    Tensor host;
    StagingBlock::Slot slot;
  };
  struct HostInput {
    StagingBlock::Slot slot;
    int64_t bytes;
  };
  struct BatchEntry {
    BatchArrays arrays;
    int64_t longest = 0;
  };

  Device& device_;
  const WeightStore& weights_;
  std::map<const std::byte*, int64_t> ranges_;  // begin -> bytes
  mutable const std::byte* last_begin_ = nullptr;
  mutable const std::byte* last_end_ = nullptr;
  std::vector<StepOp> ops_;
  std::vector<std::byte> key_;
  StagingBlock inputs_, outputs_;
  std::unordered_map<const void*, HostInput> host_inputs_;
  std::unordered_map<const void*, size_t> host_outputs_;  // index in outputs_list_
  std::vector<HostOutput> output_list_;
  std::unordered_map<const BatchView*, BatchEntry> batches_;
  std::unordered_map<const RowTable*, CacheTable> tables_;
};

}  // namespace synod::cuda
