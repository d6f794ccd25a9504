// One decoder per block type, by family in *_blocks.cpp. Each writes Block::kSize values.
// f32 arithmetic in the order of the formulas, so that results equal ggml's bit for bit.
#pragma once

#include "quant/blocks.h"

namespace synod {

void decode_block(const BlockQ4_0& b, float* out);
void decode_block(const BlockQ4_1& b, float* out);
void decode_block(const BlockQ5_0& b, float* out);
void decode_block(const BlockQ5_1& b, float* out);
void decode_block(const BlockQ8_0& b, float* out);
void decode_block(const BlockQ8_1& b, float* out);
void decode_block(const BlockIQ4_NL& b, float* out);
void decode_block(const BlockMXFP4& b, float* out);
void decode_block(const BlockNVFP4& b, float* out);

void decode_block(const BlockQ2_K& b, float* out);
void decode_block(const BlockQ3_K& b, float* out);
void decode_block(const BlockQ4_K& b, float* out);
void decode_block(const BlockQ5_K& b, float* out);
void decode_block(const BlockQ6_K& b, float* out);
void decode_block(const BlockQ8_K& b, float* out);

void decode_block(const BlockTQ1_0& b, float* out);
void decode_block(const BlockTQ2_0& b, float* out);
void decode_block(const BlockQ1_0& b, float* out);
void decode_block(const BlockQ2_0& b, float* out);

void decode_block(const BlockIQ4_XS& b, float* out);
void decode_block(const BlockIQ2_XXS& b, float* out);
void decode_block(const BlockIQ2_XS& b, float* out);
void decode_block(const BlockIQ2_S& b, float* out);
void decode_block(const BlockIQ3_XXS& b, float* out);
void decode_block(const BlockIQ3_S& b, float* out);
void decode_block(const BlockIQ1_S& b, float* out);
void decode_block(const BlockIQ1_M& b, float* out);

// Quantises 32 finite values. Throws Error when a value is not finite or too large for an f16 scale.
BlockQ8_0 encode_q8_0(const float* in);

}  // namespace synod
