// The JSON header of a safetensors file, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace synod {

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;
  std::optional<DType> dtype;  // nullopt: a type that synod cannot read
  std::vector<int64_t> shape;  // outermost first, empty for a scalar
  uint64_t begin = 0;          // from the start of the data buffer
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // sorted by name
  uint64_t data_start = 0;                // offset of the data buffer in the file
};

// Checks lengths, syntax, names, types, shapes and that the ranges tile the data buffer. Throws kBadFile.
SafetensorsHeader read_safetensors_header(std::span<const std::byte> bytes, const std::string& file);

std::optional<DType> dtype_from_safetensors(std::string_view name);
std::optional<std::string_view> safetensors_dtype(DType type);  // nullopt for block types

}  // namespace synod
