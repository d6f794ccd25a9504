#include "convert/convert.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/log.h"
#include "convert/importance.h"
#include "convert/receipt.h"
#include "convert/repack.h"
#include "convert/row_pipeline.h"
#include "convert/tensor_source.h"
#include "quant/encode.h"

namespace synod {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kItemValues = int64_t{1} << 18;  // per piece of work: 10 ms of a K-quant, 1 MiB as f32
constexpr int64_t kCopyBytes = int64_t{4} << 20;

struct Target {
  const SourceTensor* source = nullptr;
  DType type = DType::kF32;
  bool is_copy = false;
  Importance importance;

  int64_t bytes() const { return Tensor::contiguous(nullptr, type, source->shape).bytes(); }
};

// What one thread needs beside the bytes it makes.
struct Scratch {
  std::vector<float> row;
  std::vector<float> importance;
};

// A piece of a target: rows [begin, end) of part `part`, or bytes [begin, end) of a copy.
struct Item {
  size_t target = 0;
  size_t part = 0;
  int64_t begin = 0, end = 0;
};

int64_t n_values(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

// Gives pages of a mapped file back: they stay in the page cache, but no longer count as this process's
// memory.
void release(const std::byte* data, int64_t n_bytes) {
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(n_bytes)) / kPage * kPage;
  if (data == nullptr || first >= last) return;
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void release_scales(const Matrix& m) {
  const int64_t rows =
      m.storage == Storage::kFp8Block ? (m.row_offset + m.n_out - 1) / m.tile_out + 1 : m.n_out;
  release(m.scales, rows * m.scale_stride);
  release(m.biases, rows * m.scale_stride);
}

MixTensor mix_tensor(const SourceTensor& t) { return {t.name, t.shape, t.is_float && !t.parts.empty()}; }

class Converter {
 public:
  Converter(const Checkpoint& input, const fs::path& output, const ConvertOptions& options)
      : input_(input),
        output_(output),
        options_(options),
        mix_(mix_or_throw(options.type)),
        source_(input),
        n_threads_(options.n_threads > 0 ? options.n_threads : default_convert_threads()) {}

  ConvertReport run() {
    plan();
    if (options_.dry_run) return std::move(report_);
    refuse_own_input();
    refuse_full_disk();
    const auto start = Clock::now();
    open_files();
    make_items();
    if (!stream()) {
      report_.was_cancelled = true;
      return std::move(report_);
    }
    commit();
    report_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (options_.receipt) receipt();
    return std::move(report_);
  }

 private:
  void warn(std::string text) {
    log_warning("{}", text);
    report_.warnings.push_back(std::move(text));
  }

  void plan() {
    const std::vector<SourceTensor>& tensors = source_.tensors();
    std::vector<MixTensor> mix_tensors;
    for (const SourceTensor& t : tensors) mix_tensors.push_back(mix_tensor(t));
    MixOptions types = options_.types;
    types.has_importance = options_.importance != nullptr;
    TypePlan plan = plan_types(mix_, mix_tensors, types);
    if (!plan.unmatched.empty()) {
      fail(Error::Kind::kUsage, "--tensor-type {}: no tensor has a name like that", plan.unmatched.front());
    }
    for (std::string& note : plan.notes) {
      log_info("{}", note);
      report_.warnings.push_back(std::move(note));
    }
    std::map<std::string_view, DType> type_of;
    for (size_t i = 0; i < tensors.size(); ++i)
      type_of[tensors[i].name] = plan.types[i].value_or(tensors[i].stored);
    std::vector<std::string> importance_warnings;
    std::map<std::string_view, int64_t> requantized;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const SourceTensor& t = tensors[i];
      if (!t.factor_of.empty() && type_of[t.factor_of] != DType::kNVFP4) continue;  // folded into the values
      Target target{.source = &t, .type = plan.types[i].value_or(t.stored)};
      target.is_copy = t.parts.empty() || (target.type == t.stored && !t.bytes.empty());
      if (!target.is_copy) {
        if (is_block_type(t.stored) && !t.bytes.empty()) ++requantized[name(t.stored)];
        check_importance_given(t, target.type);
        if (options_.importance != nullptr && uses_importance(target.type)) {
          target.importance =
              Importance(*options_.importance, t.name, t.n_experts, t.shape.back(), importance_warnings);
        }
      }
      report_.tensors.push_back({t.name, target.type, t.shape, target.bytes()});
      report_.bytes += target.bytes();
      report_.n_values += n_values(t.shape);
      targets_.push_back(std::move(target));
    }
    for (std::string& text : importance_warnings) warn(std::move(text));
    for (const auto& [type, n] : requantized) {
      if (options_.allow_requantize || type == "q8_0") continue;
      warn(fmt::format(
          "{} tensors are {} already: encoding them again adds its error to theirs; start from a 16-bit "
          "file if there is one",
          n, type));
    }
  }

  void check_importance_given(const SourceTensor& t, DType type) const {
    if (options_.importance != nullptr || t.name == "output.weight" ||
        t.name.find("token_embd") != std::string::npos) {
      return;
    }
    if (!wants_importance(type) && !(mix_.needs_importance && type == DType::kQ2_K)) return;
    fail(Error::Kind::kUsage,
         "{}: type {} ({}) is of little use without importance data; make some with `synod imatrix MODEL -f "
         "TEXT -o "
         "FILE` and give it with --imatrix FILE",
         t.name, name(type), mix_.name);
  }

  // The mapped input would survive being replaced, but its hash and the user's source would be gone.
  void refuse_own_input() const {
    for (const fs::path& file : files_of(input_)) {
      std::error_code error;
      if (fs::equivalent(file, output_, error)) {
        fail(Error::Kind::kUsage, "{}: the output is one of the inputs; give it another name",
             output_.string());
      }
    }
  }

  // Better said now than after an hour. File systems that do not tell have a capacity of 0.
  void refuse_full_disk() const {
    std::error_code error;
    const fs::path folder = output_.has_parent_path() ? output_.parent_path() : fs::path(".");
    const fs::space_info space = fs::space(folder, error);
    if (error || space.capacity == 0 || space.available >= static_cast<uintmax_t>(report_.bytes)) return;
    fail(Error::Kind::kFailure, "{}: not enough space on the disk: {} needed, {} free", output_.string(),
         human_bytes(report_.bytes), human_bytes(static_cast<int64_t>(space.available)));
  }

  // Splits targets into files and declares them.
  void open_files() {
    std::vector<std::pair<size_t, size_t>> ranges;
    size_t begin = 0;
    int64_t in_file = 0;
    for (size_t i = 0; i < targets_.size(); ++i) {
      const int64_t bytes = targets_[i].bytes();
      if (options_.split_max_bytes > 0 && i > begin && in_file + bytes > options_.split_max_bytes) {
        ranges.emplace_back(begin, i);
        begin = i;
        in_file = 0;
      }
      in_file += bytes;
    }
    ranges.emplace_back(begin, targets_.size());
    constexpr size_t kMaxFiles = 65535;  // split.count is 16 bits wide
    if (ranges.size() > kMaxFiles) {
      fail(Error::Kind::kUsage, "--split-max-size: {} files would be needed; expected at most {}",
           ranges.size(), kMaxFiles);
    }
    for (size_t n = 0; n < ranges.size(); ++n) {
      const fs::path path = ranges.size() == 1 ? output_ : split_name(n, ranges.size());
      report_.files.push_back(path);
      auto& writer = writers_.emplace_back(std::make_unique<GgufWriter>(path));
      if (n == 0) write_metadata(writer->metadata());
      if (ranges.size() > 1) write_split_keys(writer->metadata(), n, ranges.size());
      for (size_t i = ranges[n].first; i < ranges[n].second; ++i) {
        writer->declare(targets_[i].source->name, targets_[i].type, targets_[i].source->shape);
        writer_of_.push_back(writer.get());
      }
    }
  }

  fs::path split_name(size_t n, size_t count) const {
    std::string stem = output_.filename().string();
    if (stem.ends_with(".gguf")) stem.resize(stem.size() - 5);
    return output_.parent_path() / fmt::format("{}-{:05d}-of-{:05d}.gguf", stem, n + 1, count);
  }

  void write_split_keys(GgufMetadata& out, size_t n, size_t count) const {
    out.set("split.no", {static_cast<uint16_t>(n)});
    out.set("split.count", {static_cast<uint16_t>(count)});
    out.set("split.tensors.count", {static_cast<int32_t>(targets_.size())});
  }

  void write_metadata(GgufMetadata& out) {
    if (input_.container() == Checkpoint::Container::kGguf) {
      for (const auto& [key, value] : input_.gguf().entries()) {
        if (!key.starts_with("split.")) out.set(key, value);
      }
    } else {
      source_.architecture().write_metadata(input_, out);
      write_tokenizer(out);
    }
    out.set_u32("general.file_type", mix_.file_type);
    out.set_u32("general.quantization_version", 2);
    if (options_.importance == nullptr) return;
    const Imatrix& m = *options_.importance;
    out.set_string("quantize.imatrix.file", fs::path(options_.importance_file).filename().string());
    if (!m.datasets.empty()) out.set_string("quantize.imatrix.dataset", m.datasets.front());
    out.set_u32("quantize.imatrix.entries_count", static_cast<uint32_t>(m.entries.size()));
    out.set_u32("quantize.imatrix.chunks_count", static_cast<uint32_t>(m.n_chunks));
  }

  // A checkpoint without a tokenizer still converts: its logits can be computed from token ids.
  void write_tokenizer(GgufMetadata& out) {
    const std::string_view architecture = source_.architecture().name;
    out.set_u32(fmt::format("{}.vocab_size", architecture), static_cast<uint32_t>(source_.vocab_size()));
    std::optional<Tokenizer> tokenizer;
    try {
      tokenizer.emplace(load_tokenizer(input_));
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::kNotFound) throw;
      warn(fmt::format("{}; the result takes token ids only", error.what()));
      out.set_string("tokenizer.ggml.model", "none");
      return;
    }
    write_tokenizer_metadata(input_, *tokenizer, architecture, out);
  }

