// Sharded safetensors: model.safetensors.index.json and its files.
#include <gtest/gtest.h>

#include "formats/safetensors.h"
#include "formats/test_files.h"

namespace synod {
namespace {

using test::error_of;
using test::TempFolder;

constexpr const char* kIndex = "model.safetensors.index.json";

void write_shard(const TempFolder& folder, std::string_view file, std::vector<std::string> names) {
  std::vector<float> values(names.size());
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    values[i] = static_cast<float>(names[i].back());
    tensors.push_back(Tensor::contiguous(&values[i], DType::kF32, {1}, names[i]));
  }
  write_safetensors(folder / file, tensors);
}

std::string open_error(const TempFolder& folder, Error::Kind kind = Error::Kind::kBadFile) {
  return error_of([&] { SafetensorsFile::open(folder.path()); }, kind);
}

struct Set : TempFolder {
  Set() {
    write_shard(*this, "s1.safetensors", {"a", "c"});
    write_shard(*this, "s2.safetensors", {"b"});
    index(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s1.safetensors"})");
  }
  void index(const std::string& map) const {
    write(kIndex, R"({"metadata":{"total_size":12},"weight_map":)" + map + "}");
  }
};

TEST(SafetensorsShards, ReadsAllShards) {
  const Set set;
  testing::internal::CaptureStderr();
  const SafetensorsFile file = SafetensorsFile::open(set.path());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(file.tensors().size(), 3U);
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_NE(file.find(name), nullptr) << name;
    EXPECT_EQ(*file.find(name)->as<float>(), static_cast<float>(*name));
  }
}

TEST(SafetensorsShards, TheIndexWinsOverASingleFile) {
  const Set set;
  write_shard(set, "model.safetensors", {"other"});
  EXPECT_EQ(SafetensorsFile::open(set.path()).find("other"), nullptr);
}

TEST(SafetensorsShards, ASingleFileNeedsNoIndex) {
  const TempFolder folder;
  write_shard(folder, "model.safetensors", {"a"});
  EXPECT_NE(SafetensorsFile::open(folder.path()).find("a"), nullptr);
}

TEST(SafetensorsShards, MissingFilesAreNamed) {
  const TempFolder empty;
  EXPECT_CONTAINS(open_error(empty, Error::Kind::kNotFound), "model.safetensors.index.json");
  const Set set;
  std::filesystem::remove(set / "s2.safetensors");
  EXPECT_CONTAINS(open_error(set, Error::Kind::kNotFound), "s2.safetensors");
}

TEST(SafetensorsShards, MappedTensorsMustBeInTheirFile) {
  const Set set;
  set.index(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s1.safetensors","d":"s2.safetensors"})");
  EXPECT_CONTAINS(open_error(set), "tensor d is not in s2.safetensors");
  set.index(R"({"a":"s2.safetensors","b":"s2.safetensors","c":"s1.safetensors"})");
  EXPECT_CONTAINS(open_error(set), "tensor a: expected it in s2.safetensors, found it in s1.safetensors");
}

TEST(SafetensorsShards, ATensorInTwoShardsIsRefused) {
  const Set set;
  write_shard(set, "s2.safetensors", {"a", "b"});
  EXPECT_CONTAINS(open_error(set), "tensor a is in two shards");
}

TEST(SafetensorsShards, UnmappedTensorsWarn) {
  const Set set;
  set.index(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  testing::internal::CaptureStderr();
  const SafetensorsFile file = SafetensorsFile::open(set.path());
  EXPECT_CONTAINS(testing::internal::GetCapturedStderr(),
                  "1 tensors of the shards are not in the index, first c");
  EXPECT_NE(file.find("c"), nullptr);
}

TEST(SafetensorsShards, FileNamesMustBePlain) {
  const Set set;
  for (const char* name :
       {"../s1.safetensors", "/etc/passwd", "..", ".", "", "x/s1.safetensors", "x\\\\y", "a\\u0000b"}) {
    set.index(std::string(R"({"a":")") + name + "\"}");
    EXPECT_CONTAINS(open_error(set), "expected a plain file name");
  }
  set.index(R"({"a":")" + std::string(5000, 'x') + "\"}");
  open_error(set, Error::Kind::kNotFound);
}

TEST(SafetensorsShards, RefusesDamagedIndexes) {
  const Set set;
  for (const char* map : {"1", "[]", R"({"a":1})", R"({"a":"s1.safetensors","a":"s2.safetensors"})"}) {
    set.index(map);
    open_error(set);
  }
  for (const char* text : {"", "[]", "{}", "{", "null"}) {
    set.write(kIndex, text);
    open_error(set);
  }
}

}  // namespace
}  // namespace synod
