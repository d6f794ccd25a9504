// Scratch memory of a forward call: a stack of tensors that a scope returns as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"

namespace synod {

// Grows by chunks that are kept, so there is no allocation once the largest step has run. With no allocator
// (a dry run) tensors have null data and only the peak is counted.
class Workspace {
 public:
  using Allocator = std::function<Buffer(int64_t bytes)>;
  explicit Workspace(Allocator allocator = {}) : allocator_(std::move(allocator)) {}

  // Uninitialized; valid until the enclosing Scope ends.
  Tensor f32(std::initializer_list<int64_t> shape, std::string_view name = {}) {
    return tensor(DType::kF32, shape, name);
  }
  Tensor i32(std::initializer_list<int64_t> shape, std::string_view name = {}) {
    return tensor(DType::kI32, shape, name);
  }
  Tensor tensor(DType type, std::initializer_list<int64_t> shape, std::string_view name);

  // Where the next tensor goes. Replayed ops resume there, so that scratch of their lowering does not
  // overwrite tensors that were live when they were recorded.
  struct Mark {
    size_t chunk = 0;
    int64_t offset = 0, used = 0;
  };
  Mark mark() const { return {chunk_, offset_, used_}; }
  void resume(const Mark& mark) { chunk_ = mark.chunk, offset_ = mark.offset, used_ = mark.used; }

  int64_t peak_bytes() const { return peak_; }
  bool dry() const { return !allocator_; }

  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), mark_(workspace.mark()) {}
    ~Scope() { workspace_.resume(mark_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    Mark mark_;
  };

 private:
  Allocator allocator_;
  std::vector<Buffer> chunks_;
  size_t chunk_ = 0;    // current chunk
  int64_t offset_ = 0;  // first free byte of it
  int64_t used_ = 0;    // live bytes over all chunks
  int64_t peak_ = 0;
};

}  // namespace synod
