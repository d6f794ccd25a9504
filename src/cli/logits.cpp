#include <algorithm>
#include <map>

#include "base/log.h"
#include "cli/profiling.h"
#include "cli/verbs.h"
#include "engine/session.h"
#include "formats/safetensors.h"

namespace synod::cli {
namespace {

// Sizes of the forward calls: the given ones in order, the last repeated until all ids are used.
std::vector<int64_t> chunk_sizes(const std::string& text, int64_t n) {
  if (text.empty()) return {n};
  const std::vector<int32_t> given = parse_ids(text, "--chunks");
  std::vector<int64_t> sizes;
  int64_t done = 0;
  for (size_t i = 0; done < n; ++i) {
    const int64_t size = given[std::min(i, given.size() - 1)];
    if (size < 1) fail(Error::Kind::kUsage, "--chunks: expected sizes of at least 1, got {}", size);
    sizes.push_back(std::min(size, n - done));
    done += sizes.back();
  }
  return sizes;
}

struct Hidden {
  std::vector<int64_t> row_shape;  // of one position
  std::vector<float> values;
};

}  // namespace

int logits_verb(const Options& options) {
  const std::vector<int32_t> ids = options.ids_file.empty()
                                       ? parse_ids(options.ids, "--ids")
                                       : parse_ids(read_text_file(options.ids_file), options.ids_file);
  const auto n = static_cast<int64_t>(ids.size());
  const std::vector<int64_t> chunks = chunk_sizes(options.chunks, n);
  const LoadedModel loaded = load(options);
  Profiler profiler(options, *loaded.model, *loaded.backend);
  Session session(*loaded.model, profiler.backend());

  std::vector<float> logits;
  std::map<int64_t, Hidden> hidden;
  Session::Tap tap;
  if (options.hidden) {
    tap = [&](int64_t index, const Tensor& t) {
      Hidden& h = hidden[index];
      h.row_shape.assign(t.shape.begin() + 1, t.shape.begin() + t.rank);
      for (int64_t r = 0; r < t.rows(); ++r) {
        h.values.insert(h.values.end(), t.row_as<float>(r), t.row_as<float>(r) + t.inner());
      }
    };
  }
  Progress progress("logits", n, "tokens");
  std::span<const int32_t> rest(ids);
  for (const int64_t size : chunks) {
    const std::vector<float> part =
        session.logits(rest.first(static_cast<size_t>(size)), Session::Rows::kAll, tap);
    logits.insert(logits.end(), part.begin(), part.end());
    rest = rest.subspan(static_cast<size_t>(size));
    progress.advance(size);
  }
  profiler.finish(session.length());

  std::vector<std::string> names;
  names.reserve(hidden.size());
  std::vector<Tensor> tensors = {
      Tensor::contiguous(logits.data(), DType::kF32, {n, loaded.model->info().vocab_size}, "logits")};
  for (auto& [index, h] : hidden) {
    names.push_back(fmt::format("hidden.{}", index));
    std::vector<int64_t> shape = {n};
    shape.insert(shape.end(), h.row_shape.begin(), h.row_shape.end());
    tensors.push_back(Tensor::contiguous(h.values.data(), DType::kF32, shape, names.back()));
  }
  write_safetensors(options.out, tensors);
  log_info("wrote {}: logits {}", options.out, shape_string(tensors[0]));
  return 0;
}

}  // namespace synod::cli
