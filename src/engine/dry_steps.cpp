#include "engine/dry_steps.h"

#include <array>

namespace synod {

void dry_steps(const Model& model, Backend& dry) {
  SYNOD_ASSERT(dry.is_dry());
  for (const int64_t n : {kPageTokens, int64_t{1}}) {  // every ratio divides a page
    KvCache cache(model.cache_spec(), {});
    const std::array<SequenceId, 1> sequences = {cache.create()};
    cache.reserve(sequences[0], n);
    const std::array<int64_t, 2> row_start = {0, n};
    const std::array<int64_t, 1> past = {0};
    const BatchView batch{.ids = Tensor::contiguous(nullptr, DType::kI32, {n}, "ids"),
                          .positions = Tensor::contiguous(nullptr, DType::kI32, {n}, "positions"),
                          .row_start = row_start,
                          .past = past};
    ForwardRequest request;
    request.rows = Tensor::contiguous(nullptr, DType::kI32, {1}, "rows");
    request.logits = Tensor::contiguous(nullptr, DType::kF32, {1, model.info().vocab_size}, "logits");
    model.forward(batch, cache.view(sequences), dry, request);
  }
}

}  // namespace synod
