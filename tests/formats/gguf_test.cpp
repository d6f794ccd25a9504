// The GGUF reader on well-formed and damaged single files.
#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <limits>

#include "formats/test_files.h"

namespace synod {
namespace {

using test::bytes_of;
using test::error_of;
using test::GgufBytes;

constexpr uint32_t kArray = 9, kString = 8, kF32 = 0, kF16 = 1, kQ4_0 = 2;

std::string floats(int n) {
  std::string s;
  for (int i = 0; i < n; ++i) s += GgufBytes::raw(static_cast<float>(i));
  return s;
}

GgufBytes small_file() {
  GgufBytes g;
  g.key_string("general.architecture", "gemma4");
  g.key("names", kArray,
        GgufBytes::raw(kString) + GgufBytes::raw(uint64_t{2}) + GgufBytes::text("x") + GgufBytes::text("yz"));
  g.key("numbers", kArray, GgufBytes::raw(uint32_t{2}) + GgufBytes::raw(uint64_t{3}) + std::string(6, '\1'));
  g.key_u32("count", 7);
  g.tensor("w", {3, 2}, kF32, floats(6));
  g.tensor("v", {2}, kF16, std::string(4, '\2'));
  return g;
}

GgufFile parse(std::string_view bytes) { return GgufFile::parse(bytes_of(bytes), "test.gguf"); }
std::string parse_error(std::string_view bytes) {
  return error_of([&] { parse(bytes); });
}
std::string parse_error(GgufBytes g) { return parse_error(g.build()); }

TEST(Gguf, ShapesAreOutermostFirstAndDataIsInPlace) {
  const std::string bytes = small_file().build();
  const GgufFile file = parse(bytes);
  ASSERT_EQ(file.tensors().size(), 2U);
  const Tensor& w = file.tensors()[0];
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(shape_string(w), "[2, 3]");
  EXPECT_EQ(w.row_as<float>(1)[2], 5.0F);
  EXPECT_EQ(file.tensors()[1].type, DType::kF16);
  EXPECT_EQ(file.data_bytes(), 28);
  EXPECT_EQ(file.metadata().get_int("count"), 7);
  EXPECT_EQ(*file.metadata().find_strings("names"), (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(*file.metadata().find_ints("numbers"), (std::vector<int64_t>{257, 257, 257}));
}

TEST(Gguf, ReadsVersion2AndFilesWithoutTensors) {
  GgufBytes g = small_file();
  g.version = 2;
  const std::string bytes = g.build();
  EXPECT_EQ(parse(bytes).tensors().size(), 2U);
  GgufBytes empty;
  const std::string empty_bytes = empty.key_u32("a", 1).build();
  EXPECT_EQ(parse(empty_bytes).tensors().size(), 0U);
}

TEST(Gguf, RankZeroIsOneValue) {
  GgufBytes g;
  const std::string bytes = g.tensor("s", {}, kF32, floats(1)).build();
  EXPECT_EQ(shape_string(parse(bytes).tensors()[0]), "[1]");
}

TEST(Gguf, TokensMayHoldAnyBytes) {
  GgufBytes g;
  g.key_string("token", std::string("\xff\x00\xfe", 3));
  const std::string bytes = g.build();
  EXPECT_EQ(parse(bytes).metadata().get_string("token"), std::string("\xff\x00\xfe", 3));
}

TEST(Gguf, RefusesOtherMagicVersionsAndByteOrders) {
  std::string bytes = small_file().build();
  EXPECT_CONTAINS(parse_error(""), "GGUF");
  EXPECT_CONTAINS(parse_error("GG"), "not a GGUF file");
  EXPECT_CONTAINS(parse_error("ggml" + bytes.substr(4)), "not a GGUF file");
  const auto with_version = [&](uint32_t v) {
    return bytes.substr(0, 4) + GgufBytes::raw(v) + bytes.substr(8);
  };
  EXPECT_CONTAINS(parse_error(with_version(0x03000000)), "big-endian");
  EXPECT_CONTAINS(parse_error(with_version(0x02000000)), "big-endian");
  EXPECT_CONTAINS(parse_error(with_version(0)), "got 0");
  EXPECT_CONTAINS(parse_error(with_version(1)), "got 1");
  EXPECT_CONTAINS(parse_error(with_version(4)), "got 4");
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string bytes = small_file().build();
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);  // exact copy: ASan sees a read past its end
    error_of([&] { parse(cut); });
  }
  parse(bytes);
}

TEST(Gguf, EveryLengthFieldSurvivesExtremeValues) {
  const test::QuietLog quiet;
  GgufBytes g = small_file();
  const std::string bytes = g.build();
  const std::vector<uint64_t> extremes = {0,
                                          1,
                                          uint64_t{1} << 31,
                                          (uint64_t{1} << 32) - 1,
                                          (uint64_t{1} << 63) - 1,
                                          uint64_t{1} << 63,
                                          std::numeric_limits<uint64_t>::max() - 31,
                                          std::numeric_limits<uint64_t>::max()};
  int refused = 0;
  for (const GgufBytes::Field& field : g.fields) {
    for (const uint64_t extreme : extremes) {
      std::string damaged = bytes;
      std::memcpy(damaged.data() + field.offset, &extreme, field.bytes);
      try {
        const GgufFile file = parse(damaged);
        for (const Tensor& t : file.tensors()) {
          ASSERT_GE(reinterpret_cast<const char*>(t.data), damaged.data()) << field.name;
          ASSERT_LE(reinterpret_cast<const char*>(t.data) + t.bytes(), damaged.data() + damaged.size())
              << field.name;
        }
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), Error::Kind::kBadFile) << field.name << " " << extreme << ": " << e.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 80);
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  const auto header = [](uint64_t tensors, uint64_t keys) {
    return "GGUF" + GgufBytes::raw(uint32_t{3}) + GgufBytes::raw(tensors) + GgufBytes::raw(keys) +
           std::string(240, '\0');
  };
  EXPECT_CONTAINS(parse_error(header(11, 0)), "at most 10 tensors");
  EXPECT_CONTAINS(parse_error(header(0, 19)), "at most 18 keys");
  EXPECT_CONTAINS(parse_error(header(uint64_t{1} << 63, 0)), "tensors");
}

TEST(Gguf, RefusesDuplicatesNamingThem) {
  EXPECT_CONTAINS(parse_error(small_file().key_u32("count", 8)), "key count: appears twice");
  EXPECT_CONTAINS(parse_error(small_file().tensor("w", {2}, kF32, floats(2))), "tensor w: appears twice");
}

TEST(Gguf, RefusesBadKeysAndNames) {
  EXPECT_CONTAINS(parse_error(small_file().key_u32("", 8)), "1 to 65535 bytes");
  EXPECT_CONTAINS(parse_error(small_file().key_u32(std::string(65536, 'k'), 8)), "1 to 65535 bytes");
  EXPECT_CONTAINS(parse_error(small_file().key_u32(std::string("a\0b", 3), 8)), "ASCII");
  EXPECT_CONTAINS(parse_error(small_file().key_u32("caf\xc3\xa9", 8)), "ASCII");
  EXPECT_CONTAINS(parse_error(small_file().tensor("", {1}, kF32, floats(1))), "1 to 63 bytes");
  EXPECT_CONTAINS(parse_error(small_file().tensor(std::string(64, 'n'), {1}, kF32, floats(1))),
                  "1 to 63 bytes");
  EXPECT_CONTAINS(parse_error(small_file().tensor(std::string("a\0b", 3), {1}, kF32, floats(1))), "NUL");
  std::string longest = small_file().tensor(std::string(63, 'n'), {1}, kF32, floats(1)).build();
  EXPECT_EQ(parse(longest).tensors().size(), 3U);
}

TEST(Gguf, MessagesDoNotCarryControlCharacters) {
  const std::string message = parse_error(small_file().tensor("\x1b[2J", {1}, 99, floats(1)));
  EXPECT_CONTAINS(message, "\\x1b[2J");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST(Gguf, RefusesUnknownValueTypes) {
  EXPECT_CONTAINS(parse_error(small_file().key("odd", 13, "x")), "key odd: unknown value type 13");
  const auto array = [](uint32_t type, uint64_t count) {
    return GgufBytes::raw(type) + GgufBytes::raw(count) + std::string(64, '\0');
  };
  EXPECT_CONTAINS(parse_error(small_file().key("odd", kArray, array(13, 1))),
                  "key odd: unknown element type 13");
  EXPECT_CONTAINS(parse_error(small_file().key("odd", kArray, array(kArray, 1))), "arrays of arrays");
  EXPECT_CONTAINS(parse_error(small_file().key("odd", 7, std::string("\2", 1))), "key odd: expected a bool");
  EXPECT_CONTAINS(parse_error(small_file().key(
                      "odd", kArray, GgufBytes::raw(uint32_t{7}) + GgufBytes::raw(uint64_t{2}) + "\1\3")),
                  "key odd: expected bools");
}

TEST(Gguf, RefusesArraysThatTheFileCannotHold) {
  for (uint32_t type = 0; type <= 12; ++type) {
    if (type == kArray) continue;
    // 2^61 + 1 elements of 8 bytes, 2^62 + 1 of 4 and so on are 8, 4, ... bytes modulo 2^64.
    for (const uint64_t count : {uint64_t{65}, (uint64_t{1} << 61) + 1, (uint64_t{1} << 62) + 1,
                                 (uint64_t{1} << 63) + 1, ~uint64_t{0}}) {
      GgufBytes g;
      g.key("a", kArray, GgufBytes::raw(type) + GgufBytes::raw(count) + std::string(64, '\0'));
      EXPECT_CONTAINS(parse_error(g), "array elements in this file");
    }
  }
}

TEST(Gguf, RefusesUnknownTensorTypesNamingTensorAndId) {
  for (const uint32_t id : {4, 5, 31, 32, 33, 36, 37, 38, 43, 96, 137, 0x7fffffff}) {
    const std::string message = parse_error(small_file().tensor("blk.0.x", {32}, id, std::string(128, '\0')));
    EXPECT_CONTAINS(message, "tensor blk.0.x");
    EXPECT_CONTAINS(message, "id " + std::to_string(id));
  }
}

TEST(Gguf, RefusesBadShapes) {
  const std::string data = floats(8);
  EXPECT_CONTAINS(parse_error(small_file().tensor("t", {1, 1, 1, 1, 1}, kF32, data)), "at most 4 dimensions");
  EXPECT_CONTAINS(parse_error(small_file().tensor("t", {4, 0}, kF32, data)), "at least 1");
  EXPECT_CONTAINS(parse_error(small_file().tensor("t", {uint64_t{1} << 63}, kF32, data)), "below 2^63");
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_CONTAINS(parse_error(small_file().tensor("t", {big, big}, kF32, data)), "2^63");
  EXPECT_CONTAINS(parse_error(small_file().tensor("t", {big, big / 2 - 1}, kF32, data)), "2^63 bytes");
  EXPECT_CONTAINS(parse_error(small_file().tensor("t", {big, big / 16}, kF32, data)), "past the end");
  // Fewer than 2^63 bytes, but not a number of values that fits.
  EXPECT_CONTAINS(parse_error(small_file().tensor("t", {big, big / 2}, kQ4_0, data)),
                  "product of its dimensions");
  GgufBytes q = small_file();
  q.key_u32("general.quantization_version", 2).tensor("t", {48}, kQ4_0, std::string(27, '\0'));
  EXPECT_CONTAINS(parse_error(q), "multiple of 32");
}

TEST(Gguf, RefusesBadOffsets) {
  GgufBytes g = small_file();
  g.infos[1].offset = 28;
  EXPECT_CONTAINS(parse_error(g), "tensor v: expected an offset that is a multiple of 32");
  g.infos[1].offset = 64;
  EXPECT_CONTAINS(parse_error(g), "past the end");
  g.infos[1].offset = std::numeric_limits<uint64_t>::max() - 31;
  EXPECT_CONTAINS(parse_error(g), "past the end");
  g.infos[1].offset = 0;
  EXPECT_CONTAINS(parse_error(g), "overlap");
}

TEST(Gguf, AcceptsTensorsOutOfOrderWithAWarning) {
  GgufBytes g = small_file();
  std::swap(g.infos[0], g.infos[1]);
  const std::string bytes = g.build();
  testing::internal::CaptureStderr();
  const GgufFile file = parse(bytes);
  EXPECT_CONTAINS(testing::internal::GetCapturedStderr(), "tensor v: expected offset 0, got 32");
  EXPECT_EQ(file.tensors()[1].row_as<float>(0)[1], 1.0F);
}

TEST(Gguf, ContiguousFilesDoNotWarn) {
  const std::string bytes = small_file().build();
  testing::internal::CaptureStderr();
  parse(bytes);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Gguf, HonoursAlignment) {
  for (const uint32_t alignment : {8U, 64U, 4096U}) {
    GgufBytes g;
    g.alignment = alignment;
    g.key_u32("general.alignment", alignment)
        .tensor("w", {3}, kF32, floats(3))
        .tensor("v", {2}, kF32, floats(2));
    const std::string bytes = g.build();
    const GgufFile file = parse(bytes);
    EXPECT_EQ((reinterpret_cast<const char*>(file.tensors()[0].data) - bytes.data()) % alignment, 0)
        << alignment;
    EXPECT_EQ(file.tensors()[1].row_as<float>(0)[1], 1.0F) << alignment;
  }
}

TEST(Gguf, RefusesBadAlignment) {
  for (const uint32_t alignment : {0U, 1U, 4U, 24U, 33U}) {
    EXPECT_CONTAINS(parse_error(small_file().key_u32("general.alignment", alignment)), "power of two");
  }
  EXPECT_CONTAINS(parse_error(small_file().key_u32("general.alignment", 1U << 31)), "multiple of 2147483648");
  EXPECT_CONTAINS(parse_error(small_file().key_string("general.alignment", "32")), "expected a u32");
  EXPECT_CONTAINS(parse_error(small_file().key("general.alignment", 10, GgufBytes::raw(uint64_t{32}))),
                  "expected a u32");
}

TEST(Gguf, QuantisedTensorsNeedVersion2OfTheBlockLayouts) {
  const auto quantised = [] {
    GgufBytes g = small_file();
    g.tensor("q", {32}, kQ4_0, std::string(18, '\0'));
    return g;
  };
  EXPECT_CONTAINS(parse_error(quantised()), "general.quantization_version");
  EXPECT_CONTAINS(parse_error(quantised().key_u32("general.quantization_version", 1)), "expected 2");
  EXPECT_CONTAINS(parse_error(quantised().key_string("general.quantization_version", "2")), "an integer");
  const std::string bytes = quantised().key_u32("general.quantization_version", 2).build();
  EXPECT_EQ(parse(bytes).tensors()[2].bytes(), 18);
  const std::string plain = small_file().key_u32("general.quantization_version", 1).build();
  EXPECT_EQ(parse(plain).tensors().size(), 2U);
}

}  // namespace
}  // namespace synod
