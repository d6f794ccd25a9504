// Encoders of every stored type that `convert` and `quantize` write: one row of f32 weights to blocks, with
// or without importance weights.
//
// The unit is a row because some types look at all of it (Q4_0 to Q5_1 with importance use the mean square of
// the row). A row's bytes depend on that row, its importance and the type alone, so callers may spread the
// rows of a matrix over threads in any way.
//
// Bytes equal those of ggml's quantizers for f16, bf16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4,
// NVFP4, TQ1_0 and TQ2_0 (one exception: MXFP4 blocks below 2^-125, where ggml's exponent wraps around).
// The codebook types (IQ1, IQ2, IQ3) search their grids exhaustively: other bytes than ggml's, less weighted
// error. There, columns of zero importance keep a trace of weight.
//
// All functions may be called from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace synod {

// True for f32, f16, bf16, Q4_0 to Q8_0, Q2_K to Q6_K, all IQ types, TQ1_0, TQ2_0, MXFP4 and NVFP4.
bool can_encode_row(DType type);

// False for the types whose encoder has no use for importance (f32, f16, bf16, Q8_0, MXFP4, NVFP4, TQ1_0,
// TQ2_0): their bytes are the same with and without.
bool uses_importance(DType type);

// True for IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS and IQ2_S: at that size a model is of little use unless importance
// steers the errors, and ggml refuses to go without. The encoders here do work without (each weight then
// counts by its square plus the mean square); the caller decides whether to refuse or to warn.
bool wants_importance(DType type);

// What became of the importance weights of a row.
enum class ImportanceUse : uint8_t {
  kNone,       // none given
  kUsed,       // given and valid (also for types that do not look at them)
  kNotFinite,  // a NaN or an infinity: the row was encoded as if none had been given
  kNegative,   // a negative entry: likewise
  kAllZero,    // nothing was ever measured: likewise
};
// Of these, the ones a caller should warn about.
constexpr bool is_rejected(ImportanceUse use) { return use > ImportanceUse::kUsed; }

// Looks at importance weights as encode_row does: once per matrix (or expert) is enough for a warning.
// Single zeros beside positive entries are valid: such columns do not count.
ImportanceUse check_importance(std::span<const float> importance);

// Encodes one row.
//   x           f32 [n], n a whole number of blocks of `type`; every value finite
//   importance  f32 [n], mean square of the activations that meet each column, or empty
//   out         row_bytes(type, n) bytes, at any alignment; contents are unspecified after an error
//   row         only for messages
// Throws Error: kUsage when n is no whole number of blocks, when importance has another length or `type` has
// no encoder; kNumeric, naming row and column, when a value is not finite or too large for the scales of
// `type` (NVFP4 alone saturates, at 6 * 448: its range is the business of the tensor scale beside it).
ImportanceUse encode_row(DType type, std::span<const float> x, std::span<const float> importance,
                         std::byte* out, int64_t row = 0);

// Index of the first block that holds a scale no reader should accept (NaN or infinite f16, E8M0 255, NVFP4
// scale codes from 0x7F), or of the first f16, bf16 or f32 value that is not finite; -1 when all are fine.
// `bytes` must be a whole number of blocks of a type with can_encode_row.
int64_t validate_blocks(DType type, std::span<const std::byte> bytes);

}  // namespace synod
