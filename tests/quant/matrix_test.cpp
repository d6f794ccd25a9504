// Every storage against a reader that knows only the bit layouts, plus slicing and byte counts.
#include "quant/matrix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "quant/quant_test_data.h"

namespace synod::quant_test {
namespace {

// Bits [bit, bit + width) of a little-endian bit stream, one at a time.
unsigned bits_at(const std::byte* bytes, int64_t bit, int width) {
  unsigned value = 0;
  for (int i = 0; i < width; ++i) {
    const int64_t p = bit + i;
    value |= (std::to_integer<unsigned>(bytes[p / 8]) >> (p % 8) & 1U) << i;
  }
  return value;
}

float slow_e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15);
  const int mantissa = static_cast<int>(code & 7);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}

float slow_e2m1(unsigned code) {
  const int exponent = static_cast<int>(code >> 1 & 3);
  const int mantissa = static_cast<int>(code & 1);
  const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(2 + mantissa, exponent - 2);
  return static_cast<float>((code & 8) != 0 ? -magnitude : magnitude);
}

float slow_scale(DType type, const std::byte* bytes, int64_t index) {
  switch (type) {
    case DType::kF8E8M0:
      return static_cast<float>(std::ldexp(1.0, static_cast<int>(bits_at(bytes, 8 * index, 8)) - 127));
    case DType::kF8E4M3:
      return slow_e4m3(bits_at(bytes, 8 * index, 8));
    case DType::kBF16: {
      const uint32_t word = bits_at(bytes, 16 * index, 16) << 16;
      float value;
      std::memcpy(&value, &word, 4);
      return value;
    }
    case DType::kF16: {
      const unsigned code = bits_at(bytes, 16 * index, 16);
      const int exponent = static_cast<int>(code >> 10 & 31);
      const int mantissa = static_cast<int>(code & 1023);
      const double m = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      return static_cast<float>((code & 0x8000) != 0 ? -m : m);
    }
    default: {
      float value;
      std::memcpy(&value, bytes + 4 * index, 4);
      return value;
    }
  }
}

// Random scales of either sign in [2^-6, 2^2), or E8M0 codes of that size.
Bytes random_scales(DType type, int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes out(static_cast<size_t>(n * info(type).block_bytes));
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i * info(type).block_bytes);
    const uint32_t exponent = random() % 8;
    const uint32_t sign = random() & 1U;
    const uint32_t mantissa = random();
    switch (type) {
      case DType::kF8E8M0:
        put(out, at, static_cast<uint8_t>(121 + exponent));
        break;
      case DType::kF8E4M3:
        put(out, at, static_cast<uint8_t>(random() % 0x7f));
        break;
      case DType::kBF16:
        put(out, at, static_cast<uint16_t>(sign << 15 | (121 + exponent) << 7 | (mantissa & 0x7fU)));
        break;
      case DType::kF16:
        put(out, at, static_cast<uint16_t>(sign << 15 | (9 + exponent) << 10 | (mantissa & 0x3ffU)));
        break;
      default:
        put(out, at, sign << 31 | (121 + exponent) << 23 | (mantissa & 0x7fffffU));
    }
  }
  return out;
}

Bytes random_e4m3(int64_t n, uint32_t seed) {
  Bytes codes = random_bytes(static_cast<size_t>(n), seed);
  for (std::byte& c : codes) {
    if ((c & std::byte{0x7f}) == std::byte{0x7f}) c ^= std::byte{1};  // no NaN
  }
  return codes;
}

std::vector<float> row_of(const Matrix& m, int64_t row) {
  std::vector<float> out(static_cast<size_t>(m.n_in));
  decode_row(m, row, out.data());
  return out;
}

