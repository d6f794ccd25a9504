// safetensors: hardened reader (single file, or shards with an index) and a writer for small result files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"

namespace synod {

class SafetensorsFile {
 public:
  // A `.safetensors` file, or a folder with `model.safetensors.index.json` or `model.safetensors`.
  // Throws kNotFound or kBadFile. Tensors of rank 0 become shape [1]; a rank above 4 is refused.
  static SafetensorsFile open(const std::filesystem::path& path);
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& file_name);

  // Sorted by name. Offsets may be misaligned for their element type: read values through memcpy
  // (synod::decode does).
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  // Tensors of a type that synod cannot read (F4, F6, ...) are left out and listed here.
  const std::vector<std::string>& unreadable() const { return unreadable_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::string> unreadable_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<MappedFile> files_;
};

// Writes tensors (contiguous) to one file: temporary name, fsync, rename.
void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors);

}  // namespace synod
