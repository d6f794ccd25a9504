#include "cpu/vec_table.h"

namespace synod::cpu {

const VecTable& vec_table(std::string_view name) {
#if defined(__x86_64__)
  if (name == kVecAvx512.name) return kVecAvx512;
  if (name == kVecAvx2.name) return kVecAvx2;
#endif
  return kVecScalar;
}

}  // namespace synod::cpu