// Rows of every slice, and of slices of slices, equal the rows of the whole.
void expect_slices_agree(const Matrix& m) {
  std::vector<int64_t> cuts = {0, 1, m.n_out / 3, m.n_out / 2, m.n_out - 1, m.n_out};
  if (m.n_out > 130) cuts.insert(cuts.end(), {127, 128, 129, 130});
  for (const int64_t begin : cuts) {
    for (const int64_t end : cuts) {
      if (begin >= end) continue;
      const Matrix slice = m.rows(begin, end);
      ASSERT_EQ(slice.n_out, end - begin);
      for (const int64_t row : {int64_t{0}, (end - begin) / 2, end - begin - 1}) {
        expect_same_bits(row_of(slice, row), row_of(m, begin + row), "slice");
        const Matrix one = slice.rows(row, row + 1);
        expect_same_bits(row_of(one, 0), row_of(m, begin + row), "slice of a slice");
      }
    }
  }
  EXPECT_FALSE(static_cast<bool>(m.rows(1, 1)));
}

TEST(Matrix, PlainAndBlockRowsEqualTheCodec) {
  const Bytes blocks = read_data("q6_k.bin");  // [6, 1024]
  const std::vector<float> want = decoded(DType::kQ6_K, blocks);
  const Tensor tensor =
      Tensor::contiguous(const_cast<std::byte*>(blocks.data()), DType::kQ6_K, {6, 1024}, "w");
  const Matrix m = matrix_of(tensor);
  EXPECT_EQ(m.storage, Storage::kBlock);
  EXPECT_EQ(m.name, "w");
  EXPECT_EQ(m.code_bytes(), 4 * 210);
  EXPECT_EQ(m.bytes(), 6 * 4 * 210);
  for (int64_t r = 0; r < 6; ++r) {
    expect_same_bits(row_of(m, r), {want.begin() + r * 1024, want.begin() + (r + 1) * 1024}, "q6_k");
  }
  expect_slices_agree(m);

  // A strided view: columns 3 to 7 of a [5, 11] matrix.
  std::vector<float> values(55);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5F;
  const Matrix view = matrix_of(Tensor::contiguous(values.data(), DType::kF32, {5, 11}).slice(1, 3, 8));
  EXPECT_EQ(view.storage, Storage::kPlain);
  EXPECT_EQ(view.bytes(), 5 * 5 * 4);
  expect_same_bits(row_of(view, 2), {25.5F, 26.5F, 27.5F, 28.5F, 29.5F}, "view");
  expect_slices_agree(view);
}

TEST(Matrix, RefusesTensorsThatAreNoMatrix) {
  std::vector<float> values(64);
  const auto refused = [&](DType type, std::initializer_list<int64_t> shape) {
    try {
      matrix_of(Tensor::contiguous(values.data(), type, shape, "blk.7.w"));
    } catch (const Error& e) {
      return e.kind() == Error::Kind::kBadFile && std::string(e.what()).find("blk.7.w") == 0;
    }
    return false;
  };
  EXPECT_TRUE(refused(DType::kF32, {8}));
  EXPECT_TRUE(refused(DType::kF32, {2, 2, 2}));
  EXPECT_TRUE(refused(DType::kI32, {2, 2}));
  EXPECT_TRUE(refused(DType::kF8E4M3, {2, 2}));
  EXPECT_TRUE(refused(DType::kQ8_0, {2, 33}));
}

struct Fp8Shape {
  int64_t n_out, n_in, tile_out, tile_in;
};

