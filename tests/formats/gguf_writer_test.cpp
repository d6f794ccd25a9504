// GgufWriter: what it writes reads back, and what is unfinished leaves no trace.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <numeric>

#include "formats/gguf.h"
#include "formats/test_files.h"

namespace synod {
namespace {

using test::error_of;
using test::TempFolder;

std::vector<std::byte> pattern(int64_t n, int seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(n));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed));
  return bytes;
}

GgufMetadata every_type() {
  GgufMetadata m;
  m.set_string("general.architecture", "test");
  m.set("u8", {uint8_t{255}});
  m.set("i8", {int8_t{-128}});
  m.set("u16", {uint16_t{65535}});
  m.set("i16", {int16_t{-32768}});
  m.set_u32("u32", 0xffffffffU);
  m.set("i32", {int32_t{-7}});
  m.set_f32("f32", 1.5F);
  m.set_bool("true", true);
  m.set_bool("false", false);
  m.set("u64", {~uint64_t{0}});
  m.set("i64", {int64_t{-1} << 62});
  m.set("f64", {0.1});
  m.set_string("empty", "");
  m.set_string("binary", std::string("\0\xff", 2));
  m.set_u32s("u32s", {1, 2, 3});
  m.set_i32s("i32s", {-1});
  m.set_f32s("f32s", {});
  m.set_bools("bools", {true, false});
  m.set_strings("strings", {"a", "", "\xe2\x96\x81x"});
  m.set_strings("no_strings", {});
  for (const DType t :
       {DType::kU8, DType::kI8, DType::kU16, DType::kI16, DType::kU64, DType::kI64, DType::kF64}) {
    m.set("array." + std::string(name(t)), {GgufValue::Array{t, pattern(3 * row_bytes(t, 1), 5), 3}});
  }
  return m;
}

bool equal(const GgufValue& a, const GgufValue& b) {
  if (a.value.index() != b.value.index()) return false;
  const auto* x = std::get_if<GgufValue::Array>(&a.value);
  const auto* y = std::get_if<GgufValue::Array>(&b.value);
  if (x != nullptr) return x->element == y->element && x->count == y->count && x->bytes == y->bytes;
  return std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, GgufValue::Array>) {
          return false;
        } else {
          return v == std::get<T>(b.value);
        }
      },
      a.value);
}

TEST(GgufWriter, EveryMetadataTypeReadsBack) {
  const TempFolder folder;
  const GgufMetadata m = every_type();
  GgufWriter writer(folder / "m.gguf");
  writer.metadata() = m;
  writer.finish();
  const GgufFile file = GgufFile::open(folder / "m.gguf");
  ASSERT_EQ(file.metadata().entries().size(), m.entries().size());
  for (size_t i = 0; i < m.entries().size(); ++i) {
    EXPECT_EQ(file.metadata().entries()[i].first, m.entries()[i].first);
    EXPECT_TRUE(equal(file.metadata().entries()[i].second, m.entries()[i].second)) << m.entries()[i].first;
  }
}

TEST(GgufWriter, TensorsOfEveryTypeReadBack) {
  const TempFolder folder;
  GgufWriter writer(folder / "m.gguf");
  struct Written {
    std::string name;
    std::vector<std::byte> bytes;
  };
  std::vector<Written> written;
  for (const DType t : {
#define SYNOD_DTYPE(enumerator, dtype_name, id, values, bytes) DType::enumerator,
#include "base/dtypes.def"
#undef SYNOD_DTYPE
       }) {
    if (info(t).ggml_id < 0) continue;
    const std::string tensor = "t." + std::string(name(t));
    writer.declare(tensor, t, {3, 2, 2 * info(t).block_values});
    written.push_back({tensor, pattern(6 * row_bytes(t, 2 * info(t).block_values), info(t).ggml_id)});
  }
  for (const Written& w : written) {  // in two pieces
    const std::span<const std::byte> bytes(w.bytes);
    writer.write(bytes.first(5));
    writer.write(bytes.subspan(5));
  }
  writer.finish();
  testing::internal::CaptureStderr();
  const GgufFile file = GgufFile::open(folder / "m.gguf");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(file.tensors().size(), written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    const Tensor& t = file.tensors()[i];
    EXPECT_EQ(t.name, written[i].name);
    EXPECT_EQ(t.dim(0), 3);
    EXPECT_EQ(t.dim(1), 2);
    ASSERT_EQ(t.bytes(), static_cast<int64_t>(written[i].bytes.size()));
    EXPECT_EQ(std::memcmp(t.data, written[i].bytes.data(), written[i].bytes.size()), 0) << t.name;
  }
  EXPECT_EQ(file.metadata().get_int("general.quantization_version"), 2);
  EXPECT_EQ(std::filesystem::file_size(folder / "m.gguf") % 32, 0U);
}

