// One step as the host sees it: the ops issued since the last join, with every operand resolved to device
// memory. Small host operands (ids, positions, page tables) are copied into pinned blocks whose device twins
// have fixed addresses, so that two steps of the same shape differ only in the blocks' contents.
//
// A decode step mostly repeats the one before. So what the last step recorded is kept, and a step is compared
// with it op by op: as long as the two are equal nothing is stored again, only host operands are copied. Of a
// call that is known to issue the same ops not even those are needed: repeat() copies its host operands.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "cuda/device.h"
#include "ops/backend.h"
#include "ops/step_replay.h"

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
  AnyOp op;  // tensors hold device addresses; batch and page tables are the step's own
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
  // What was taken since reset(), one copy per chunk.
  void upload();
  void download();

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

  // Appends the op with its operands resolved.
  template <typename Op>
  void record(const Op& op, uint32_t label);

  // The ops that follow belong to this call.
  void announce(const StepCall& call);
  // All ops of the last step again, for this call. False, and no change, unless that step was announced and
  // only contents differ.
  [[nodiscard]] bool repeat(const StepCall& call);

  bool empty() const { return ended_ || n_ops_ == 0; }
  bool ended() const { return ended_; }
  std::span<const StepOp> ops() const { return {ops_.data(), n_ops_}; }
  // Equal keys: equal launches.
  std::span<const uint64_t> key() const { return {key_.data(), key_size_}; }
  // Whether the key is the last step's.
  bool repeats() const { return repeating_ && n_ops_ == ops_.size(); }

  // Of operands of recorded ops.
  const BatchArrays& batch(const BatchView* batch) const { return entry(batch).arrays; }
  CacheTable table(const CacheRows& rows) const;
  // Tokens of its longest sequence, these included.
  int64_t longest(const BatchView* batch) const { return entry(batch).longest; }

  // Two words that kernels raise; they come back with the outputs.
  uint32_t* status_on_device() const { return reinterpret_cast<uint32_t*>(status_.device); }
  std::span<const uint32_t, 2> status() const {
    return std::span<const uint32_t, 2>(reinterpret_cast<const uint32_t*>(status_.host), 2);
  }
  void clear_status() { device_.clear(status_.device, kStatusBytes); }

  void upload();            // host operands, before the launches
  void download();          // issues copies of host outputs, after the launches
  void finish_downloads();  // after a synchronize: into the caller's memory
  void clear();             // the step is over
  void forget();            // as clear(), and the next step repeats nothing: weights changed

 private:
  friend struct KeyOperands;
  friend struct PlaceOperands;
  static constexpr int64_t kStatusBytes = 2 * sizeof(uint32_t);

  struct HostOutput {
    Tensor host;
    StagingBlock::Slot slot;
    bool is_input;  // in place: the slot is of inputs_
  };
  struct HostInput {
    const std::byte* host;
    StagingBlock::Slot slot;
    int64_t bytes;
  };
  // Recorded ops point to `own`, whatever memory the caller's has in a later step that repeats them.
  struct BatchEntry {
    const BatchView* callers = nullptr;
    BatchView own;
    BatchArrays arrays;
    std::byte* host = nullptr;
    int64_t longest = 0;
  };
  struct TableEntry {
    const RowTable* callers = nullptr;
    std::vector<RowTable> own;
    CacheTable table;
    std::byte* host = nullptr;
    size_t index = 0;  // among the announced tables, or past them
  };
  // A call as announced: its addresses, and what must be equal for another to repeat it.
  struct Announced {
    const void* model = nullptr;
    uint64_t kind = 0;
    const BatchView* batch = nullptr;
    std::vector<int64_t> row_start;
    std::vector<Tensor> operands;
    std::vector<const RowTable*> tables;
  };
  // A tensor operand of the last step. One that is `fixed` (device memory, a constant) resolves again to the
  // same address.
  struct Operand {
    const std::byte* data = nullptr;
    std::byte* device = nullptr;
    bool fixed = false;
  };

  std::byte* resolve(const Tensor& t, bool written, bool keep_contents);
  std::byte* resolve_input(const Tensor& t);
  std::byte* resolve_output(const Tensor& t, bool keep_contents);
  void begin();
  static std::vector<Tensor> operands_of(const StepCall& call);
  std::optional<size_t> announced_operand(const std::byte* host, int64_t bytes) const;
  bool alike(const StepCall& call, std::span<const Tensor> operands) const;
  static void fill(const BatchView& batch, std::byte* host);
  static void fill(std::span<const RowTable> tables, int64_t pages, std::byte* host);
  const BatchEntry& resolve_batch(const BatchView* batch);
  const TableEntry& resolve_rows(const CacheRows& rows, int64_t n_sequences);
  const HostOutput* find_output(const void* host) const;
  const HostInput* find_input(const Tensor& t) const;
  const BatchEntry& entry(const BatchView* own) const;

  Device& device_;
  const WeightStore& weights_;
  std::map<const std::byte*, int64_t> ranges_;  // begin -> bytes
  mutable const std::byte* last_begin_ = nullptr;
  mutable const std::byte* last_end_ = nullptr;

  // This step: the first n_ops_ ops and key_size_ words. While it repeats the last one, more may follow of
  // that.
  std::vector<StepOp> ops_;
  std::vector<uint64_t> key_;
  size_t n_ops_ = 0, key_size_ = 0;
  bool repeating_ = true;
  bool ended_ = false;  // what follows is still the last step's
  std::optional<Announced> announced_;
  std::vector<Operand> operands_;
  size_t n_operands_ = 0;

  // Operands that the host holds, in order of first use.
  StagingBlock inputs_, outputs_;
  StagingBlock::Slot status_;  // the first of outputs_
  std::vector<HostInput> host_inputs_;
  std::vector<HostOutput> host_outputs_;
  std::deque<BatchEntry> batches_;
  std::deque<TableEntry> tables_;
  size_t n_batches_ = 0, n_tables_ = 0;
};

}  // namespace synod::cuda
