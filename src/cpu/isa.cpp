// Which kernels this CPU can run, and what does not depend on the instruction set.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/isa/job.h"

namespace synod::cpu {
namespace {

constexpr KernelTable kScalarTable = {.name = "scalar", .prepare = prepare_scalar, .run_rows = rows_scalar};

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
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return ActivationKind::kBlocks256;
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
      return ActivationKind::kBlocks256By4;
    case DType::kIQ2_XXS:
      return ActivationKind::kBlocks256By8;
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

float fp4_scale(const Matrix& matrix, uint8_t code) {
  if (matrix.storage == Storage::kBlock) return nvfp4_half_scale(code);
  return matrix.storage == Storage::kNvFp4 ? kE4m3Values[code] : e8m0_scale(code);
}

Decoder find_decoder(const Decoders& isa, const Matrix& m) {
  switch (m.storage) {
    case Storage::kFp4:
    case Storage::kNvFp4:
      if (m.group % 16 != 0 || m.n_in % 16 != 0) return {};
      return {.prepare = isa.fp4_table, .row = isa.fp4};
    case Storage::kBlock:
      if (m.type != DType::kNVFP4) return {};
      return {.prepare = isa.fp4_table, .row = isa.nvfp4_block};
    case Storage::kFp8Block:
    case Storage::kMxFp8:
      if (m.global_scale != 1.0F || !CodeRow::can_read(m.scale_type)) return {};
      return {.row = isa.fp8};
    case Storage::kMlxAffine:
      if (m.global_scale != 1.0F || !CodeRow::can_read(m.scale_type)) return {};
      if (m.group % 16 != 0 || m.n_in % 16 != 0) return {};
      return {.row = isa.affine(m.bits)};
    case Storage::kPlain:
      break;
  }
  return {};
}

namespace {

// Decodes a few rows at a time; the f32 kernel reads them from L1 for one token, from L2 for many.
void decoded_rows(const Isa& isa, const Job& job, const Matrix& matrix, std::span<float* const> out) {
  static_assert(Decoder::kTableBytes <= kTileBytes);
  constexpr int64_t kMostRows = 8;
  constexpr int64_t kOneTokenBytes = 32 * 1024;
  const int64_t row_bytes = matrix.n_in * int64_t{sizeof(float)};
  const int64_t rows =
      job.n_tokens > 1 ? kMostRows
                       : std::clamp(kOneTokenBytes / std::max<int64_t>(1, row_bytes), int64_t{1}, kMostRows);
  const Decoder decoder = find_decoder(*isa.decoders, matrix);
  if (decoder.row != nullptr && decoder.prepare != nullptr) decoder.prepare(matrix, job.scratch);
  thread_local std::vector<float> decoded;
  decoded.resize(static_cast<size_t>(rows * matrix.n_in));
  std::vector<float*> shifted(out.begin(), out.end());
  for (int64_t row = job.begin; row < job.end; row += rows) {
    const int64_t n = std::min(rows, job.end - row);
    for (int64_t i = 0; i < n; ++i) {
      float* to = decoded.data() + i * matrix.n_in;
      if (decoder.row != nullptr) {
        decoder.row(matrix, row + i, job.scratch, to);
      } else {
        decode_row(matrix, row + i, to);
      }
    }
    for (size_t m = 0; m < shifted.size(); ++m) shifted[m] = out[m] + (row - job.begin);
    Job part = job;
    part.data = reinterpret_cast<const uint8_t*>(decoded.data());
    part.stride = row_bytes;
    part.n_rows = n;
    part.begin = 0;
    part.end = n;
    part.out = shifted.data();
    part.next = nullptr;
    isa.f32_rows(part);
  }
}

// Records that share L2 with an unpacked tile, the stored rows of the next one and the sums.
int64_t pass_bytes() {
  static const int64_t bytes = [] {
    constexpr int64_t kUnknown = 1024 * 1024;  // where the system does not say: the smallest L2 with AVX-512
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const int64_t l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
    const int64_t l2 = 0;
#endif
    return (l2 > 0 ? l2 : kUnknown) / 16 * 11;
  }();
  return bytes;
}

}  // namespace

void rows_with(const Isa& isa, const Matrix& matrix, int64_t row_begin, int64_t row_end,
               std::span<const std::byte* const> records, std::span<float* const> out, std::byte* scratch,
               const std::byte* next) {
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
          .scratch = scratch,
          .next = reinterpret_cast<const uint8_t*>(next),
          .pass_bytes = pass_bytes()};
  if (const JobKernel kernel = isa.find(matrix)) {
    kernel(job);
    return;
  }
  if (activation_kind(matrix) != ActivationKind::kFloat) {
    rows_scalar(matrix, row_begin, row_end, records, out, scratch, next);
    return;
  }
  decoded_rows(isa, job, matrix, out);
}

}  // namespace synod::cpu