TEST(GgufWriter, LargeTensorsPassTheBuffer) {
  const TempFolder folder;
  GgufWriter writer(folder / "m.gguf");
  constexpr int64_t kValues = 3'000'001;
  writer.declare("small", DType::kI8, {5});
  writer.declare("large", DType::kI8, {kValues});
  const auto small = pattern(5, 1), large = pattern(kValues, 2);
  writer.write(small);
  writer.write(large);
  writer.finish();
  const GgufFile file = GgufFile::open(folder / "m.gguf");
  EXPECT_EQ(std::memcmp(file.tensors()[1].data, large.data(), large.size()), 0);
}

TEST(GgufWriter, KeepsTheAlignmentOfItsMetadata) {
  const TempFolder folder;
  GgufWriter writer(folder / "m.gguf");
  writer.metadata().set_u32("general.alignment", 256);
  writer.declare("a", DType::kI8, {5});
  writer.declare("b", DType::kI8, {5});
  const auto bytes = pattern(5, 1);
  writer.write(bytes);
  writer.write(bytes);
  writer.finish();
  const GgufFile file = GgufFile::open(folder / "m.gguf");
  EXPECT_EQ(file.tensors()[1].data - file.tensors()[0].data, 256);
  EXPECT_EQ(std::memcmp(file.tensors()[1].data, bytes.data(), bytes.size()), 0);
}

TEST(GgufWriter, AnUnfinishedFileLeavesNothingBehind) {
  const TempFolder folder;
  {
    GgufWriter writer(folder / "m.gguf");
    writer.declare("a", DType::kI8, {5});
    writer.write(pattern(3, 1));
    EXPECT_EQ(folder.files().size(), 1U);
    EXPECT_NE(folder.files()[0], "m.gguf");
    EXPECT_CONTAINS(error_of([&] { writer.finish(); }, Error::Kind::kFailure),
                    "tensor a: expected 5 bytes, got 3");
  }
  EXPECT_TRUE(folder.files().empty());
}

TEST(GgufWriter, AnUnfinishedFileKeepsTheOldOne) {
  const TempFolder folder;
  folder.write("m.gguf", "old");
  {
    GgufWriter writer(folder / "m.gguf");
    writer.declare("a", DType::kI8, {1});
  }
  EXPECT_EQ(folder.files(), std::vector<std::string>{"m.gguf"});
  EXPECT_EQ(test::read_all(folder / "m.gguf"), "old");
  GgufWriter writer(folder / "m.gguf");
  writer.finish();
  EXPECT_EQ(folder.files(), std::vector<std::string>{"m.gguf"});
  EXPECT_EQ(GgufFile::open(folder / "m.gguf").tensors().size(), 0U);
}

TEST(GgufWriter, RefusesWhatTheFormatCannotHold) {
  const TempFolder folder;
  GgufWriter writer(folder / "m.gguf");
  const auto declare_error = [&](std::string name, DType type, std::vector<int64_t> shape) {
    return error_of([&] { writer.declare(std::move(name), type, std::move(shape)); }, Error::Kind::kFailure);
  };
  EXPECT_CONTAINS(declare_error(std::string(64, 'x'), DType::kF32, {1}), "1 to 63 bytes");
  EXPECT_CONTAINS(declare_error("x", DType::kF8E4M3, {1}), "f8_e4m3");
  EXPECT_CONTAINS(declare_error("x2", DType::kQ4_K, {2, 32}), "[2, 32]");
  EXPECT_CONTAINS(declare_error("x3", DType::kF32, {2, 0}), "[2, 0]");
  EXPECT_CONTAINS(declare_error("x4", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}), "x4");
  EXPECT_CONTAINS(declare_error("x5", DType::kF32, {1, 1, 1, 1, 1}), "1 to 4 dimensions");
  writer.declare("a", DType::kI8, {4});
  EXPECT_CONTAINS(declare_error("a", DType::kI8, {4}), "declared twice");
  EXPECT_CONTAINS(error_of([&] { writer.write(pattern(5, 0)); }, Error::Kind::kFailure),
                  "expected 4 bytes, got 5");
}

TEST(GgufWriter, AnUnwritableFolderIsAnErrorWithThePath) {
  const auto open = [] { GgufWriter writer("/proc/no/such/folder/m.gguf"); };
  EXPECT_CONTAINS(error_of(open, Error::Kind::kFailure), "/proc/no/such/folder/m.gguf");
}

TEST(GgufWriter, AFullDiskIsAnErrorAndLeavesNothingBehind) {
  const TempFolder folder;
  // A limit on file size fails like a full disk, once its signal is ignored.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  {
    GgufWriter writer(folder / "m.gguf");
    writer.declare("a", DType::kI8, {4 << 20});
    const auto bytes = pattern(4 << 20, 0);
    message = error_of(
        [&] {
          writer.write(bytes);
          writer.finish();
        },
        Error::Kind::kFailure);
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_CONTAINS(message, "m.gguf: cannot write");
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace synod
