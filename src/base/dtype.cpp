#include "base/dtype.h"

#include <array>

namespace synod {
namespace {

constexpr std::array kInfos = {
#define SYNOD_DTYPE(enumerator, name, id, values, bytes) \
  DTypeInfo{DType::enumerator, name, id, values, bytes},
#include "base/dtypes.def"
#undef SYNOD_DTYPE
};

}  // namespace

const DTypeInfo& info(DType type) { return kInfos[static_cast<size_t>(type)]; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& i : kInfos) {
    if (i.name == name) return i.type;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_ggml_id(uint32_t id) {
  for (const DTypeInfo& i : kInfos) {
    if (i.ggml_id >= 0 && static_cast<uint32_t>(i.ggml_id) == id) return i.type;
  }
  return std::nullopt;
}

}  // namespace synod