TEST(Matrix, Fp8TilesMayBePartialAtBothEdges) {
  const Fp8Shape shapes[] = {
      {300, 200, 128, 128}, {128, 128, 128, 128}, {129, 257, 128, 128},
      {5, 7, 128, 128},     {37, 130, 1, 130},  // one scale per output
      {37, 130, 37, 130},                       // one scale per matrix
      {260, 96, 64, 32},
  };
  uint32_t seed = 1;
  for (const Fp8Shape& s : shapes) {
    for (const DType scale_type : {DType::kF8E8M0, DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(testing::Message() << s.n_out << "x" << s.n_in << " " << name(scale_type));
      const int64_t tile_rows = (s.n_out + s.tile_out - 1) / s.tile_out;
      const int64_t tile_columns = (s.n_in + s.tile_in - 1) / s.tile_in;
      const Bytes codes = random_e4m3(s.n_out * s.n_in, seed++);
      const Bytes scales = random_scales(scale_type, tile_rows * tile_columns, seed++);
      Matrix m;
      m.storage = Storage::kFp8Block;
      m.type = DType::kF8E4M3;
      m.n_out = s.n_out;
      m.n_in = s.n_in;
      m.data = codes.data();
      m.row_stride = s.n_in;
      m.scales = scales.data();
      m.scale_type = scale_type;
      m.scale_stride = tile_columns * info(scale_type).block_bytes;
      m.group = s.tile_in;
      m.tile_out = s.tile_out;
      for (int64_t r = 0; r < s.n_out; ++r) {
        std::vector<float> want;
        for (int64_t k = 0; k < s.n_in; ++k) {
          want.push_back(
              slow_e4m3(bits_at(codes.data(), 8 * (r * s.n_in + k), 8)) *
              slow_scale(scale_type, scales.data(), r / s.tile_out * tile_columns + k / s.tile_in));
        }
        expect_same_bits(row_of(m, r), want, "fp8");
      }
      expect_slices_agree(m);
      EXPECT_EQ(m.bytes(), static_cast<int64_t>(codes.size() + scales.size()));
    }
  }
}

TEST(Matrix, Fp8SlicesCountTheTilesTheyTouch) {
  Matrix m;
  m.storage = Storage::kFp8Block;
  m.n_out = 300;
  m.n_in = 200;
  m.row_stride = 200;
  m.scale_stride = 8;
  m.group = m.tile_out = 128;
  EXPECT_EQ(m.bytes(), 300 * 200 + 3 * 2 * 4);
  const Matrix slice = m.rows(127, 129);
  EXPECT_EQ(slice.row_offset, 127);
  EXPECT_EQ(slice.bytes(), 2 * 200 + 2 * 2 * 4);
  EXPECT_EQ(slice.rows(1, 2).row_offset, 0);
  EXPECT_EQ(slice.rows(1, 2).bytes(), 200 + 2 * 4);
  EXPECT_EQ(m.rows(5, 5).bytes(), 0);
  EXPECT_EQ(slice.data, nullptr);  // a dry run stays one
  EXPECT_EQ(slice.scales, nullptr);
}

TEST(Matrix, GroupedFloatCodesTimesGroupScale) {
  struct Format {
    Storage storage;
    int bits;
    int64_t group;
    DType scale_type;
  };
  const Format formats[] = {{Storage::kFp4, 4, 32, DType::kF8E8M0},
                            {Storage::kNvFp4, 4, 16, DType::kF8E4M3},
                            {Storage::kMxFp8, 8, 32, DType::kF8E8M0}};
  uint32_t seed = 50;
  for (const Format& f : formats) {
    for (const int64_t n_in : {32, 96, 352}) {
      SCOPED_TRACE(testing::Message() << name(f.storage) << " " << n_in);
      const int64_t n_out = 13;
      const int64_t row_codes = n_in * f.bits / 8;
      const Bytes codes = random_e4m3(n_out * row_codes, seed++);
      const int64_t groups = n_in / f.group;
      Bytes scales = random_scales(f.scale_type, n_out * groups, seed++);
      if (f.storage != Storage::kNvFp4) scales[1] = std::byte{0};  // 2^-127
      Matrix m;
      m.storage = f.storage;
      m.type = DType::kU8;
      m.n_out = n_out;
      m.n_in = n_in;
      m.data = codes.data();
      m.row_stride = row_codes;
      m.scales = scales.data();
      m.scale_type = DType::kU8;  // as some files label them
      m.scale_stride = groups;
      m.group = f.group;
      EXPECT_EQ(m.code_bytes(), row_codes);
      EXPECT_EQ(m.bytes(), n_out * (row_codes + groups));
      for (int64_t r = 0; r < n_out; ++r) {
        std::vector<float> want;
        for (int64_t k = 0; k < n_in; ++k) {
          const unsigned code = bits_at(codes.data(), 8 * r * row_codes + f.bits * k, f.bits);
          const float value = f.bits == 4 ? slow_e2m1(code) : slow_e4m3(code);
          want.push_back(value * slow_scale(f.scale_type, scales.data(), r * groups + k / f.group));
        }
        expect_same_bits(row_of(m, r), want, "codes");
      }
      expect_slices_agree(m);
    }
  }
}

Matrix mlx_matrix(const Bytes& codes, const Bytes& scales, const Bytes& biases, int64_t n_out, int64_t n_in,
                  int bits, int64_t group, DType scale_type) {
  Matrix m;
  m.storage = Storage::kMlxAffine;
  m.type = DType::kU8;
  m.n_out = n_out;
  m.n_in = n_in;
  m.data = codes.data();
  m.row_stride = n_in * bits / 8;
  m.scales = scales.data();
  m.biases = biases.data();
  m.scale_type = scale_type;
  m.scale_stride = n_in / group * info(scale_type).block_bytes;
  m.group = group;
  m.bits = bits;
  return m;
}

TEST(Matrix, MlxAffineReadsTheBitStreamForAllWidthsAndGroups) {
  uint32_t seed = 100;
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int64_t group : {32, 64, 128}) {
      for (const DType scale_type : {DType::kBF16, DType::kF16, DType::kF32}) {
        SCOPED_TRACE(testing::Message() << bits << " bits, group " << group << ", " << name(scale_type));
        const int64_t n_out = 5;
        const int64_t n_in = 3 * group;
        const Bytes codes = random_bytes(static_cast<size_t>(n_out * n_in * bits / 8), seed++);
        const Bytes scales = random_scales(scale_type, n_out * 3, seed++);
        const Bytes biases = random_scales(scale_type, n_out * 3, seed++);
        const Matrix m = mlx_matrix(codes, scales, biases, n_out, n_in, bits, group, scale_type);
        for (int64_t r = 0; r < n_out; ++r) {
          std::vector<float> want;
          for (int64_t k = 0; k < n_in; ++k) {
            const auto code = static_cast<float>(bits_at(codes.data(), (r * n_in + k) * bits, bits));
            const float product = slow_scale(scale_type, scales.data(), r * 3 + k / group) * code;
            want.push_back(product + slow_scale(scale_type, biases.data(), r * 3 + k / group));
          }
          expect_same_bits(row_of(m, r), want, "affine");
        }
        expect_slices_agree(m);
        EXPECT_EQ(m.bytes(), static_cast<int64_t>(codes.size() + scales.size() + biases.size()));
      }
    }
  }
}

