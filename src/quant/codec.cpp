// The table of codecs: one row per stored type.
#include "quant/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "quant/block_decoders.h"
#include "quant/small_floats.h"

namespace synod {
namespace {

static_assert(std::endian::native == std::endian::little, "stored types are little-endian");

struct Codec {
  DType type;
  void (*decode)(const std::byte* in, int64_t n_blocks, float* out) = nullptr;
  void (*encode)(const float* in, int64_t n_blocks, std::byte* out) = nullptr;
  int64_t (*first_bad)(const std::byte* in, int64_t n_blocks) = nullptr;  // n_blocks when all are valid
};

template <typename T>
T load(const std::byte* in, int64_t index) {
  T value;
  std::memcpy(&value, in + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* out, int64_t index, const T& value) {
  std::memcpy(out + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

consteval bool has_geometry(DType type, int64_t block_values, int64_t block_bytes) {
#define SYNOD_DTYPE(enumerator, name, id, values, bytes) \
  if (type == DType::enumerator) return block_values == (values) && block_bytes == (bytes);
#include "base/dtypes.def"
#undef SYNOD_DTYPE
  return false;
}

// Plain types.

template <typename T>
float to_f32(T value) {
  return static_cast<float>(value);
}
float bool_to_f32(uint8_t value) { return value != 0 ? 1.0F : 0.0F; }
// E5M2 is the upper byte of an f16.
float e5m2_to_f32(uint8_t code) { return f16_to_f32(static_cast<uint16_t>(code << 8)); }

template <typename T, float (*kToF32)(T)>
void decode_values(const std::byte* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = kToF32(load<T>(in, i));
}

template <typename T, T (*kFromF32)(float)>
void encode_values(const float* in, int64_t n, std::byte* out) {
  for (int64_t i = 0; i < n; ++i) store(out, i, kFromF32(in[i]));
}

template <typename T, bool (*kValid)(T)>
int64_t first_bad_value(const std::byte* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!kValid(load<T>(in, i))) return i;
  }
  return n;
}

void copy_from_f32(const float* in, int64_t n, std::byte* out) {
  std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
}
void copy_to_f32(const std::byte* in, int64_t n, float* out) {
  std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
}

template <DType kType, typename T, float (*kToF32)(T) = to_f32<T>>
consteval Codec plain() {
  static_assert(has_geometry(kType, 1, sizeof(T)));
  return {kType, decode_values<T, kToF32>};
}

template <DType kType, float (*kToF32)(uint16_t), uint16_t (*kFromF32)(float)>
consteval Codec half() {
  static_assert(has_geometry(kType, 1, 2));
  return {kType, decode_values<uint16_t, kToF32>, encode_values<uint16_t, kFromF32>};
}

bool e4m3_valid(uint8_t code) { return (code & 0x7f) != 0x7f; }
bool e8m0_valid(uint8_t code) { return code != 0xff; }

template <DType kType, float (*kToF32)(uint8_t), bool (*kValid)(uint8_t)>
consteval Codec float8() {
  return {kType, decode_values<uint8_t, kToF32>, nullptr, first_bad_value<uint8_t, kValid>};
}

// Block types.

bool finite_f16(uint16_t bits) { return (bits & 0x7c00U) != 0x7c00U; }
bool finite_scale(uint16_t bits) { return finite_f16(bits); }
bool finite_scale(float value) { return std::isfinite(value); }

template <typename Block>
bool valid_block(const Block& b) {
  bool valid = finite_scale(b.d);
  if constexpr (requires { b.m; }) valid = valid && finite_f16(b.m);
  if constexpr (requires { b.s; }) valid = valid && finite_f16(b.s);
  if constexpr (requires { b.dmin; }) valid = valid && finite_f16(b.dmin);
  return valid;
}
bool valid_block(const BlockMXFP4& b) { return e8m0_valid(b.e); }
bool valid_block(const BlockNVFP4& b) {
  return std::all_of(std::begin(b.scale), std::end(b.scale), [](uint8_t code) { return code < 0x7f; });
}
bool valid_block(const BlockIQ1_M& b) { return finite_f16(iq1_m_d(b.scales)); }

template <typename Block>
void decode_blocks(const std::byte* in, int64_t n_blocks, float* out) {
  for (int64_t i = 0; i < n_blocks; ++i) decode_block(load<Block>(in, i), out + i * Block::kSize);
}

template <typename Block>
int64_t first_bad_block(const std::byte* in, int64_t n_blocks) {
  for (int64_t i = 0; i < n_blocks; ++i) {
    if (!valid_block(load<Block>(in, i))) return i;
  }
  return n_blocks;
}

void encode_q8_0_blocks(const float* in, int64_t n_blocks, std::byte* out) {
  for (int64_t i = 0; i < n_blocks; ++i) store(out, i, encode_q8_0(in + i * BlockQ8_0::kSize));
}

template <DType kType, typename Block>
consteval Codec blocks() {
  static_assert(has_geometry(kType, Block::kSize, sizeof(Block)));
  return {kType, decode_blocks<Block>, nullptr, first_bad_block<Block>};
}

constexpr std::array kCodecs = {
    Codec{DType::kF32, copy_to_f32, copy_from_f32},
    half<DType::kF16, f16_to_f32, f32_to_f16>(),
    half<DType::kBF16, bf16_to_f32, f32_to_bf16>(),
    plain<DType::kF64, double>(),
    plain<DType::kI8, int8_t>(),
    plain<DType::kI16, int16_t>(),
    plain<DType::kI32, int32_t>(),
    plain<DType::kI64, int64_t>(),
    blocks<DType::kQ4_0, BlockQ4_0>(),
    blocks<DType::kQ4_1, BlockQ4_1>(),
    blocks<DType::kQ5_0, BlockQ5_0>(),
    blocks<DType::kQ5_1, BlockQ5_1>(),
    Codec{DType::kQ8_0, decode_blocks<BlockQ8_0>, encode_q8_0_blocks, first_bad_block<BlockQ8_0>},
    blocks<DType::kQ8_1, BlockQ8_1>(),
    blocks<DType::kQ2_K, BlockQ2_K>(),
    blocks<DType::kQ3_K, BlockQ3_K>(),
    blocks<DType::kQ4_K, BlockQ4_K>(),
    blocks<DType::kQ5_K, BlockQ5_K>(),
    blocks<DType::kQ6_K, BlockQ6_K>(),
    blocks<DType::kQ8_K, BlockQ8_K>(),
    blocks<DType::kIQ2_XXS, BlockIQ2_XXS>(),
    blocks<DType::kIQ2_XS, BlockIQ2_XS>(),
    blocks<DType::kIQ3_XXS, BlockIQ3_XXS>(),
    blocks<DType::kIQ1_S, BlockIQ1_S>(),
    blocks<DType::kIQ4_NL, BlockIQ4_NL>(),
    blocks<DType::kIQ3_S, BlockIQ3_S>(),
    blocks<DType::kIQ2_S, BlockIQ2_S>(),
    blocks<DType::kIQ4_XS, BlockIQ4_XS>(),
    blocks<DType::kIQ1_M, BlockIQ1_M>(),
    blocks<DType::kTQ1_0, BlockTQ1_0>(),
    blocks<DType::kTQ2_0, BlockTQ2_0>(),
    blocks<DType::kMXFP4, BlockMXFP4>(),
    blocks<DType::kNVFP4, BlockNVFP4>(),
    blocks<DType::kQ1_0, BlockQ1_0>(),
    blocks<DType::kQ2_0, BlockQ2_0>(),
    plain<DType::kBool, uint8_t, bool_to_f32>(),
    plain<DType::kU8, uint8_t>(),
    plain<DType::kU16, uint16_t>(),
    plain<DType::kU32, uint32_t>(),
    plain<DType::kU64, uint64_t>(),
    float8<DType::kF8E4M3, e4m3_to_f32, e4m3_valid>(),
    plain<DType::kF8E5M2, uint8_t, e5m2_to_f32>(),
    float8<DType::kF8E8M0, e8m0_to_f32, e8m0_valid>(),
};

consteval bool in_order_of_dtype() {
  for (size_t i = 0; i < kCodecs.size(); ++i) {
    if (static_cast<size_t>(kCodecs[i].type) != i) return false;
  }
  return true;
}
static_assert(in_order_of_dtype());

const Codec* codec_of(DType type) {
  const auto index = static_cast<size_t>(type);
  return index < kCodecs.size() ? &kCodecs[index] : nullptr;
}

int64_t whole_blocks(DType type, int64_t n) {
  SYNOD_ASSERT(n >= 0 && n % info(type).block_values == 0);
  return n / info(type).block_values;
}

}  // namespace

bool can_decode(DType type) { return codec_of(type) != nullptr; }

void decode(DType type, const std::byte* in, int64_t n, float* out) {
  SYNOD_ASSERT(can_decode(type));
  codec_of(type)->decode(in, whole_blocks(type, n), out);
}

bool can_encode(DType type) { return codec_of(type) != nullptr && codec_of(type)->encode != nullptr; }

void encode(DType type, const float* in, int64_t n, std::byte* out) {
  SYNOD_ASSERT(can_encode(type));
  codec_of(type)->encode(in, whole_blocks(type, n), out);
}

bool valid_blocks(DType type, std::span<const std::byte> blocks, int64_t* first_bad) {
  SYNOD_ASSERT(codec_of(type) != nullptr);
  const auto bytes = static_cast<int64_t>(blocks.size());
  SYNOD_ASSERT(bytes % info(type).block_bytes == 0);
  if (codec_of(type)->first_bad == nullptr) return true;
  const int64_t n_blocks = bytes / info(type).block_bytes;
  const int64_t bad = codec_of(type)->first_bad(blocks.data(), n_blocks);
  if (bad == n_blocks) return true;
  if (first_bad != nullptr) *first_bad = bad;
  return false;
}

}  // namespace synod
