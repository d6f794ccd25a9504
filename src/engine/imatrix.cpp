#include "engine/imatrix.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "engine/session.h"
#include "formats/byte_reader.h"
#include "quant/codec.h"
#include "wrap/imatrix_collector.h"

namespace synod {
namespace {

constexpr std::string_view kType = "general.type";
constexpr std::string_view kDatasets = "imatrix.datasets";
constexpr std::string_view kChunkCount = "imatrix.chunk_count";
constexpr std::string_view kChunkSize = "imatrix.chunk_size";
constexpr std::string_view kSums = ".in_sum2";
constexpr std::string_view kCounts = ".counts";

std::vector<float> floats_of(const Tensor& tensor, const std::string& file) {
  if (tensor.type != DType::kF32) {
    bad_file("{}: tensor {}: expected f32, got {}", file, printable(tensor.name), name(tensor.type));
  }
  std::vector<float> values(static_cast<size_t>(tensor.size()));
  decode(tensor.type, tensor.data, tensor.size(), values.data());
  return values;
}

// Which entry of the file a stored matrix belongs to.
struct Watched {
  std::string name;
  size_t first_slot = 0;
  int64_t n_experts = 1;
  int64_t n_columns = 0;
};

// A role's name in GGUF: that of the matrix it is part of, where GGUF stores several as one.
std::string gguf_name(const WeightSpec& spec, const Checkpoint& checkpoint) {
  const bool is_gguf = checkpoint.container() == Checkpoint::Container::kGguf;
  for (const Candidate& c : spec.candidates) {
    if (c.dialect != 0 || c.n_parts == 1) continue;
    if (!is_gguf || checkpoint.find(c.name) != nullptr) return c.name;
  }
  return spec.role;
}

class Watcher {
 public:
  Watcher(const Checkpoint& checkpoint, const Model& model, ImatrixCollector& collector, bool process_output)
      : collector_(collector) {
    const Weights& weights = model.weights();
    for (const WeightSpec& spec : find_architecture(checkpoint).specs(checkpoint)) {
      const bool is_layer = spec.role.starts_with("blk.");
      const bool is_head = spec.role == "output.weight" || spec.role == "token_embd.weight";
      if (!is_layer && !(is_head && process_output)) continue;
      if (!weights.has(spec.role)) continue;
      if (spec.kind == WeightSpec::Kind::kMatrix) {
        watch(gguf_name(spec, checkpoint), std::span(&weights.matrix(spec.role), 1));
      } else if (spec.kind == WeightSpec::Kind::kExperts) {
        watch(gguf_name(spec, checkpoint), weights.experts(spec.role));
      }
    }
  }

  void collect(Imatrix& out) const {
    for (const Watched& w : watched_) {
      ImatrixEntry entry;
      entry.n_experts = w.n_experts;
      entry.n_columns = w.n_columns;
      double all = 0;
      for (int64_t e = 0; e < w.n_experts; ++e) {
        const ImatrixCollector::Sums& sums = collector_.sums()[w.first_slot + static_cast<size_t>(e)];
        for (const double sum : sums.squares) entry.sums.push_back(static_cast<float>(sum));
        entry.counts.push_back(static_cast<double>(sums.n_rows));
        all += entry.counts.back();
      }
      if (all > 0) out.entries.emplace(w.name, std::move(entry));
    }
  }

 private:
  void watch(const std::string& entry, std::span<const Matrix> matrices) {
    // Of parts that share an entry, the first is watched: they see the same inputs.
    if (std::ranges::find(watched_, entry, &Watched::name) != watched_.end()) return;
    const size_t first = n_slots_;
    for (const Matrix& m : matrices) collector_.watch(m, n_slots_++);
    watched_.push_back({entry, first, static_cast<int64_t>(matrices.size()), matrices.front().n_in});
  }

