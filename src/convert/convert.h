// Any accepted checkpoint to GGUF, in one streaming pass: `convert` and `quantize` are this function.
//
// Every tensor is read, decoded, encoded and written in pieces of rows, by all threads, in a fixed order:
// memory does not grow with the model, and the file does not depend on the number of threads. Output files
// have a temporary name until they are complete.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "convert/mixes.h"
#include "engine/imatrix.h"
#include "formats/checkpoint.h"

namespace synod {

struct ConvertOptions {
  std::string_view type = "q8_0";  // name of a mix
  MixOptions types;                // has_importance is set by convert
  const Imatrix* importance = nullptr;
  std::string importance_file;    // for metadata and receipt
  int n_threads = 0;              // 0 = all this process may use
  int64_t split_max_bytes = 0;    // of tensor data per file; 0 = one file
  bool allow_requantize = false;  // do not warn when the source is quantized already
  bool receipt = true;            // write OUTPUT.receipt.json with hashes of inputs and outputs
  bool dry_run = false;           // plan only
  std::string version;            // of the program, for the receipt
  std::function<bool()> cancelled;
};

struct ConvertedTensor {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

struct ConvertReport {
  std::vector<ConvertedTensor> tensors;      // in file order
  std::vector<std::filesystem::path> files;  // written, in order
  std::vector<std::string> warnings;         // also logged
  int64_t bytes = 0;                         // of tensor data written
  int64_t n_values = 0;                      // in all tensors
  int64_t source_bytes = 0;                  // of tensor data read
  double seconds = 0.0;                      // of the pass, without hashing
  bool was_cancelled = false;                // nothing was written
};

// Reads `input`, writes `output` (or its split: NAME-00001-of-0000N.gguf). Metadata and tokenizer of a GGUF
// file are copied, with general.file_type and general.quantization_version renewed; other checkpoints get the
// keys that llama.cpp reads. Throws kUsage for a type that needs importance data and has none, kBadFile for
// an input that cannot be bound, that holds values that are not finite, or with importance data of another
// model; kFailure when the output cannot be written. Nothing with the output's name exists afterwards unless
// it is complete.
ConvertReport convert(const Checkpoint& input, const std::filesystem::path& output,
                      const ConvertOptions& options);

}  // namespace synod