  void make_items() {
    for (size_t i = 0; i < targets_.size(); ++i) {
      const Target& t = targets_[i];
      const int64_t copied = t.is_copy ? static_cast<int64_t>(t.source->bytes.size()) : 0;
      const int64_t piece = kCopyBytes / info(t.type).block_bytes * info(t.type).block_bytes;
      for (int64_t at = 0; at < copied; at += piece) {
        items_.push_back({i, 0, at, std::min(at + piece, copied)});
      }
      report_.source_bytes += copied;
      if (t.is_copy) continue;
      for (size_t p = 0; p < t.source->parts.size(); ++p) {
        const Matrix& m = t.source->parts[p];
        const int64_t rows = std::max<int64_t>(kItemValues / m.n_in, 1);
        for (int64_t r = 0; r < m.n_out; r += rows) items_.push_back({i, p, r, std::min(r + rows, m.n_out)});
        report_.source_bytes += m.bytes();
      }
    }
  }

  bool stream() {
    std::vector<Scratch> scratch(static_cast<size_t>(n_threads_));
    Progress progress(std::string(mix_.name), report_.source_bytes, "B");
    const RowPipeline pipeline{.n_threads = n_threads_,
                               .make =
                                   [&](int64_t i, int worker, std::vector<std::byte>& out) {
                                     make(items_[static_cast<size_t>(i)],
                                          scratch[static_cast<size_t>(worker)], out);
                                   },
                               .take =
                                   [&](int64_t i, std::vector<std::byte>& bytes) {
                                     if (options_.cancelled && options_.cancelled()) return false;
                                     progress.advance(take(items_[static_cast<size_t>(i)], bytes));
                                     return true;
                                   }};
    return pipeline.run(static_cast<int64_t>(items_.size()));
  }