  ImatrixCollector& collector_;
  std::vector<Watched> watched_;
  size_t n_slots_ = 0;
};

}  // namespace

Imatrix Imatrix::read(const std::filesystem::path& path) {
  const std::string file = path.string();
  const GgufFile gguf = GgufFile::open(path);
  const std::string type = gguf.metadata().find_string(kType).value_or("missing");
  if (type != "imatrix") {
    bad_file("{}: key {}: expected imatrix, got {}: this is no importance matrix", file, kType,
             printable(type));
  }
  Imatrix result;
  result.datasets = gguf.metadata().find_strings(kDatasets).value_or(std::vector<std::string>{});
  result.n_chunks = gguf.metadata().find_int(kChunkCount).value_or(0);
  result.chunk_tokens = gguf.metadata().find_int(kChunkSize).value_or(0);
  std::map<std::string_view, const Tensor*> counts;
  for (const Tensor& t : gguf.tensors()) {
    if (t.name.ends_with(kCounts)) counts[t.name.substr(0, t.name.size() - kCounts.size())] = &t;
  }
  for (const Tensor& t : gguf.tensors()) {
    if (!t.name.ends_with(kSums)) continue;
    const std::string_view weight = t.name.substr(0, t.name.size() - kSums.size());
    const auto count = counts.find(weight);
    if (count == counts.end()) bad_file("{}: tensor {}{} is missing", file, printable(weight), kCounts);
    ImatrixEntry entry;
    entry.n_columns = t.inner();
    entry.n_experts = t.rows();
    entry.sums = floats_of(t, file);
    const std::vector<float> counted = floats_of(*count->second, file);
    entry.counts.assign(counted.begin(), counted.end());
    if (static_cast<int64_t>(entry.counts.size()) != entry.n_experts) {
      bad_file("{}: tensor {}: expected {} counts as {} has rows, got {}", file,
               printable(count->second->name), entry.n_experts, printable(t.name), entry.counts.size());
    }
    result.entries.emplace(weight, std::move(entry));
  }
  if (result.entries.empty())
    bad_file("{}: no tensor ends in {}: the importance matrix is empty", file, kSums);
  return result;
}

void Imatrix::write(const std::filesystem::path& path) const {
  GgufWriter out(path);
  out.metadata().set_string(std::string(kType), "imatrix");
  out.metadata().set_strings(std::string(kDatasets), datasets);
  out.metadata().set_u32(std::string(kChunkCount), static_cast<uint32_t>(n_chunks));
  out.metadata().set_u32(std::string(kChunkSize), static_cast<uint32_t>(chunk_tokens));
  for (const auto& [weight, entry] : entries) {
    out.declare(fmt::format("{}{}", weight, kSums), DType::kF32, {entry.n_experts, entry.n_columns});
    out.declare(fmt::format("{}{}", weight, kCounts), DType::kF32, {entry.n_experts, 1});
  }
  for (const auto& [weight, entry] : entries) {
    out.write(std::as_bytes(std::span(entry.sums)));
    std::vector<float> counts;
    for (const double count : entry.counts) counts.push_back(static_cast<float>(count));
    out.write(std::as_bytes(std::span(counts)));
  }
  out.finish();
}

void Imatrix::merge(const Imatrix& other) {
  for (const auto& [weight, theirs] : other.entries) {
    const auto [it, is_new] = entries.try_emplace(weight, theirs);
    if (is_new) continue;
    ImatrixEntry& ours = it->second;
    if (ours.n_columns != theirs.n_columns || ours.n_experts != theirs.n_experts) {
      bad_file("importance of {}: expected shape [{}, {}], got [{}, {}]; are the files of one model?", weight,
               ours.n_experts, ours.n_columns, theirs.n_experts, theirs.n_columns);
    }
    for (size_t i = 0; i < ours.sums.size(); ++i) ours.sums[i] += theirs.sums[i];
    for (size_t i = 0; i < ours.counts.size(); ++i) ours.counts[i] += theirs.counts[i];
  }
  n_chunks += other.n_chunks;
  datasets.insert(datasets.end(), other.datasets.begin(), other.datasets.end());
  if (chunk_tokens == 0) chunk_tokens = other.chunk_tokens;
}

Imatrix collect_imatrix(const Checkpoint& checkpoint, const Model& model, Backend& backend,
                        std::span<const int32_t> ids, int32_t bos, const ImatrixOptions& options) {
  const int64_t size = options.chunk_tokens;
  if (size < 1) fail(Error::Kind::kUsage, "expected chunks of at least 1 token, got {}", size);
  int64_t n_chunks = static_cast<int64_t>(ids.size()) / size;
  if (options.max_chunks >= 0) n_chunks = std::min(n_chunks, options.max_chunks);
  if (n_chunks == 0) {
    fail(Error::Kind::kUsage,
         "the text has {} tokens: expected at least one chunk of {}; give more text or a "
         "smaller --ctx-size",
         ids.size(), size);
  }
  ImatrixCollector collector(backend);
  const Watcher watcher(checkpoint, model, collector, options.process_output);
  Imatrix result;
  result.chunk_tokens = size;
  Progress progress("imatrix", n_chunks * size, "tokens");
  for (int64_t c = 0; c < n_chunks; ++c) {
    if (options.cancelled && options.cancelled()) break;
    const auto part = ids.subspan(static_cast<size_t>(c * size), static_cast<size_t>(size));
    std::vector<int32_t> chunk(part.begin(), part.end());
    if (bos >= 0) chunk.front() = bos;
    Session session(model, collector);
    if (options.process_output) {
      static_cast<void>(session.logits(chunk, Session::Rows::kAll));
    } else {
      session.append(chunk);
    }
    ++result.n_chunks;
    progress.advance(size);
  }
  watcher.collect(result);
  return result;
}

}  // namespace synod
