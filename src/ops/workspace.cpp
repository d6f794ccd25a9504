#include "ops/workspace.h"

#include <algorithm>

namespace synod {

Tensor Workspace::tensor(DType type, std::initializer_list<int64_t> shape, std::string_view name) {
  Tensor t = Tensor::contiguous(nullptr, type, shape, name);
  constexpr int64_t kAlign = 64;
  const int64_t bytes = (t.bytes() + kAlign - 1) / kAlign * kAlign;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  if (dry()) return t;
  // Later chunks are empty here: scopes return memory in stack order.
  while (chunk_ < chunks_.size() && offset_ + bytes > chunks_[chunk_].bytes()) {
    ++chunk_;
    offset_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    constexpr int64_t kMinChunk = 4 << 20;
    chunks_.push_back(allocator_(std::max(bytes, kMinChunk)));
    offset_ = 0;
  }
  t.data = chunks_[chunk_].data() + offset_;
  offset_ += bytes;
  return t;
}

}  // namespace synod
