// Stored types and their geometry. What the bytes mean is src/quant's business.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace synod {

enum class DType : uint8_t {
#define SYNOD_DTYPE(enumerator, name, id, values, bytes) enumerator,
#include "base/dtypes.def"
#undef SYNOD_DTYPE
};

struct DTypeInfo {
  DType type;
  std::string_view name;
  int32_t ggml_id;       // id in GGUF files, -1 where GGUF has none
  int64_t block_values;  // values per block
  int64_t block_bytes;   // bytes per block
};

const DTypeInfo& info(DType type);
inline std::string_view name(DType type) { return info(type).name; }
std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_ggml_id(uint32_t id);

inline bool is_block_type(DType type) { return info(type).block_values > 1; }
// Bytes of `n` values in a row; `n` must be a multiple of the block.
inline int64_t row_bytes(DType type, int64_t n) {
  return n / info(type).block_values * info(type).block_bytes;
}

}  // namespace synod
