#include "convert/repack.h"

#include "base/error.h"
#include "quant/blocks.h"

namespace synod {

bool can_repack(const Matrix& matrix, DType type) {
  return matrix.storage == Storage::kFp4 && type == DType::kMXFP4 && matrix.group == BlockMXFP4::kSize;
}

void repack_row(const Matrix& matrix, int64_t row, std::byte* out) {
  constexpr int64_t kSize = BlockMXFP4::kSize, kBlockBytes = 1 + kSize / 2;
  const std::byte* codes = matrix.data + row * matrix.row_stride;
  const std::byte* scales = matrix.scales + row * matrix.scale_stride;
  const auto code = [](const std::byte* pairs, int64_t i) {
    return static_cast<uint8_t>(std::to_integer<unsigned>(pairs[i / 2]) >> (i % 2 == 0 ? 0 : 4) & 0xfU);
  };
  for (int64_t b = 0; b < matrix.n_in / kSize; ++b, codes += kSize / 2, out += kBlockBytes) {
    out[0] = scales[b];
    for (int64_t i = 0; i < kSize / 2; ++i) {
      out[1 + i] = static_cast<std::byte>(code(codes, i) | code(codes, i + kSize / 2) << 4);
    }
  }
}

}  // namespace synod