  void make(const Item& item, Scratch& scratch, std::vector<std::byte>& out) const {
    const Target& t = targets_[item.target];
    if (t.is_copy) {  // written from where it lies
      check_copy(t, item);
      return;
    }
    const Matrix& m = t.source->parts[item.part];
    const int64_t bytes = row_bytes(t.type, m.n_in);
    const auto expert = static_cast<int64_t>(item.part) / t.source->parts_per_expert();
    const std::span<const float> importance = t.importance.of(expert, scratch.importance);
    std::vector<float>& row = scratch.row;
    const bool repack = can_repack(m, t.type);
    out.resize(static_cast<size_t>((item.end - item.begin) * bytes));
    row.resize(static_cast<size_t>(m.n_in));
    for (int64_t r = item.begin; r < item.end; ++r) {
      std::byte* to = out.data() + (r - item.begin) * bytes;
      if (repack) {
        repack_row(m, r, to);
      } else {
        decode_row(m, r, row.data());
        encode(t, row, importance, to, r);
      }
    }
    if (const int64_t bad = validate_blocks(t.type, out); bad >= 0) {
      fail(Error::Kind::kNumeric,
           "{}: block {} of rows {} to {} came out with a scale that is not finite; use a type "
           "with a wider range",
           t.source->name, bad, item.begin, item.end - 1);
    }
  }

