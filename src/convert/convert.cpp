#include "convert/convert.h"

#include <cmath>
#include <map>
#include <vector>

#include "base/log.h"
#include "models/model.h"
#include "quant/codec.h"

namespace synod {
namespace {

// One tensor of the output: roles that GGUF stores fused (gate and up of experts) share one.
struct OutputTensor {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;            // outermost first
  std::vector<const WeightSpec*> parts;  // in row order; one unless fused
  std::vector<float> values;             // computed tensors only
};

DType stored_type(const WeightSpec& spec, DType wanted) {
  switch (spec.kind) {
    case WeightSpec::Kind::kIds:
      return DType::kI32;
    case WeightSpec::Kind::kVector:
    case WeightSpec::Kind::kValues:
      return DType::kF32;
    case WeightSpec::Kind::kMatrix:
    case WeightSpec::Kind::kExperts:
      break;
  }
  if (!spec.quantizable) return DType::kF32;
  return spec.shape.back() % info(wanted).block_values == 0 ? wanted : DType::kF16;
}

// Where GGUF (dialect 0) keeps the role: a fused tensor's part when it has one, else its own name.
const Candidate* fused_candidate(const WeightSpec& spec) {
  for (const Candidate& c : spec.candidates) {
    if (c.dialect == 0 && c.n_parts > 1) return &c;
  }
  return nullptr;
}

std::vector<OutputTensor> plan_output(const std::vector<WeightSpec>& specs, const Weights& weights,
                                      DType wanted) {
  std::vector<OutputTensor> tensors;
  std::map<std::string, size_t> fused;
  for (const WeightSpec& spec : specs) {
    if (!weights.has(spec.role)) continue;
    const DType type = stored_type(spec, wanted);
    const Candidate* c = fused_candidate(spec);
    if (c == nullptr) {
      tensors.push_back({spec.role, type, spec.shape, {&spec}, {}});
      continue;
    }
    const auto [it, is_new] = fused.emplace(c->name, tensors.size());
    if (is_new) {
      OutputTensor t{
          c->name, type, spec.shape, std::vector<const WeightSpec*>(static_cast<size_t>(c->n_parts)), {}};
      t.shape[t.shape.size() - 2] *= c->n_parts;
      tensors.push_back(std::move(t));
    }
    tensors[it->second].parts[static_cast<size_t>(c->part)] = &spec;
  }
  return tensors;
}

class TensorWriter {
 public:
  TensorWriter(GgufWriter& out, Progress& progress) : out_(out), progress_(progress) {}

  void write(const OutputTensor& tensor, const Weights& weights) {
    if (tensor.parts.empty()) return bytes(tensor.values.data(), tensor.values.size() * sizeof(float));
    const WeightSpec& first = *tensor.parts[0];
    switch (first.kind) {
      case WeightSpec::Kind::kVector:
        return plain(weights.vector(first.role));
      case WeightSpec::Kind::kValues:
        return plain(weights.values(first.role));
      case WeightSpec::Kind::kIds:
        return plain(weights.ids(first.role));
      case WeightSpec::Kind::kMatrix:
        for (const WeightSpec* part : tensor.parts) rows(weights.matrix(part->role), tensor);
        return;
      case WeightSpec::Kind::kExperts:
        for (int64_t e = 0; e < first.shape[0]; ++e) {
          for (const WeightSpec* part : tensor.parts)
            rows(weights.experts(part->role)[static_cast<size_t>(e)], tensor);
        }
        return;
    }
  }

 private:
  void bytes(const void* data, size_t n) {
    out_.write({static_cast<const std::byte*>(data), n});
    progress_.advance(static_cast<int64_t>(n));
  }

  void plain(const Tensor& t) { bytes(t.data, static_cast<size_t>(t.bytes())); }

  void rows(const Matrix& matrix, const OutputTensor& tensor) {
    row_.resize(static_cast<size_t>(matrix.n_in));
    encoded_.resize(static_cast<size_t>(row_bytes(tensor.type, matrix.n_in)));
    for (int64_t r = 0; r < matrix.n_out; ++r) {
      decode_row(matrix, r, row_.data());
      for (const float v : row_) {
        if (!std::isfinite(v)) bad_file("{}: row {} holds a value that is not finite", tensor.name, r);
      }
      encode(tensor.type, row_.data(), matrix.n_in, encoded_.data());
      bytes(encoded_.data(), encoded_.size());
    }
  }

  GgufWriter& out_;
  Progress& progress_;
  std::vector<float> row_;
  std::vector<std::byte> encoded_;
};

// A checkpoint without a tokenizer still converts: its logits can be computed from token ids.
void write_tokenizer(const Checkpoint& input, const Architecture& architecture, int64_t vocab_size,
                     GgufMetadata& out) {
  out.set_u32(fmt::format("{}.vocab_size", architecture.name), static_cast<uint32_t>(vocab_size));
  std::optional<Tokenizer> tokenizer;
  try {
    tokenizer.emplace(load_tokenizer(input));
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::kNotFound) throw;
    log_warning("{}; the result takes token ids only", error.what());
    out.set_string("tokenizer.ggml.model", "none");
    return;
  }
  write_tokenizer_metadata(input, *tokenizer, architecture.name, out);
}

uint32_t file_type_id(DType type) {  // general.file_type, informative
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kBF16:
      return 32;
    default:
      return 7;  // q8_0
  }
}

}  // namespace

ConvertReport convert(const Checkpoint& input, const std::filesystem::path& output,
                      const ConvertOptions& options) {
  if (!can_encode(options.type)) {
    fail(Error::Kind::kUsage, "convert writes f32, f16, bf16 and q8_0, got {}", name(options.type));
  }
  const Architecture& architecture = find_architecture(input);
  const std::vector<WeightSpec> specs = architecture.specs(input);
  const Weights weights = Weights::bind(input, specs, architecture.dialects(input));
  std::vector<OutputTensor> tensors = plan_output(specs, weights, options.type);
  for (const ComputedTensor& computed : architecture.computed_tensors(input)) {
    if (weights.has(computed.name)) continue;
    tensors.push_back(
        {computed.name, DType::kF32, {static_cast<int64_t>(computed.values.size())}, {}, computed.values});
  }

  GgufWriter out(output);
  architecture.write_metadata(input, out.metadata());
  out.metadata().set_u32("general.file_type", file_type_id(options.type));
  out.metadata().set_u32("general.quantization_version", 2);
  write_tokenizer(input, architecture, weights.matrix("token_embd.weight").n_out, out.metadata());
  ConvertReport report;
  for (const OutputTensor& t : tensors) {
    out.declare(t.name, t.type, t.shape);
    report.bytes += Tensor::contiguous(nullptr, t.type, t.shape).bytes();
    ++report.n_tensors;
  }
  Progress progress("convert", report.bytes, "B");
  TensorWriter writer(out, progress);
  for (const OutputTensor& t : tensors) writer.write(t, weights);
  out.finish();
  return report;
}

}  // namespace synod
