// Importance matrices: how much each input column of a weight matrix matters. For a matrix used as y = W a
// the squared error of y is about sum_j E[a_j^2] (W_rj - W'_rj)^2, so a quantizer weights column j by the
// mean of a_j^2 over calibration tokens. One vector per matrix; of stacked experts one per expert, over the
// tokens that were routed to it.
//
// The file is llama.cpp's GGUF form: general.type "imatrix", imatrix.datasets, imatrix.chunk_count,
// imatrix.chunk_size, and per weight the tensors `<name>.in_sum2` f32 [n_experts, n_columns] and
// `<name>.counts` f32 [n_experts, 1]: sums, not means, so that files can be merged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "models/model.h"

namespace synod {

struct ImatrixEntry {
  int64_t n_experts = 1;
  int64_t n_columns = 0;
  std::vector<float> sums;     // [n_experts, n_columns] of squared activations; gigabytes for large models
  std::vector<double> counts;  // [n_experts] activations seen
};

struct Imatrix {
  std::map<std::string, ImatrixEntry, std::less<>> entries;  // by the weight's name in GGUF files
  std::vector<std::string> datasets;
  int64_t n_chunks = 0;
  int64_t chunk_tokens = 0;

  // Throws kNotFound, kBadFile. Values may be anything, NaN included: who uses them decides
  // (convert/importance.h).
  static Imatrix read(const std::filesystem::path& path);
  void write(const std::filesystem::path& path) const;  // temporary name, fsync, rename
  // Adds another run's sums. Throws kBadFile naming the first entry of another shape.
  void merge(const Imatrix& other);
};

struct ImatrixOptions {
  int64_t chunk_tokens = 512;
  int64_t max_chunks = -1;      // -1 = the whole text
  bool process_output = false;  // also the output matrix
  std::function<bool()> cancelled;
};

// Runs `ids` through the model in chunks of their own (each begins with BOS where the tokenizer adds it: the
// caller passes `bos` >= 0), and sums the squared inputs of every matrix product. `backend` must be a host
// backend. Throws kUsage when there is not one whole chunk.
Imatrix collect_imatrix(const Checkpoint& checkpoint, const Model& model, Backend& backend,
                        std::span<const int32_t> ids, int32_t bos, const ImatrixOptions& options);

}  // namespace synod
