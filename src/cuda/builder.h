// Turns the ops of a step into launches. Runs once per kind of step: what it makes is replayed.
//
// Fusions, all of neighbouring ops:
// - element-wise ops and norms over rows of one width become one row program, with the digits that the next
//   product wants as its last step;
// - norms, rotations and cache writes of heads become one head program;
// - hyper-connection mix, collapse and norm share a launch, and the end of a site that of the next one's
//   products;
// - state rows of a layer's compressors become one launch, and so does what they do with closed blocks;
// - products of one input share a launch, which also gates two of them and writes the digits that the next
//   product wants; experts run as gate-up and down-and-combine.
// A product of up to kDecodeTokens rows runs on integer tiles (tiles.cu; the decode class), more as f16 tiles
// (gemm.cu; the prefill class). Within a class a token's result does not depend on the other tokens.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cuda/scratch.h"
#include "cuda/step.h"
#include "cuda/views.h"
#include "cuda/weight_store.h"

namespace synod::cuda {

inline constexpr int64_t kDecodeTokens = 64;
// From here on attention runs on tensor cores: calls of the prefill class.
inline constexpr int64_t kTileTokens = kDecodeTokens + 1;

struct PlannedLaunch {
  Launch launch;
  uint32_t label = 0;
};

class Builder {
 public:
  // `tickets`: kMostTickets zeros.
  Builder(const Step& step, WeightStore& weights, Scratch& scratch, uint32_t* status, uint32_t* tickets);
  ~Builder();
  std::vector<PlannedLaunch> build();

 private:
  struct Product {
    const DeviceMatrix* weight;
    View out;
    float factor = 1.0F;
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
  const Op* op_at(size_t index) const {
    return index < step_.ops().size() ? std::get_if<Op>(&step_.ops()[index].op) : nullptr;
  }
  size_t fuse_heads();  // ops taken from index_ on; 0 = none
  size_t fuse_hyper();
  size_t fuse_states();
  size_t fuse_compress();
  size_t fuse_attention();
  size_t fuse_products();

  const DeviceMatrix& device(const Matrix& m, bool as_float = false);
  const DeviceMatrix& device(std::span<const Matrix> experts);
  StatusWord status() const;
  void products(std::span<const Product> parts, const Rows& x);
  bool gated_products(const Glu& op, std::span<const Product> parts, const Rows& x, size_t next);
  TileParams expert_tiles(const Tensor& ids, int64_t n_experts, int64_t rows) const;
  void emit_experts(TileParams p);
  bool joins_experts(const TileParams& pair, const ExpertFfn& op);
  void combined_experts(const ExpertFfn& op, const DeviceMatrix& down, float* hidden);
  void grouped_ffn(const ExpertFfn& op);
  struct Tiles;
  Tiles sort_slots(const Tensor& ids, int64_t n_experts);
  void attention(AttentionParams p, int64_t n_tokens, int64_t longest);
  void attention_digits(AttentionParams& p, size_t next, const Tensor& out);
  void hyper_mix(const HcMix& op, const HcPost* post, const HcCollapse* collapse, const RmsNorm* norm,
                 const DigitRows& normed);
  void route(RouteParams p, const Tensor& ids, const Tensor& weights, const Tensor& logits);

  // Forms of activations that products read; made once per input, dropped when the input is written.
  DigitRows digits(const Rows& x);
  HalfRows halves(const Rows& x, bool low);
  DigitRows digits_for(size_t next, const Tensor& out);
  DigitRows make_digits(const Rows& x);
  bool feeds_tiles(const Tensor& rows, size_t next);
  template <typename Visit>
  void visit_writes(size_t i, Visit&& visit) const;  // tensors that op i writes outside the cache
  bool writes(size_t i, const Tensor& rows) const;   // whether it writes over them
  bool settled(const Tensor& t) const;
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
  uint32_t *status_, *tickets_;
  std::vector<PlannedLaunch> launches_;
  std::optional<TileParams> side_;  // gated products that wait for the launch of the next op, ExpertFfn
  std::map<const int32_t*, size_t> chosen_;  // launch that wrote these expert ids
  std::vector<Extent> written_outside_;      // by the step's ops, of memory that is no backend's allocation
  size_t index_ = 0;                         // of the op being built
  uint32_t label_ = 0;                       // of it
  RowProgram rows_;                          // open row program
  uint32_t rows_label_ = 0;
  std::vector<Cached> cached_, made_;  // made_: by the launches of this op, known after it
  std::vector<std::byte*> temporaries_;
};

}  // namespace synod::cuda
