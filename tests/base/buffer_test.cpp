// Memory owners and file access.
#include "base/buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace synod {
namespace {

class Files : public testing::Test {
 protected:
  Files()
      : folder_(std::filesystem::temp_directory_path() /
                ("synod_buffer_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

template <typename F>
Error::Kind kind_of(F&& f, const std::string& expected_text) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(expected_text), std::string::npos) << e.what();
    return e.kind();
  }
  ADD_FAILURE() << "no error";
  return Error::Kind::kFailure;
}

TEST_F(Files, MapsAWholeFile) {
  const MappedFile file = MappedFile::open(write("f", "some bytes"));
  ASSERT_EQ(file.bytes().size(), 10U);
  EXPECT_EQ(static_cast<char>(file.bytes()[5]), 'b');
  EXPECT_EQ(file.path(), folder_ / "f");
}

TEST_F(Files, AnEmptyFileHasNoBytes) { EXPECT_TRUE(MappedFile::open(write("f", "")).bytes().empty()); }

TEST_F(Files, MovingKeepsTheMapping) {
  MappedFile first = MappedFile::open(write("f", "abc"));
  const std::byte* data = first.bytes().data();
  const MappedFile second = std::move(first);
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_EQ(static_cast<char>(second.bytes()[2]), 'c');
}

TEST_F(Files, MissingFilesAreNotFound) {
  EXPECT_EQ(kind_of([&] { MappedFile::open(folder_ / "none"); }, "none"), Error::Kind::kNotFound);
  write("f", "x");
  EXPECT_EQ(kind_of([&] { MappedFile::open(folder_ / "f" / "g"); }, "g"), Error::Kind::kNotFound);
}

TEST_F(Files, FoldersAreBadFiles) {
  EXPECT_EQ(kind_of([&] { MappedFile::open(folder_); }, "not a regular file"), Error::Kind::kBadFile);
}

TEST_F(Files, TextIsLimited) {
  const auto path = write("t", "12345");
  EXPECT_EQ(read_text_file(path, 5), "12345");
  EXPECT_EQ(kind_of([&] { read_text_file(path, 4); }, "at most 4 bytes, got 5"), Error::Kind::kBadFile);
}

TEST(Buffer, HostMemoryIsAlignedAndZero) {
  for (const int64_t n : {0, 1, 63, 64, 1000}) {
    const Buffer b = Buffer::host(n);
    EXPECT_EQ(b.bytes(), n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0U);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(b.data()[i], std::byte{0});
  }
}

TEST(Buffer, TheDeleterRunsOnce) {
  static int calls = 0;
  calls = 0;
  std::byte storage[4];
  {
    Buffer a = Buffer::adopt(storage, 4, [](std::byte*, int64_t n) { calls += static_cast<int>(n); });
    Buffer b = std::move(a);
    Buffer c;
    c = std::move(b);
    EXPECT_EQ(c.data(), storage);
    EXPECT_EQ(calls, 0);
  }
  EXPECT_EQ(calls, 4);
}

TEST(ErrorKinds, HaveTheExitCodesOfTheManual) {
  EXPECT_EQ(exit_code(Error::Kind::kFailure), 1);
  EXPECT_EQ(exit_code(Error::Kind::kUsage), 2);
  EXPECT_EQ(exit_code(Error::Kind::kBadFile), 3);
  EXPECT_EQ(exit_code(Error::Kind::kNoMemory), 4);
  EXPECT_EQ(exit_code(Error::Kind::kNotFound), 5);
  EXPECT_EQ(exit_code(Error::Kind::kNumeric), 1);
}

}  // namespace
}  // namespace synod