  // Of vectors and tables every value was looked at when the model was bound; of matrices nothing was.
  static void check_copy(const Target& t, const Item& item) {
    if (t.source->parts.empty() || !(is_block_type(t.type) || can_encode_row(t.type))) return;
    const auto bytes =
        t.source->bytes.subspan(static_cast<size_t>(item.begin), static_cast<size_t>(item.end - item.begin));
    const int64_t bad = validate_blocks(t.type, bytes);
    if (bad < 0) return;
    const int64_t block = item.begin / info(t.type).block_bytes + bad;
    bad_file("{}: {} {} holds a {} that is not finite", t.source->name,
             is_block_type(t.type) ? "block" : "value", block, is_block_type(t.type) ? "scale" : "number");
  }

  void encode(const Target& t, std::span<const float> row, std::span<const float> importance, std::byte* out,
              int64_t index) const {
    try {
      encode_row(t.type, row, importance, out, index);
    } catch (const Error& error) {
      const auto bad = std::ranges::find_if(row, [](float v) { return !std::isfinite(v); });
      if (bad != row.end()) {
        bad_file("{}: row {}, column {} is not finite", t.source->name, index, bad - row.begin());
      }
      throw Error(error.kind(), fmt::format("{}: {}", t.source->name, error.what()));
    }
  }

  // Returns the source bytes that are done with.
  int64_t take(const Item& item, std::vector<std::byte>& bytes) {
    const Target& t = targets_[item.target];
    GgufWriter& out = *writer_of_[item.target];
    const int64_t n = item.end - item.begin;
    if (t.is_copy) {
      out.write(t.source->bytes.subspan(static_cast<size_t>(item.begin), static_cast<size_t>(n)));
      if (t.source->is_mapped) release(t.source->bytes.data() + item.begin, n);
      return n;
    }
    out.write(bytes);
    const Matrix& m = t.source->parts[item.part];
    release(m.data + item.begin * m.row_stride, n * m.row_stride);
    if (item.end == m.n_out) release_scales(m);
    return m.bytes() * n / m.n_out;
  }

  // All files are complete before the first gets its name. The first one opens the set, so it comes last; one
  // that is to be replaced goes first, or a crash in between could leave old and new files that look like one
  // set.
  void commit() {
    std::error_code ignored;
    fs::remove(receipt_path(report_.files.front()), ignored);
    if (writers_.size() > 1) fs::remove(report_.files.front(), ignored);
    while (!writers_.empty()) {
      writers_.back()->finish();
      writers_.pop_back();
    }
  }

  void receipt() {
    ReceiptInput what{.version = options_.version, .type = std::string(mix_.name)};
    for (const TypeOverride& o : options_.types.overrides) what.type_overrides.push_back(o.text);
    if (options_.types.output) what.options.emplace_back("output_tensor_type", name(*options_.types.output));
    if (options_.types.embedding)
      what.options.emplace_back("token_embedding_type", name(*options_.types.embedding));
    if (options_.types.pure) what.options.emplace_back("pure", "true");
    if (options_.types.quantize_all) what.options.emplace_back("quantize_all", "true");
    if (options_.types.keep_output) what.options.emplace_back("leave_output_tensor", "true");
    if (options_.split_max_bytes > 0) {
      what.options.emplace_back("split_max_bytes", std::to_string(options_.split_max_bytes));
    }
    if (options_.importance != nullptr) what.importance_file = options_.importance_file;
    for (const ConvertedTensor& t : report_.tensors) ++what.n_tensors[std::string(name(t.type))];
    what.warnings = report_.warnings;
    const std::vector<fs::path> inputs = files_of(input_);
    int64_t total = 0;
    std::error_code ignored;
    for (const fs::path& file : inputs) total += static_cast<int64_t>(fs::file_size(file, ignored));
    for (const fs::path& file : report_.files) total += static_cast<int64_t>(fs::file_size(file, ignored));
    Progress progress("receipt", total, "B");
    const bool written = write_receipt(inputs, report_.files, what, n_threads_, [&](int64_t n) {
      progress.advance(n);
      return !(options_.cancelled && options_.cancelled());
    });
    if (!written) log_warning("no receipt was written");
  }

  const Checkpoint& input_;
  const fs::path& output_;
  const ConvertOptions& options_;
  const Mix& mix_;
  const TensorSource source_;
  const int n_threads_;
  ConvertReport report_;
  std::vector<Target> targets_;
  std::vector<Item> items_;
  std::vector<std::unique_ptr<GgufWriter>> writers_;
  std::vector<GgufWriter*> writer_of_;  // of each target
};

}  // namespace

ConvertReport convert(const Checkpoint& input, const fs::path& output, const ConvertOptions& options) {
  return Converter(input, output, options).run();
}

}  // namespace synod
