// Any accepted checkpoint to one GGUF file, in one streaming pass.
#pragma once

#include <filesystem>
#include <string>

#include "formats/checkpoint.h"

namespace synod {

struct ConvertOptions {
  DType type = DType::kQ8_0;  // of the quantizable matrices: f32, f16, bf16 or q8_0
};

struct ConvertReport {
  int64_t n_tensors = 0;
  int64_t bytes = 0;  // of tensor data written
};

// Reads `input`, writes `output` (temporary name, fsync, rename). Vectors, routers and other small tables
// stay f32, integer tables i32. A row that is no whole number of blocks falls back to f16. Throws kBadFile
// for an input that cannot be bound, kFailure when the output cannot be written.
ConvertReport convert(const Checkpoint& input, const std::filesystem::path& output,
                      const ConvertOptions& options);

}  // namespace synod
