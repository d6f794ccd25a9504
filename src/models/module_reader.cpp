#include "models/module_reader.h"

#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "quant/codec.h"

namespace synod {
namespace {

// A model must open at once, however large: only what is quickly read is looked at.
constexpr int64_t kCheckCodesBelow = 256 << 20;  // bytes of the whole checkpoint
constexpr int64_t kCheckScaleBytes = 64 << 20;   // bytes of scales in total

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_float(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kF64;
}

// Some writers label E8M0 bytes as plain ones.
bool is_e8m0(DType type) { return type == DType::kF8E8M0 || type == DType::kU8; }

std::vector<int64_t> without_ones(std::span<const int64_t> shape) {
  std::vector<int64_t> kept;
  for (const int64_t n : shape) {
    if (n != 1) kept.push_back(n);
  }
  return kept;
}

std::span<const int64_t> shape_of(const Tensor& t) { return {t.shape.data(), static_cast<size_t>(t.rank)}; }

bool same_up_to_ones(const Tensor& tensor, std::span<const int64_t> shape) {
  return without_ones(shape_of(tensor)) == without_ones(shape);
}

std::string first_or(const std::vector<std::string>& names, const char* fallback) {
  return names.empty() ? fallback : names.front();
}

std::string module_path(const std::string& name) {
  constexpr std::string_view kSuffix = ".weight";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

}  // namespace

// Twins come in two spellings: "X.weight" + "_scale", and "X" + ".scale".
struct ModuleReader::Module {
  std::string name;   // "X.weight", or a name without that ending
  std::string path;   // "X"
  int64_t n_stacked;  // 1 without an outer dimension
  int64_t n_out, n_in;