TEST(Matrix, MlxAffineEqualsThePublishedPackings) {
  struct Example {
    int bits;
    std::string hex;  // repeated to fill 32 values
    std::vector<float> codes;
  };
  const Example examples[] = {{3, "88c6fa", {0, 1, 2, 3, 4, 5, 6, 7}},
                              {5, "1f444444f0", {31, 0, 17, 8, 4, 2, 1, 30}},
                              {6, "813010", {1, 2, 3, 4}}};
  const Bytes scales = from_hex("803f");  // bf16 1
  const Bytes zero = from_hex("0000");
  for (const Example& e : examples) {
    Bytes codes;
    while (codes.size() < static_cast<size_t>(4 * e.bits)) {
      const Bytes unit = from_hex(e.hex);
      codes.insert(codes.end(), unit.begin(), unit.end());
    }
    const std::vector<float> row =
        row_of(mlx_matrix(codes, scales, zero, 1, 32, e.bits, 32, DType::kBF16), 0);
    for (size_t i = 0; i < row.size(); ++i)
      EXPECT_EQ(row[i], e.codes[i % e.codes.size()]) << e.bits << " " << i;
  }
}

// The same codes and group scales as compressed-tensors, ModelOpt and GGUF store them.
struct NvFp4Trio {
  Bytes codes, scales, gguf;
  Matrix divided, multiplied, block;
};

