// Typed access to GGUF metadata. Files use u32, u64 and i32 for the same key, so integers of any width do.
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "formats/gguf.h"
#include "formats/gguf_format.h"

namespace synod {
namespace gguf {
namespace {

struct ScalarType {
  ValueType id;
  DType dtype;
};
constexpr std::array<ScalarType, 11> kScalars = {{
    {ValueType::kU8, DType::kU8},
    {ValueType::kI8, DType::kI8},
    {ValueType::kU16, DType::kU16},
    {ValueType::kI16, DType::kI16},
    {ValueType::kU32, DType::kU32},
    {ValueType::kI32, DType::kI32},
    {ValueType::kF32, DType::kF32},
    {ValueType::kBool, DType::kBool},
    {ValueType::kU64, DType::kU64},
    {ValueType::kI64, DType::kI64},
    {ValueType::kF64, DType::kF64},
}};

}  // namespace

std::optional<DType> scalar_dtype(ValueType type) {
  for (const ScalarType& s : kScalars) {
    if (s.id == type) return s.dtype;
  }
  return std::nullopt;
}

std::optional<ValueType> value_type(DType scalar) {
  for (const ScalarType& s : kScalars) {
    if (s.dtype == scalar) return s.id;
  }
  return std::nullopt;
}

ValueType value_type(const GgufValue& value) {
  // In the order of the variant's alternatives.
  constexpr std::array<ValueType, 14> kTypes = {
      ValueType::kU8,  ValueType::kI8,  ValueType::kU16,   ValueType::kI16,    ValueType::kU32,
      ValueType::kI32, ValueType::kF32, ValueType::kBool,  ValueType::kString, ValueType::kU64,
      ValueType::kI64, ValueType::kF64, ValueType::kArray, ValueType::kArray};
  static_assert(kTypes.size() == std::variant_size_v<decltype(GgufValue::value)>);
  return kTypes[value.value.index()];
}

uint64_t alignment(const GgufMetadata& metadata, std::string_view file) {
  constexpr uint64_t kDefault = 32;
  const GgufValue* value = metadata.find(kAlignmentKey);
  if (value == nullptr) return kDefault;
  const auto* n = std::get_if<uint32_t>(&value->value);
  if (n == nullptr) bad_file("{}: key {}: expected a u32", file, kAlignmentKey);
  if (*n < 8 || !std::has_single_bit(*n)) {
    bad_file("{}: key {}: expected a power of two of at least 8, got {}", file, kAlignmentKey, *n);
  }
  return *n;
}

std::optional<std::string> key_problem(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return fmt::format("expected 1 to {} bytes, got {}", kMaxKeyBytes, key.size());
  }
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0 || byte > 0x7f) return fmt::format("expected ASCII, got byte {:#04x}", byte);
  }
  return std::nullopt;
}

}  // namespace gguf

namespace {

std::string type_name(const GgufValue& value) {
  if (value.is_string()) return "a string";
  if (std::holds_alternative<GgufValue::Strings>(value.value)) return "an array of strings";
  if (const auto* array = std::get_if<GgufValue::Array>(&value.value)) {
    return fmt::format("an array of {}", name(array->element));
  }
  return std::string(name(*gguf::scalar_dtype(gguf::value_type(value))));
}

template <typename T, typename F>
void for_each_in(const GgufValue::Array& array, F&& f) {
  for (int64_t i = 0; i < array.count; ++i) {
    T element;
    std::memcpy(&element, array.bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    f(element);
  }
}

template <typename F>
bool for_each_in_array(const GgufValue::Array& array, F&& f) {
  switch (array.element) {
    case DType::kU8:
      return for_each_in<uint8_t>(array, f), true;
    case DType::kI8:
      return for_each_in<int8_t>(array, f), true;
    case DType::kU16:
      return for_each_in<uint16_t>(array, f), true;
    case DType::kI16:
      return for_each_in<int16_t>(array, f), true;
    case DType::kU32:
      return for_each_in<uint32_t>(array, f), true;
    case DType::kI32:
      return for_each_in<int32_t>(array, f), true;
    case DType::kU64:
      return for_each_in<uint64_t>(array, f), true;
    case DType::kI64:
      return for_each_in<int64_t>(array, f), true;
    case DType::kF32:
      return for_each_in<float>(array, f), true;
    case DType::kF64:
      return for_each_in<double>(array, f), true;
    case DType::kBool:
      return for_each_in<uint8_t>(array, [&](uint8_t b) { f(b != 0); }), true;
    default:
      return false;
  }
}

// Calls f(element) for every element of a scalar or numeric array. False for strings.
template <typename F>
bool for_each_number(const GgufValue& value, F&& f) {
  return std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T>) {
          f(v);
          return true;
        } else if constexpr (std::is_same_v<T, GgufValue::Array>) {
          return for_each_in_array(v, f);
        } else {
          return false;
        }
      },
      value.value);
}

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

struct Key {
  std::string_view file;
  std::string_view name;

