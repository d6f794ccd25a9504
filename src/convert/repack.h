// Storages whose codes a GGUF block type can hold as they are: nothing is decoded, nothing can change.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/matrix.h"

namespace synod {

// DeepSeek's FP4 (pairs of codes, one E8M0 scale per 32) is MXFP4 with the codes in another order.
bool can_repack(const Matrix& matrix, DType type);
// Row `row` as blocks of `type`; row_bytes(type, n_in) bytes. Only where can_repack.
void repack_row(const Matrix& matrix, int64_t row, std::byte* out);

}  // namespace synod