  std::string underscored(std::string_view suffix) const { return fmt::format("{}_{}", name, suffix); }
  std::string dotted(std::string_view suffix) const { return fmt::format("{}.{}", path, suffix); }
  std::array<int64_t, 3> shape(int64_t rows, int64_t columns) const { return {n_stacked, rows, columns}; }
};

ModuleReader::ModuleReader(const Checkpoint& checkpoint, std::function<bool(std::string_view)> is_role)
    : checkpoint_(checkpoint),
      is_role_(std::move(is_role)),
      config_(QuantConfig::read(checkpoint)),
      architecture_(first_or(stored_architectures(checkpoint), "model")),
      check_codes_(checkpoint.data_bytes() <= kCheckCodesBelow),
      scale_bytes_left_(kCheckScaleBytes) {}

bool ModuleReader::present(const std::string& name) const {
  return checkpoint_.find(name) != nullptr || checkpoint_.find(name + "_packed") != nullptr;
}

std::vector<std::string_view> ModuleReader::relatives(const std::string& name) const {
  const std::string path = module_path(name);
  std::vector<std::string> names = {name};
  for (const char* suffix : {"_packed", "_scale", "_scale_2", "_scale_inv", "_global_scale"}) {
    names.push_back(name + suffix);
  }
  for (const char* suffix : {".scale", ".scales", ".biases", ".input_scale", ".input_global_scale"}) {
    names.push_back(path + suffix);
  }
  std::vector<std::string_view> found;
  for (const std::string& candidate : names) {
    if (const Tensor* t = checkpoint_.find(candidate)) found.push_back(t->name);
  }
  return found;
}

const Tensor* ModuleReader::take(const std::string& name) {
  const Tensor* tensor = checkpoint_.find(name);
  if (tensor != nullptr) used_.insert(tensor->name);
  return tensor;
}

Tensor ModuleReader::shaped(const Tensor& tensor, std::span<const int64_t> shape) const {
  if (same_up_to_ones(tensor, shape)) return Tensor::contiguous(tensor.data, tensor.type, shape, tensor.name);
  const bool one_matrix = shape.size() == 3 && shape[0] == 1;
  bad_file("{}: tensor {} ({}): expected shape {}, got {}; is this file for another size of the model?",
           architecture_, tensor.name, name(tensor.type), shape_string(one_matrix ? shape.subspan(1) : shape),
           shape_string(tensor));
}

void ModuleReader::check_values(const Tensor& tensor, bool is_scale) {
  if (is_scale && tensor.bytes() > scale_bytes_left_) return;
  if (!is_scale && !check_codes_) return;
  if (is_scale) scale_bytes_left_ -= tensor.bytes();
  if (is_float(tensor.type)) {
    std::vector<float> values(static_cast<size_t>(tensor.size()));
    decode(tensor.type, tensor.data, tensor.size(), values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      bad_file("{}: tensor {}: value {} is not finite", architecture_, tensor.name, i);
    }
    return;
  }
  int64_t bad = 0;
  const std::span<const std::byte> bytes(tensor.data, static_cast<size_t>(tensor.bytes()));
  if (valid_blocks(tensor.type, bytes, &bad)) return;
  bad_file("{}: tensor {} ({}): block {} holds a scale or code that is not a number", architecture_,
           tensor.name, name(tensor.type), bad);
}

float ModuleReader::positive_factor(const Tensor& tensor, int64_t index) const {
  if (!is_float(tensor.type)) {
    bad_file("{}: tensor {}: expected a float, got {}", architecture_, tensor.name, name(tensor.type));
  }
  float value = 0;
  decode(tensor.type, tensor.data + index * row_bytes(tensor.type, 1), 1, &value);
  if (!std::isfinite(value) || value <= 0) {
    bad_file("{}: tensor {}: expected a finite factor above zero, got {}", architecture_, tensor.name, value);
  }
  return value;
}

Tensor ModuleReader::plain(const std::string& name, std::span<const int64_t> shape) {
  const Tensor* tensor = take(name);
  SYNOD_ASSERT(tensor != nullptr);
  const Tensor result = shaped(*tensor, shape);
  if (is_block_type(result.type)) check_values(result, false);
  return result;
}

std::vector<Matrix> ModuleReader::matrices(const std::string& name, int64_t n_stacked, int64_t n_out,
                                           int64_t n_in) {
  const Module m{
      .name = name, .path = module_path(name), .n_stacked = n_stacked, .n_out = n_out, .n_in = n_in};
  const Tensor* packed = checkpoint_.find(m.underscored("packed"));
  const Tensor* codes = take(name);
  if (codes != nullptr && packed != nullptr) {
    bad_file("{}: both {} and {} are stored; expected one of them", architecture_, codes->name, packed->name);
  }
  if (packed != nullptr) {
    take(m.underscored("packed"));
    return read_packed(m, *packed);
  }
  SYNOD_ASSERT(codes != nullptr);
  if (is_float(codes->type) || is_block_type(codes->type)) return read_plain(m, *codes);
  switch (codes->type) {
    case DType::kF8E4M3:
      return read_fp8(m, *codes);
    case DType::kI8:
    case DType::kU8:
      return read_bytes(m, *codes);
    case DType::kI32:
    case DType::kU32:
      return read_mlx(m, *codes);
    default:
      bad_file("{}: tensor {}: a weight of type {} is not supported", architecture_, codes->name,
               synod::name(codes->type));
  }
}

namespace {

// Matrices over codes and scales that are contiguous and stacked alike.
std::vector<Matrix> stack(const Matrix& first, int64_t n_stacked, int64_t scale_rows) {
  std::vector<Matrix> result(static_cast<size_t>(n_stacked), first);
  for (int64_t e = 1; e < n_stacked; ++e) {
    Matrix& m = result[static_cast<size_t>(e)];
    m.data += e * first.n_out * first.row_stride;
    if (m.scales != nullptr) m.scales += e * scale_rows * first.scale_stride;
    if (m.biases != nullptr) m.biases += e * scale_rows * first.scale_stride;
  }
  return result;
}

Matrix coded(Storage storage, const Tensor& codes, const Tensor& scales, int64_t n_in, int64_t group) {
  Matrix m;
  m.storage = storage;
  m.type = DType::kU8;
  m.n_out = codes.dim(1);
  m.n_in = n_in;
  m.data = codes.data;
  m.row_stride = row_bytes(codes.type, codes.inner());
  m.scales = scales.data;
  m.scale_type = scales.type;
  m.scale_stride = row_bytes(scales.type, scales.inner());
  m.group = group;
  m.name = codes.name;
  return m;
}

Tensor with_type(Tensor tensor, DType type) {
  SYNOD_ASSERT(info(tensor.type).block_bytes == info(type).block_bytes);
  tensor.type = type;
  return tensor;
}

}  // namespace

std::vector<Matrix> ModuleReader::read_plain(const Module& m, const Tensor& stored) {
  const Tensor codes = shaped(stored, m.shape(m.n_out, m.n_in));
  const Tensor first = Tensor::contiguous(codes.data, codes.type, {m.n_out, m.n_in}, codes.name);
  std::vector<Matrix> result = stack(matrix_of(first), m.n_stacked, 0);
  if (!is_block_type(codes.type)) return result;
  check_values(codes, false);
  if (codes.type != DType::kNVFP4) return result;
  // The factors beside NVFP4 blocks. The activations' scale is of no use to weight-only kernels.
  const std::string factor_name = m.dotted("scale");
  if (!is_role_(factor_name)) {
    if (const Tensor* factor = take(factor_name)) set_factors(result, *factor, false);
  }
  if (!is_role_(m.dotted("input_scale"))) take(m.dotted("input_scale"));
  return result;
}

void ModuleReader::set_factors(std::vector<Matrix>& matrices, const Tensor& factor, bool divides) {
  const auto n = static_cast<int64_t>(matrices.size());
  if (factor.size() != 1 && factor.size() != n) {
    bad_file("{}: tensor {}: expected one factor{}, got shape {}", architecture_, factor.name,
             n == 1 ? "" : fmt::format(" or {}", n), shape_string(factor));
  }
  for (int64_t e = 0; e < n; ++e) {
    Matrix& m = matrices[static_cast<size_t>(e)];
    m.global_scale = positive_factor(factor, factor.size() == 1 ? 0 : e);
    m.global_divides = divides;
  }
}

std::vector<Matrix> ModuleReader::read_fp8(const Module& m, const Tensor& stored) {
  const std::array<const Tensor*, 3> twins = {take(m.underscored("scale_inv")), take(m.dotted("scale")),
                                              take(m.underscored("scale"))};
  const Tensor* found = nullptr;
  for (const Tensor* twin : twins) {
    if (twin == nullptr) continue;
    if (found != nullptr) {
      bad_file("{}: tensor {} has two scales, {} and {}; expected one", architecture_, stored.name,
               found->name, twin->name);
    }
    found = twin;
  }
  if (found == nullptr) {
    bad_file("{}: tensor {} (f8_e4m3): its scale is missing; expected {}, {} or {}", architecture_,
             stored.name, m.underscored("scale_inv"), m.dotted("scale"), m.underscored("scale"));
  }
  take(m.dotted("input_scale"));
  if (!is_float(found->type) && !is_e8m0(found->type)) {
    bad_file("{}: tensor {}: expected floats or f8_e8m0, got {}", architecture_, found->name,
             name(found->type));
  }
  const Tensor codes = shaped(stored, m.shape(m.n_out, m.n_in));
  const bool may_be_channels = found == twins[2];
  int64_t tile_out = config_.tile_out, tile_in = config_.tile_in;
  int64_t scale_rows = divide_up(m.n_out, tile_out), scale_columns = divide_up(m.n_in, tile_in);
  if (may_be_channels && !same_up_to_ones(*found, m.shape(scale_rows, scale_columns))) {
    const bool whole = found->size() == m.n_stacked;  // one scale per matrix
    tile_in = m.n_in;
    tile_out = whole ? m.n_out : 1;
    scale_rows = whole ? 1 : m.n_out;
    scale_columns = 1;
  }
  const DType scale_type = found->type == DType::kU8 ? DType::kF8E8M0 : found->type;
  const Tensor scales = with_type(shaped(*found, m.shape(scale_rows, scale_columns)), scale_type);
  check_values(scales, true);
  check_values(codes, false);
  Matrix first = coded(Storage::kFp8Block, codes, scales, m.n_in, tile_in);
  first.tile_out = tile_out;
  return stack(first, m.n_stacked, scale_rows);
}

std::vector<Matrix> ModuleReader::read_fp4(const Module& m, const Tensor& stored,
                                           const Tensor& stored_scales) {
  constexpr int64_t kGroup = 32;
  if (m.n_in % kGroup != 0) {
    bad_file("{}: tensor {}: rows of {} values are not whole groups of {}", architecture_, stored.name,
             m.n_in, kGroup);
  }
  const Tensor codes = shaped(stored, m.shape(m.n_out, m.n_in / 2));
  const Tensor scales = with_type(shaped(stored_scales, m.shape(m.n_out, m.n_in / kGroup)), DType::kF8E8M0);
  check_values(scales, true);
  return stack(coded(Storage::kFp4, codes, scales, m.n_in, kGroup), m.n_stacked, m.n_out);
}

std::vector<Matrix> ModuleReader::read_nvfp4(const Module& m, const Tensor& stored,
                                             const Tensor& stored_scales, const Tensor& factor,
                                             bool divides) {
  const int64_t group = config_.nvfp4_group;
  if (m.n_in % group != 0 || m.n_in % 2 != 0) {
    bad_file("{}: tensor {}: rows of {} values are not whole groups of {}", architecture_, stored.name,
             m.n_in, group);
  }
  if (stored_scales.type != DType::kF8E4M3) {
    bad_file("{}: tensor {}: expected f8_e4m3, got {}", architecture_, stored_scales.name,
             name(stored_scales.type));
  }
  const Tensor codes = shaped(stored, m.shape(m.n_out, m.n_in / 2));
  const Tensor scales = shaped(stored_scales, m.shape(m.n_out, m.n_in / group));
  check_values(scales, true);
  auto result = stack(coded(Storage::kNvFp4, codes, scales, m.n_in, group), m.n_stacked, m.n_out);
  set_factors(result, factor, divides);
  return result;
}

// I8 or U8: pairs of 4-bit codes, DeepSeek's with E8M0 scales or ModelOpt's NVFP4.
std::vector<Matrix> ModuleReader::read_bytes(const Module& m, const Tensor& codes) {
  const Tensor* fp4 = take(m.dotted("scale"));
  const Tensor* scale = take(m.underscored("scale"));
  const Tensor* factor = take(m.underscored("scale_2"));
  if (fp4 != nullptr && (scale != nullptr || factor != nullptr)) {
    bad_file("{}: tensor {} has two scales, {} and {}; expected one", architecture_, codes.name, fp4->name,
             (scale != nullptr ? scale : factor)->name);
  }
  if (fp4 != nullptr) {
    if (!is_e8m0(fp4->type)) {
      bad_file("{}: tensor {}: expected f8_e8m0, got {}", architecture_, fp4->name, name(fp4->type));
    }
    return read_fp4(m, codes, *fp4);
  }
  if (codes.type == DType::kU8 && scale != nullptr && factor != nullptr) {
    take(m.dotted("input_scale"));
    return read_nvfp4(m, codes, *scale, *factor, false);
  }
  if (codes.type == DType::kU8) {
    bad_file("{}: tensor {} (u8): its scales are missing; expected {} and {}, or {}", architecture_,
             codes.name, m.underscored("scale"), m.underscored("scale_2"), m.dotted("scale"));
  }
  bad_file("{}: tensor {} (i8): its scale is missing; expected {}", architecture_, codes.name,
           m.dotted("scale"));
}

// compressed-tensors.
std::vector<Matrix> ModuleReader::read_packed(const Module& m, const Tensor& codes) {
  if (codes.type != DType::kU8) {
    bad_file("{}: tensor {}: expected pairs of 4-bit floats (u8), got {}", architecture_, codes.name,
             name(codes.type));
  }
  const Tensor* scale = take(m.underscored("scale"));
  const Tensor* factor = take(m.underscored("global_scale"));
  take(m.dotted("input_global_scale"));
  if (scale == nullptr) {
    bad_file("{}: tensor {}: its scale is missing; expected {}", architecture_, codes.name,
             m.underscored("scale"));
  }
  if (factor != nullptr) return read_nvfp4(m, codes, *scale, *factor, true);
  if (is_e8m0(scale->type)) return read_fp4(m, codes, *scale);
  bad_file("{}: tensor {}: its factor is missing; expected {}", architecture_, codes.name,
           m.underscored("global_scale"));
}

// Bits and group from the widths; the configuration must agree where it says anything.
std::vector<Matrix> ModuleReader::read_mlx(const Module& m, const Tensor& stored) {
  const Tensor* stored_scales = take(m.dotted("scales"));
  if (stored_scales == nullptr) {
    bad_file("{}: tensor {} ({}): its scales are missing; expected {}", architecture_, stored.name,
             name(stored.type), m.dotted("scales"));
  }
  if (checkpoint_.find(m.dotted("global_scale")) != nullptr) {
    bad_file("{}: tensor {}: a global scale is not supported in MLX files", architecture_,
             m.dotted("global_scale"));
  }
  const auto settings = config_.mlx(m.path);
  if (!settings) {
    bad_file("{}: tensor {} is quantized, but config.json says quantization.{}: false", architecture_,
             stored.name, m.path);
  }
  if (settings->mode != MlxQuant::Mode::kAffine) return read_mlx_float(m, stored, *stored_scales, *settings);

  const Tensor* stored_biases = take(m.dotted("biases"));
  if (stored_biases == nullptr) {
    bad_file("{}: tensor {} ({}): its biases are missing; expected {}", architecture_, stored.name,
             name(stored.type), m.dotted("biases"));
  }
  const int64_t words = stored.inner(), groups = stored_scales->inner();
  const int64_t bits = words > 0 && words <= m.n_in && words * 32 % m.n_in == 0 ? words * 32 / m.n_in : 0;
  const int64_t group = groups > 0 && m.n_in % groups == 0 ? m.n_in / groups : 0;
  constexpr std::array<int64_t, 6> kBits = {2, 3, 4, 5, 6, 8};
  constexpr std::array<int64_t, 3> kGroups = {32, 64, 128};
  const bool known = std::find(kBits.begin(), kBits.end(), bits) != kBits.end() &&
                     std::find(kGroups.begin(), kGroups.end(), group) != kGroups.end();
  if (!known || settings->bits.value_or(bits) != bits || settings->group.value_or(group) != group) {
    const auto said = [](std::optional<int64_t> n) {
      return n ? std::to_string(*n) : std::string("unknown");
    };
    bad_file("{}: tensor {}: {} words and {} scales per row of {} values do not fit {} bits in groups of {}",
             architecture_, stored.name, words, groups, m.n_in, said(settings->bits), said(settings->group));
  }
  const bool alike = is_float(stored_scales->type) && stored_scales->type == stored_biases->type;
  if (!alike) {
    bad_file("{}: tensors {} and {}: expected floats of one type, got {} and {}", architecture_,
             stored_scales->name, stored_biases->name, name(stored_scales->type), name(stored_biases->type));
  }
  const Tensor codes = shaped(stored, m.shape(m.n_out, words));
  const Tensor scales = shaped(*stored_scales, m.shape(m.n_out, groups));
  const Tensor biases = shaped(*stored_biases, m.shape(m.n_out, groups));
  check_values(scales, true);
  check_values(biases, true);
  Matrix first = coded(Storage::kMlxAffine, codes, scales, m.n_in, group);
  first.biases = biases.data;
  first.bits = static_cast<int>(bits);
  return stack(first, m.n_stacked, m.n_out);
}

std::vector<Matrix> ModuleReader::read_mlx_float(const Module& m, const Tensor& stored,
                                                 const Tensor& stored_scales, MlxQuant settings) {
  const bool nvfp4 = settings.mode == MlxQuant::Mode::kNvFp4;
  const int64_t group = nvfp4 ? 16 : 32;
  const int64_t bits = settings.mode == MlxQuant::Mode::kMxFp8 ? 8 : 4;
  if (settings.group.value_or(group) != group || settings.bits.value_or(bits) != bits) {
    bad_file("{}: tensor {}: expected {} bits in groups of {}, but config.json says {} and {}", architecture_,
             stored.name, bits, group, settings.bits.value_or(bits), settings.group.value_or(group));
  }
  if (m.n_in % group != 0) {
    bad_file("{}: tensor {}: rows of {} values are not whole groups of {}", architecture_, stored.name,
             m.n_in, group);
  }
  const DType scale_type = nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0;
  if (stored_scales.type != DType::kU8 && stored_scales.type != scale_type) {
    bad_file("{}: tensor {}: expected bytes (u8), got {}", architecture_, stored_scales.name,
             name(stored_scales.type));
  }
  const Tensor codes = shaped(stored, m.shape(m.n_out, m.n_in * bits / 32));
  const Tensor scales = with_type(shaped(stored_scales, m.shape(m.n_out, m.n_in / group)), scale_type);
  check_values(scales, true);
  const Storage storage = nvfp4 ? Storage::kNvFp4 : bits == 8 ? Storage::kMxFp8 : Storage::kFp4;
  return stack(coded(storage, codes, scales, m.n_in, group), m.n_stacked, m.n_out);
}

}  // namespace synod