  [[noreturn]] void wrong_type(std::string_view expected, const GgufValue& value) const {
    bad_file("{}: key {}: expected {}, got {}", file, printable(name), expected, type_name(value));
  }
  template <typename T>
  int64_t to_int64(T v) const {
    if (std::is_same_v<T, uint64_t> && v > static_cast<T>(std::numeric_limits<int64_t>::max())) {
      bad_file("{}: key {}: expected an integer below 2^63, got {}", file, printable(name), v);
    }
    return static_cast<int64_t>(v);
  }
};

std::vector<int64_t> ints_of(const Key& key, const GgufValue& value, std::string_view expected) {
  std::vector<int64_t> result;
  const bool numeric = for_each_number(value, [&](auto v) {
    if constexpr (kIsInteger<decltype(v)>) {
      result.push_back(key.to_int64(v));
    } else {
      key.wrong_type(expected, value);
    }
  });
  if (!numeric) key.wrong_type(expected, value);
  return result;
}

std::vector<double> floats_of(const Key& key, const GgufValue& value, std::string_view expected) {
  std::vector<double> result;
  const bool numeric = for_each_number(value, [&](auto v) {
    if constexpr (std::is_same_v<decltype(v), bool>) {
      key.wrong_type(expected, value);
    } else {
      result.push_back(static_cast<double>(v));
    }
  });
  if (!numeric) key.wrong_type(expected, value);
  return result;
}

std::vector<bool> bools_of(const Key& key, const GgufValue& value, std::string_view expected) {
  std::vector<bool> result;
  const bool numeric = for_each_number(value, [&](auto v) {
    if constexpr (std::is_same_v<decltype(v), bool>) {
      result.push_back(v);
    } else {
      key.wrong_type(expected, value);
    }
  });
  if (!numeric) key.wrong_type(expected, value);
  return result;
}

template <typename T>
GgufValue array_value(DType element, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {GgufValue::Array{element, {bytes.begin(), bytes.end()}, static_cast<int64_t>(values.size())}};
}

template <typename T>
T required(std::optional<T> value, std::string_view file, std::string_view key) {
  if (!value) bad_file("{}: key {} is missing", file, key);
  return std::move(*value);
}

}  // namespace

bool GgufValue::is_array() const {
  return std::holds_alternative<Array>(value) || std::holds_alternative<Strings>(value);
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second].second;
}

int64_t GgufMetadata::get_int(std::string_view key) const { return required(find_int(key), file_, key); }
double GgufMetadata::get_float(std::string_view key) const { return required(find_float(key), file_, key); }
std::string GgufMetadata::get_string(std::string_view key) const {
  return required(find_string(key), file_, key);
}

std::optional<int64_t> GgufMetadata::find_int(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array()) Key{file_, key}.wrong_type("an integer", *value);
  return ints_of({file_, key}, *value, "an integer").front();
}

std::optional<double> GgufMetadata::find_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array()) Key{file_, key}.wrong_type("a float", *value);
  return floats_of({file_, key}, *value, "a float").front();
}

std::optional<bool> GgufMetadata::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array()) Key{file_, key}.wrong_type("a bool", *value);
  return bools_of({file_, key}, *value, "a bool").front();
}

std::optional<std::string> GgufMetadata::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Key{file_, key}.wrong_type("a string", *value);
  return std::get<std::string>(value->value);
}

std::optional<std::vector<int64_t>> GgufMetadata::find_ints(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  return ints_of({file_, key}, *value, "integers");
}

std::optional<std::vector<double>> GgufMetadata::find_floats(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  return floats_of({file_, key}, *value, "floats");
}

std::optional<std::vector<bool>> GgufMetadata::find_bools(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  return bools_of({file_, key}, *value, "bools");
}

std::optional<std::vector<std::string>> GgufMetadata::find_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::vector{std::get<std::string>(value->value)};
  const auto* strings = std::get_if<GgufValue::Strings>(&value->value);
  if (strings == nullptr) Key{file_, key}.wrong_type("strings", *value);
  return *strings;
}

void GgufMetadata::set(std::string key, GgufValue value) {
  const auto [it, inserted] = index_.try_emplace(key, entries_.size());
  if (inserted) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    entries_[it->second].second = std::move(value);
  }
}

void GgufMetadata::set_u32s(std::string key, const std::vector<uint32_t>& v) {
  set(std::move(key), array_value(DType::kU32, v));
}
void GgufMetadata::set_i32s(std::string key, const std::vector<int32_t>& v) {
  set(std::move(key), array_value(DType::kI32, v));
}
void GgufMetadata::set_f32s(std::string key, const std::vector<float>& v) {
  set(std::move(key), array_value(DType::kF32, v));
}
void GgufMetadata::set_bools(std::string key, const std::vector<bool>& v) {
  set(std::move(key), array_value(DType::kBool, std::vector<uint8_t>(v.begin(), v.end())));
}

}  // namespace synod