NvFp4Trio nvfp4_trio(int64_t n_out, int64_t n_in, float divisor, float multiplier) {
  NvFp4Trio t;
  t.codes = random_bytes(static_cast<size_t>(n_out * n_in / 2), 11);
  t.scales = random_scales(DType::kF8E4M3, n_out * n_in / 16, 12);
  t.gguf.resize(static_cast<size_t>(n_out * n_in / 64 * 36));
  for (int64_t i = 0; i < n_out * n_in; ++i) {
    const int64_t base = i / 64 * 36;
    const int64_t sub = i % 64 / 16;
    const int64_t r = i % 16;
    t.gguf[static_cast<size_t>(base + sub)] = t.scales[static_cast<size_t>(i / 16)];
    const unsigned code = bits_at(t.codes.data(), 4 * i, 4);
    t.gguf[static_cast<size_t>(base + 4 + 8 * sub + r % 8)] |=
        static_cast<std::byte>(code << (r < 8 ? 0 : 4));
  }
  Matrix m;
  m.storage = Storage::kNvFp4;
  m.type = DType::kU8;
  m.n_out = n_out;
  m.n_in = n_in;
  m.data = t.codes.data();
  m.row_stride = n_in / 2;
  m.scales = t.scales.data();
  m.scale_type = DType::kF8E4M3;
  m.scale_stride = n_in / 16;
  m.group = 16;
  t.multiplied = m;
  t.multiplied.global_scale = multiplier;
  t.divided = m;
  t.divided.global_scale = divisor;
  t.divided.global_divides = true;
  t.block = matrix_of(Tensor::contiguous(t.gguf.data(), DType::kNVFP4, {n_out, n_in}));
  t.block.global_scale = multiplier;
  return t;
}

TEST(Matrix, NvFp4DecodesAlikeInAllThreeContainers) {
  const NvFp4Trio t = nvfp4_trio(7, 192, 4096.0F, 0x1p-12F);
  for (int64_t r = 0; r < 7; ++r) {
    const std::vector<float> a = row_of(t.divided, r);
    EXPECT_EQ(a, row_of(t.multiplied, r));  // by value: GGUF's table has no negative zero
    EXPECT_EQ(a, row_of(t.block, r));
  }
  expect_slices_agree(t.divided);
}

TEST(Matrix, NvFp4AppliesItsGlobalScaleWithOneRounding) {
  const float divisor = 2688.0F / 0.7F;
  const float multiplier = 0.7F / 2688.0F;
  const NvFp4Trio t = nvfp4_trio(7, 192, divisor, multiplier);
  for (int64_t r = 0; r < 7; ++r) {
    std::vector<float> quotients, products;
    for (int64_t k = 0; k < 192; ++k) {
      const int64_t i = r * 192 + k;
      const double exact = static_cast<double>(slow_e2m1(bits_at(t.codes.data(), 4 * i, 4))) *
                           slow_e4m3(bits_at(t.scales.data(), i / 16 * 8, 8));
      // A quotient of two f32 rounded to f64 first never changes the f32 result (53 >= 2 * 24 + 2 bits).
      quotients.push_back(static_cast<float>(exact / static_cast<double>(divisor)));
      products.push_back(static_cast<float>(exact * static_cast<double>(multiplier)));
    }
    expect_same_bits(row_of(t.divided, r), quotients, "divisor");
    expect_same_bits(row_of(t.multiplied, r), products, "multiplier");
    EXPECT_EQ(row_of(t.block, r), products);
  }
}

}  // namespace
}  // namespace synod::quant_test
