// What a kernel of one instruction set receives: raw pointers, so that its translation unit instantiates no
// library templates with its own target options.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/activation.h"
#include "cpu/isa/decoders.h"

namespace synod::cpu {

inline constexpr int64_t kPanelTokens = 512;      // tokens that share one unpacked tile
inline constexpr int64_t kTileRows = 32;          // rows of a tile
inline constexpr int64_t kTileBytes = 16 * 1024;  // unpacked codes and scales of a tile

struct Job {
  const uint8_t* data;  // row 0 of the matrix
  int64_t stride;       // bytes between rows
  int64_t n_rows;       // of the matrix: any of them may be read
  int64_t k;
  int64_t begin;  // rows to compute
  int64_t end;
  const std::byte* const* x;  // records, [n_tokens]
  float* const* out;          // [n_tokens], row `begin` first
  int64_t n_tokens;
  std::byte* scratch;             // scratch_bytes(n_tokens)
  const uint8_t* next = nullptr;  // what this thread reads after these rows; only ever prefetched
  int64_t pass_bytes = 0;  // of records that the rows of this job read again and again: they stay in L2
};

using JobKernel = void (*)(const Job& job);
// Computes float rows from rows decoded to f32 (job.data: [end - begin, k] f32, begin = 0).
struct Isa {
  // Kernel for the matrix's storage, or null: the scalar form runs.
  JobKernel (*find)(const Matrix& matrix);
  JobKernel f32_rows;  // float contract on f32 rows
  const Decoders* decoders;
};

void prepare_scalar(ActivationKind kind, const float* x, int64_t k, std::byte* record);
void rows_scalar(const Matrix& matrix, int64_t row_begin, int64_t row_end,
                 std::span<const std::byte* const> records, std::span<float* const> out, std::byte* scratch,
                 const std::byte* next);
// Runs the kernel that `isa` has for the matrix; else decodes rows for its f32 kernel, or runs the scalar
// form.
void rows_with(const Isa& isa, const Matrix& matrix, int64_t row_begin, int64_t row_end,
               std::span<const std::byte* const> records, std::span<float* const> out, std::byte* scratch,
               const std::byte* next);

#if defined(__x86_64__)
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
// Part of the AVX2 table: kernels of the block types, null for others.
JobKernel find_avx2_blocks(DType type);
// Parts of the AVX-512 table: kernels of the 256-value types, of those with codebooks; null for others.
JobKernel find_avx512_super_blocks(DType type);
JobKernel find_avx512_codebooks(DType type);
#endif

}  // namespace synod::cpu
