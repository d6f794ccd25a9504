// Weights::bind: names are solved first, then each role's tensors are read and checked.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "models/bound_weights.h"
#include "models/dialect_solver.h"
#include "models/module_reader.h"
#include "quant/codec.h"

namespace synod {
namespace {

using Kind = WeightSpec::Kind;

template <typename T>
int64_t load(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  if constexpr (sizeof(T) == 8 && !std::is_signed_v<T>) {
    if (value > static_cast<T>(std::numeric_limits<int64_t>::max()))
      return std::numeric_limits<int64_t>::max();
  }
  return static_cast<int64_t>(value);
}

// Value of an integer tensor; nullopt for other types.
std::optional<int64_t> integer_at(const Tensor& tensor, int64_t index) {
  switch (tensor.type) {
    case DType::kI64:
      return load<int64_t>(tensor.data, index);
    case DType::kU64:
      return load<uint64_t>(tensor.data, index);
    case DType::kI32:
      return load<int32_t>(tensor.data, index);
    case DType::kU32:
      return load<uint32_t>(tensor.data, index);
    case DType::kI16:
      return load<int16_t>(tensor.data, index);
    case DType::kU16:
      return load<uint16_t>(tensor.data, index);
    case DType::kI8:
      return load<int8_t>(tensor.data, index);
    case DType::kU8:
      return load<uint8_t>(tensor.data, index);
    default:
      return std::nullopt;
  }
}

class Binder {
 public:
  explicit Binder(ModuleReader& reader) : reader_(reader) {}

  void bind(const WeightSpec& spec, const Candidate& candidate, std::string_view role, BoundWeight& weight) {
    switch (spec.kind) {
      case Kind::kVector:
      case Kind::kValues:
        return bind_values(spec, candidate, role, weight);
      case Kind::kIds:
        return bind_ids(spec, candidate, role, weight);
      case Kind::kMatrix:
      case Kind::kExperts:
        return bind_matrices(spec, candidate, weight);
    }
  }

 private:
  void bind_values(const WeightSpec& spec, const Candidate& candidate, std::string_view role,
                   BoundWeight& weight) {
    SYNOD_ASSERT(candidate.n_parts == 1);
    const Tensor stored = reader_.plain(candidate.name, spec.shape);
    const bool is_float = stored.type == DType::kF32 || stored.type == DType::kF16 ||
                          stored.type == DType::kBF16 || stored.type == DType::kF64;
    if (!is_float && !(is_block_type(stored.type) && can_decode(stored.type))) {
      bad_file("{}: tensor {}: expected floats, got {}", reader_.architecture(), stored.name,
               name(stored.type));
    }
    weight.floats.resize(static_cast<size_t>(stored.size()));
    decode(stored.type, stored.data, stored.size(), weight.floats.data());
    for (size_t i = 0; i < weight.floats.size(); ++i) {  // infinities are legal: a sink that takes nothing
      if (std::isnan(weight.floats[i])) {
        bad_file("{}: tensor {}: value {} is not a number", reader_.architecture(), stored.name, i);
      }
    }
    weight.tensor = Tensor::contiguous(weight.floats.data(), DType::kF32, spec.shape, role);
    note(stored, weight);
  }

  void bind_ids(const WeightSpec& spec, const Candidate& candidate, std::string_view role,
                BoundWeight& weight) {
    SYNOD_ASSERT(candidate.n_parts == 1);
    const Tensor stored = reader_.plain(candidate.name, spec.shape);
    weight.ids.resize(static_cast<size_t>(stored.size()));
    for (size_t i = 0; i < weight.ids.size(); ++i) {
      const auto value = integer_at(stored, static_cast<int64_t>(i));
      if (!value) {
        bad_file("{}: tensor {}: expected integers, got {}", reader_.architecture(), stored.name,
                 name(stored.type));
      }
      if (*value < std::numeric_limits<int32_t>::min() || *value > std::numeric_limits<int32_t>::max()) {
        bad_file("{}: tensor {}: value {} is {}, which is no 32-bit id", reader_.architecture(), stored.name,
                 i, *value);
      }
      weight.ids[i] = static_cast<int32_t>(*value);
    }
    weight.tensor = Tensor::contiguous(weight.ids.data(), DType::kI32, spec.shape, role);
    note(stored, weight);
  }

  static void note(const Tensor& stored, BoundWeight& weight) {
    weight.type = std::string(name(stored.type));
    weight.n_tensors = 1;
    weight.bytes = stored.bytes();
  }

  void bind_matrices(const WeightSpec& spec, const Candidate& candidate, BoundWeight& weight) {
    const size_t outer = spec.kind == Kind::kExperts ? 1 : 0;
    SYNOD_ASSERT(spec.shape.size() == outer + 2);
    SYNOD_ASSERT(candidate.part >= 0 && candidate.part < candidate.n_parts);
    const int64_t count = outer == 1 ? spec.shape[0] : 1;
    const int64_t n_out = spec.shape[outer], n_in = spec.shape[outer + 1];
    const std::vector<std::string> names = module_names(candidate, spec);
    const bool per_expert = candidate.name != names.front();
    for (const std::string& stored : names) {
      const auto read = reader_.matrices(stored, per_expert ? 1 : count, n_out * candidate.n_parts, n_in);
      for (const Matrix& m : read) {
        const int64_t begin = candidate.part * n_out;
        weight.matrices.push_back(candidate.n_parts == 1 ? m : m.rows(begin, begin + n_out));
        weight.bytes += weight.matrices.back().bytes();
      }
    }
    SYNOD_ASSERT(static_cast<int64_t>(weight.matrices.size()) == count);
    weight.n_tensors = static_cast<int64_t>(names.size());
    weight.type = storage_label(weight.matrices.front());
  }

  ModuleReader& reader_;
};

}  // namespace

Weights Weights::bind(const Checkpoint& checkpoint, std::span<const WeightSpec> specs,
                      const DialectInfo& dialects) {
  std::set<std::string_view> claimed;
  for (const WeightSpec& spec : specs) {
    for (const Candidate& candidate : spec.candidates) claimed.insert(candidate.name);
  }
  ModuleReader reader(checkpoint, [&](std::string_view name) { return claimed.contains(name); });
  const DialectSolution solution = solve_dialect(checkpoint, reader, specs, dialects);

  auto impl = std::make_unique<Impl>();
  impl->dialect = dialects.names[static_cast<size_t>(solution.dialect)];
  Binder binder(reader);
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto [it, is_new] = impl->roles.try_emplace(specs[i].role);
    SYNOD_ASSERT(is_new);
    it->second.kind = specs[i].kind;
    if (solution.chosen[i] != nullptr) binder.bind(specs[i], *solution.chosen[i], it->first, it->second);
  }
  require_no_leftovers(checkpoint, reader.used(), dialects, reader.architecture(), impl->dialect);
  return Weights(std::move(impl));
}

}  // namespace synod
