// Sets of GGUF files: PREFIX-00001-of-00003.gguf and so on.
#include <gtest/gtest.h>

#include "formats/gguf.h"
#include "formats/test_files.h"

namespace synod {
namespace {

using test::error_of;
using test::GgufBytes;
using test::TempFolder;

GgufBytes shard(uint16_t no, uint16_t count, int32_t n_tensors) {
  GgufBytes g;
  if (no == 0) g.key_string("general.architecture", "test");
  g.key_u16("split.no", no)
      .key_u16("split.count", count)
      .key("split.tensors.count", 5, GgufBytes::raw(n_tensors));
  return g;
}

std::string file_name(int n, int count) { return fmt::format("m-{:05d}-of-{:05d}.gguf", n, count); }

std::string value(float v) { return GgufBytes::raw(v); }

// Three files with tensors t0, t1, t2 of values 0, 1, 2.
void write_set(const TempFolder& folder, int32_t n_tensors = 3) {
  for (uint16_t no = 0; no < 3; ++no) {
    GgufBytes g = shard(no, 3, n_tensors);
    folder.write(file_name(no + 1, 3), g.tensor(fmt::format("t{}", no), {1}, 0, value(no)).build());
  }
}

std::string open_error(const std::filesystem::path& path, Error::Kind kind = Error::Kind::kBadFile) {
  return error_of([&] { GgufFile::open(path); }, kind);
}

TEST(GgufSplit, ReadsAllFilesOfASet) {
  const TempFolder folder;
  write_set(folder);
  const GgufFile file = GgufFile::open(folder / file_name(1, 3));
  ASSERT_EQ(file.tensors().size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(*file.tensors()[i].as<float>(), static_cast<float>(i));
  EXPECT_EQ(file.metadata().get_string("general.architecture"), "test");
}

TEST(GgufSplit, StaysValidWhenMoved) {
  const TempFolder folder;
  write_set(folder);
  GgufFile file = GgufFile::open(folder / file_name(1, 3));
  const GgufFile moved = std::move(file);
  EXPECT_EQ(moved.tensors()[2].name, "t2");
  EXPECT_EQ(*moved.tensors()[2].as<float>(), 2.0F);
}

TEST(GgufSplit, TheFirstFileMayHaveNoTensors) {
  const TempFolder folder;
  folder.write(file_name(1, 2), shard(0, 2, 1).build());
  folder.write(file_name(2, 2), shard(1, 2, 1).tensor("t", {1}, 0, value(7)).build());
  EXPECT_EQ(*GgufFile::open(folder / file_name(1, 2)).tensors()[0].as<float>(), 7.0F);
}

TEST(GgufSplit, AnotherFileThanTheFirstIsToldWhichToGive) {
  const TempFolder folder;
  write_set(folder);
  const std::string message = open_error(folder / file_name(2, 3));
  EXPECT_CONTAINS(message, "file 2 of 3");
  EXPECT_CONTAINS(message, "give the first, m-00001-of-00003.gguf");
  std::filesystem::copy_file(folder / file_name(2, 3), folder / "renamed.gguf");
  EXPECT_CONTAINS(open_error(folder / "renamed.gguf"), "file 2 of 3");
}

TEST(GgufSplit, AMissingFileIsNamed) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::remove(folder / file_name(3, 3));
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3), Error::Kind::kNotFound), file_name(3, 3));
}

TEST(GgufSplit, SwappedFilesAreRefused) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::rename(folder / file_name(2, 3), folder / "x");
  std::filesystem::rename(folder / file_name(3, 3), folder / file_name(2, 3));
  std::filesystem::rename(folder / "x", folder / file_name(3, 3));
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3)), "split.no: expected 1, got 2");
}

TEST(GgufSplit, AFileUnderTheNameOfTheFirstIsRefused) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::rename(folder / file_name(2, 3), folder / file_name(1, 3));
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3)), "split.no: expected 0, got 1");
}

TEST(GgufSplit, DuplicatedFilesAreRefused) {
  const TempFolder folder;
  write_set(folder);
  std::filesystem::copy_file(folder / file_name(2, 3), folder / file_name(3, 3),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3)), "split.no: expected 2, got 1");
}

TEST(GgufSplit, ATensorInTwoFilesIsRefused) {
  const TempFolder folder;
  write_set(folder);
  folder.write(file_name(3, 3), shard(2, 3, 3).tensor("t0", {1}, 0, value(0)).build());
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3)), "tensor t0 appears in two files");
}

TEST(GgufSplit, TheNumberOfTensorsIsChecked) {
  const TempFolder folder;
  write_set(folder, 4);
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3)), "split.tensors.count: expected 3, got 4");
}

TEST(GgufSplit, TheNumberOfFilesIsChecked) {
  const TempFolder folder;
  folder.write(file_name(1, 3), shard(0, 2, 1).build());
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3)),
                  "split.count: expected 3 as in the file's name, got 2");
  folder.write("whole.gguf", shard(0, 2, 1).build());
  EXPECT_CONTAINS(open_error(folder / "whole.gguf"), "NAME-00001-of-00002.gguf");
  write_set(folder);
  folder.write(file_name(2, 3), shard(1, 4, 3).build());
  EXPECT_CONTAINS(open_error(folder / file_name(1, 3)), "split.count: expected 3, got 4");
}

TEST(GgufSplit, AMergedFileIsWhole) {
  const TempFolder folder;
  folder.write("m.gguf", shard(0, 0, 1).tensor("t", {1}, 0, value(1)).build());
  EXPECT_EQ(GgufFile::open(folder / "m.gguf").tensors().size(), 1U);
}

TEST(GgufSplit, TheFirstFileSpeaksForTheBlockLayoutOfAll) {
  const TempFolder folder;
  folder.write(file_name(2, 2), shard(1, 2, 1).tensor("q", {32}, 2, std::string(18, '\0')).build());
  folder.write(file_name(1, 2), shard(0, 2, 1).build());
  EXPECT_CONTAINS(open_error(folder / file_name(1, 2)), "general.quantization_version");
  folder.write(file_name(1, 2), shard(0, 2, 1).key_u32("general.quantization_version", 2).build());
  EXPECT_EQ(GgufFile::open(folder / file_name(1, 2)).tensors().size(), 1U);
}

}  // namespace
}  // namespace synod
