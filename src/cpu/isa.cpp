// Which kernels this CPU can run, and what does not depend on the instruction set.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/isa/job.h"

namespace synod::cpu {
namespace {

constexpr KernelTable kScalarTable = {.name = "scalar", .prepare = prepare_scalar, .rows = rows_scalar};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("gfni");
}
#endif

struct Available {
  std::array<const KernelTable*, 3> tables{};
  size_t count = 0;

  Available() {
    tables[count++] = &kScalarTable;
#if defined(__x86_64__)
    if (has_avx2()) tables[count++] = &kAvx2Table;
    if (has_avx512()) tables[count++] = &kAvx512Table;
#endif
  }
};

}  // namespace

std::span<const KernelTable* const> available_tables() {
  static const Available available;
  return {available.tables.data(), available.count};
}

const KernelTable& kernel_table(std::string_view pinned) {
  const auto tables = available_tables();
  if (pinned.empty()) return *tables.back();
  std::string names;
  for (const KernelTable* table : tables) {
    if (table->name == pinned) return *table;
    names += names.empty() ? "" : ", ";
    names += table->name;
  }
  fail(Error::Kind::kUsage, "SYNOD_CPU_ISA: this CPU runs {}; got '{}'", names, pinned);
}

ActivationKind activation_kind(const Matrix& matrix) {
  if (matrix.storage != Storage::kBlock || matrix.global_scale != 1.0F) return ActivationKind::kFloat;
  switch (matrix.type) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kMXFP4:
      return ActivationKind::kBlocks32;
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_XS:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
      return ActivationKind::kBlocks256;
    default:
      return ActivationKind::kFloat;
  }
}

int64_t record_bytes(ActivationKind kind, int64_t k) {
  constexpr int64_t kLine = 64;
  const int64_t bytes =
      kind == ActivationKind::kFloat ? k * int64_t{sizeof(float)} : n_chunks(k) * int64_t{sizeof(Chunk256)};
  const int64_t lines = (bytes + kLine - 1) / kLine;
  return (lines | 1) * kLine;  // an odd number of lines: records of many tokens spread over all cache sets
}

int64_t scratch_bytes(int64_t n_tokens) {
  const int64_t panel = n_tokens < kPanelTokens ? n_tokens : kPanelTokens;
  return kTileBytes + panel * kTileRows * int64_t{sizeof(float)};
}

void rows_with(const Isa& isa, const Matrix& matrix, int64_t row_begin, int64_t row_end,
               std::span<const std::byte* const> records, std::span<float* const> out, std::byte* scratch) {
  SYNOD_ASSERT(row_begin >= 0 && row_begin <= row_end && row_end <= matrix.n_out);
  SYNOD_ASSERT(records.size() == out.size());
  if (row_begin == row_end || records.empty()) return;
  Job job{.data = reinterpret_cast<const uint8_t*>(matrix.data),
          .stride = matrix.row_stride,
          .n_rows = matrix.n_out,
          .k = matrix.n_in,
          .begin = row_begin,
          .end = row_end,
          .x = records.data(),
          .out = out.data(),
          .n_tokens = static_cast<int64_t>(records.size()),
          .scratch = scratch};
  constexpr int64_t kMaxStride =
      (int64_t{1} << 31) / 16 - 1;  // kernels gather with 32-bit offsets of 16 rows
  if (job.stride >= 0 && job.stride <= kMaxStride) {
    if (const JobKernel kernel = isa.find(matrix)) {
      kernel(job);
      return;
    }
  }
  if (activation_kind(matrix) != ActivationKind::kFloat) {
    rows_scalar(matrix, row_begin, row_end, records, out, scratch);
    return;
  }
  // Decode a few rows at a time; the f32 kernel reads them from L2 for every token.
  constexpr int64_t kRows = 8;
  thread_local std::vector<float> decoded;
  decoded.resize(static_cast<size_t>(kRows * matrix.n_in));
  std::vector<float*> shifted(out.begin(), out.end());
  for (int64_t row = row_begin; row < row_end; row += kRows) {
    const int64_t n = std::min(kRows, row_end - row);
    for (int64_t i = 0; i < n; ++i) decode_row(matrix, row + i, decoded.data() + i * matrix.n_in);
    for (size_t m = 0; m < shifted.size(); ++m) shifted[m] = out[m] + (row - row_begin);
    Job part = job;
    part.data = reinterpret_cast<const uint8_t*>(decoded.data());
    part.stride = matrix.n_in * int64_t{sizeof(float)};
    part.n_rows = n;
    part.begin = 0;
    part.end = n;
    part.out = shifted.data();
    isa.f32_rows(part);
  }
}

}  // namespace synod::cpu
