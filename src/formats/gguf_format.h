// Numbers of the GGUF layout that reader and writer share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "formats/gguf.h"

namespace synod::gguf {

inline constexpr std::string_view kMagic = "GGUF";
inline constexpr uint32_t kVersion = 3;
inline constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
inline constexpr uint64_t kMaxKeys = uint64_t{1} << 16;
inline constexpr uint64_t kMaxKeyBytes = 65535;
inline constexpr uint64_t kMaxNameBytes = 63;
inline constexpr uint64_t kMaxStringBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxArrayCount = uint64_t{1} << 30;
inline constexpr uint64_t kMaxRank = 4;
inline constexpr uint32_t kQuantizationVersion = 2;
inline constexpr std::string_view kAlignmentKey = "general.alignment";
inline constexpr std::string_view kQuantizationVersionKey = "general.quantization_version";

// Value type ids of the file.
enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// Stored type of a numeric or bool value, nullopt for strings, arrays and unknown ids.
std::optional<DType> scalar_dtype(ValueType type);
std::optional<ValueType> value_type(DType scalar);
ValueType value_type(const GgufValue& value);

// Value of general.alignment: 32 when absent. Throws kBadFile unless a u32 power of two of at least 8.
uint64_t alignment(const GgufMetadata& metadata, std::string_view file);
inline uint64_t align_up(uint64_t n, uint64_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

// Why `key` cannot be a metadata key, or nullopt. The same rules read and write.
std::optional<std::string> key_problem(std::string_view key);

}  // namespace synod::gguf
