// Turns the ops of a step into launches. Runs once per kind of step: what it makes is replayed.
//
// Fusions, all of neighbouring ops:
// - element-wise ops and norms over rows of one width become one row program, with the digits that the next
//   product wants as its last step;
// - norms, rotations and cache writes of heads become one head program;
// - hyper-connection mix, collapse and norm share a launch; experts run as gate-up, digits, down-and-combine.
// A product of up to kDecodeTokens rows runs as matrix-vector products (the decode class), more as
// tensor-core tiles (the prefill class). Within a class a token's result does not depend on the other tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "cuda/scratch.h"
#include "cuda/step.h"
#include "cuda/weight_store.h"

namespace synod::cuda {

inline constexpr int64_t kDecodeTokens = 64;
// From here on attention would run on tensor cores with f16 keys and values. Off: on models with large
// attention scores its logits move by more than the bound between classes, and a prompt's logits would depend
// on its cuts.
inline constexpr int64_t kTileTokens = std::numeric_limits<int64_t>::max();

struct PlannedLaunch {
  Launch launch;
  uint32_t label = 0;
};

class Builder {
 public:
  Builder(const Step& step, WeightStore& weights, Scratch& scratch, uint32_t* status);
  ~Builder();
  std::vector<PlannedLaunch> build();

 private:
  struct Product {
    const DeviceMatrix* weight;
    View out;
  };
  // Rows of activations as a kernel input: address and shape tell them apart.
  struct Rows {
    View view;
    int64_t n = 0;
  };

  void run(const std::monostate&) {}
#define SYNOD_PRIMITIVE(Op) void run(const Op& op);
#define SYNOD_FUSED(Op) void run(const Op& op);
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

  void emit(Launch launch);
  void flush_rows();
  void append_row_step(const RowStep& step, int64_t n_rows, int32_t d);
  template <typename Op>
  const Op* op_at(size_t index) const;
  size_t fuse_heads();  // ops taken from index_ on; 0 = none
  size_t fuse_hyper();

  const DeviceMatrix& device(const Matrix& m, bool as_float = false);
  const DeviceMatrix& device(std::span<const Matrix> experts);
  StatusWord status() const;
  void products(std::span<const Product> parts, const Rows& x);
  void expert_products(const Tensor& out, const Rows& x, bool x_per_slot, const Tensor& ids,
                       std::span<const Matrix> experts);
  void grouped_ffn(const ExpertFfn& op);
  struct Tiles;
  Tiles sort_slots(const Tensor& ids, int64_t n_experts);
  void attention(AttentionParams p, int64_t n_tokens, int64_t longest);
  void hyper_mix(const HcMix& op, const HcCollapse* collapse, const RmsNorm* norm);
  void route(RouteParams p, const Tensor& ids, const Tensor& weights, const Tensor& logits);

  // Forms of activations that products read; made once per input, dropped when the input is written.
  DigitRows digits(const Rows& x);
  HalfRows halves(const Rows& x, bool low);
  void wrote(const Tensor& t);
  void wrote(const std::byte* begin, const std::byte* end);

  template <typename T>
  T* temporary(int64_t count);  // until the op ends
  void end_op();

  struct Cached {
    const std::byte *begin = nullptr, *end = nullptr;
    View view;
    int64_t n = 0;
    DigitRows digits;
    HalfRows halves;
    std::vector<std::byte*> memory;
  };
  Cached* find(const Rows& x, bool half, bool low);
  Cached& remember(const Rows& x);

  const Step& step_;
  WeightStore& weights_;
  Scratch& scratch_;
  uint32_t* status_;
  std::vector<PlannedLaunch> launches_;
  size_t index_ = 0;    // of the op being built
  uint32_t label_ = 0;  // of it
  RowProgram rows_;     // open row program
  uint32_t rows_label_ = 0;
  std::vector<Cached> cached_;
  std::vector<std::byte*> temporaries_;
};

}  // namespace synod::cuda
