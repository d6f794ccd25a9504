// The kernel table of one instruction set: products of stored rows with quantized or float activations.
//
// Contract of a sum (the same in every instruction set, for one token and for many; design: order of
// summation). Block types: activations are quantized per 256 values (super-block types) or per 32 (32-value
// types): q in [-127, 127], nearest even, dx = amax / 127. For one output, blocks ascending, one f32 chain
// from +0:
//   super-block types  acc = fma(rn(d * dx), float(I), acc), then for types with mins
//                      acc = fma(-rn(dmin * dx), float(J), acc); I = sum S w q and J = sum M q are exact
//                      integers
//   codebook types     as super-block types with integer weights: the scale (2 s + 1) is S, the power of two
//                      that the format divides by goes into d (exactly). IQ2_*: d / 8, IQ3_XXS: d / 4; IQ1_*:
//                      w = 8 * coordinate +- 1 and d / 8
//   ternary types      w in {-1, 0, 1}, S = 1
//   32-value types     acc = fma(rn(d * dx), float(I), acc), then fma(rn(m * dx), float(sum q), acc) where
//                      there is m
// Types without block sums of that form (plain values, FP8, FP4, MLX, NVFP4, Q1_0, Q2_0, blocks under a
// matrix factor) use float sums: weights as decode_row gives them, 32 lanes over k (lane j takes k = j mod
// 32) by fma, then a fixed pairwise tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "quant/matrix.h"

namespace synod::cpu {

// How the activations of one token must be prepared for a matrix.
enum class ActivationKind : uint8_t {
  kFloat,      // f32 as they are
  kBlocks32,   // one scale per 32 values
  kBlocks256,  // one scale per 256 values
  // As kBlocks256, stored transposed: a dword holds the same coordinate of four neighbouring codebook
  // entries, which is how an expanded entry meets it without a shuffle.
  kBlocks256By4,  // every 16 values as a 4 x 4 matrix (entries of 4 values)
  kBlocks256By8,  // every 32 values as a 4 x 8 matrix (entries of 8 values)
};
ActivationKind activation_kind(const Matrix& matrix);

// Bytes of the prepared activations of one token of `k` values; 64-byte aligned records.
int64_t record_bytes(ActivationKind kind, int64_t k);

struct KernelTable {
  std::string_view name;  // "scalar", "avx2", "avx512"

  // Prepares one token's activations x [k] into `record`. For kFloat this is a copy. Non-finite input gives a
  // record whose products are NaN.
  void (*prepare)(ActivationKind kind, const float* x, int64_t k, std::byte* record);

  // out[m][r - row_begin] = row r of the matrix times token m, for r in [row_begin, row_end), m in [0,
  // n_tokens). Picks the one-row kernel or the tile kernel by n_tokens; both give the same bits. `scratch` is
  // per thread, scratch_bytes(n_tokens) long, 64-byte aligned. `next`: stored rows that this thread will read
  // next, or null; kernels bring their first bytes into the cache while they finish.
  void rows(const Matrix& matrix, int64_t row_begin, int64_t row_end,
            std::span<const std::byte* const> records, std::span<float* const> out, std::byte* scratch,
            const std::byte* next = nullptr) const {
    run_rows(matrix, row_begin, row_end, records, out, scratch, next);
  }

  void (*run_rows)(const Matrix& matrix, int64_t row_begin, int64_t row_end,
                   std::span<const std::byte* const> records, std::span<float* const> out, std::byte* scratch,
                   const std::byte* next);
};

int64_t scratch_bytes(int64_t n_tokens);

// Best table this CPU runs; `pinned` ("scalar", "avx2", "avx512", "" = best) as SYNOD_CPU_ISA gives it.
// Throws kUsage for an unknown name or one this CPU cannot run.
const KernelTable& kernel_table(std::string_view pinned = {});
// Every table this CPU can run, slowest first.
std::span<const KernelTable* const> available_tables();

}  // namespace synod::cpu
