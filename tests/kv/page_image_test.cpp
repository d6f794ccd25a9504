// Images come back bit for bit, or not at all.
#include "kv/page_image.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "kv/cache_geometry.h"

namespace synod {
namespace {

constexpr int64_t kVocab = 1000;
constexpr uint64_t kFingerprint = 0x1234;

CacheSpec small_spec() {
  CacheSpec spec;
  spec.groups.push_back(make_group({.name = "full", .layers = {0, 1}, .row_dim = 2}));
  spec.groups.push_back(
      make_group({.name = "window", .layers = {0}, .row_dim = 1, .window = 20, .boundary_rows = 19}));
  return spec;
}

Buffer host(int64_t bytes) { return Buffer::host(bytes); }

class Image : public ::testing::Test {
 protected:
  Image() : cache_(small_spec(), host) {
    const SequenceId id = cache_.create();
    cache_.reserve(id, kLength);
    cache_.commit(id, kLength);
    image_.fingerprint = kFingerprint;
    image_.length = kLength;
    for (int64_t i = 0; i < kLength; ++i) image_.ids.push_back(static_cast<int32_t>(i % kVocab));
    auto& runs = image_.sets.emplace_back();
    for (int g = 0; g < 2; ++g) {
      runs.push_back(cache_.share(id, g, cache_.first_page(id, g),
                                  page_count(cache_.spec().groups[static_cast<size_t>(g)], kLength)));
      for (const PageId page : runs.back().pages) {
        uint8_t value = static_cast<uint8_t>(g * 100 + page);
        for (std::byte& b : cache_.data(g, page)) b = std::byte{value++};
      }
    }
    write_image(
        image_, cache_.spec(), page_bytes(image_, cache_), cache_.copy(),
        [&](std::span<const std::byte> part) { bytes_.insert(bytes_.end(), part.begin(), part.end()); });
  }

  Error::Kind refused(std::span<const std::byte> bytes, uint64_t fingerprint = kFingerprint) {
    const int64_t pages = cache_.page_count();
    try {
      read_image(bytes, fingerprint, kVocab, cache_, "image");
    } catch (const Error& error) {
      EXPECT_EQ(cache_.page_count(), pages) << "pages were left behind";
      return error.kind();
    }
    ADD_FAILURE() << "was accepted";
    return Error::Kind::kFailure;
  }

  static constexpr int64_t kLength = 300;
  KvCache cache_;
  PageImage image_;
  std::vector<std::byte> bytes_;
};

TEST_F(Image, ComesBackBitForBit) {
  KvCache other(small_spec(), host);
  const PageImage read = read_image(bytes_, kFingerprint, kVocab, other, "image");
  EXPECT_EQ(read.ids, image_.ids);
  EXPECT_EQ(read.length, kLength);
  EXPECT_NO_THROW(check_sequence(read, other.spec(), "image"));
  for (int g = 0; g < 2; ++g) {
    const PageRun &want = image_.sets[0][static_cast<size_t>(g)], &got = read.sets[0][static_cast<size_t>(g)];
    ASSERT_EQ(got.first, want.first);
    ASSERT_EQ(got.pages.size(), want.pages.size());
    for (size_t i = 0; i < got.pages.size(); ++i) {
      const auto a = other.data(g, got.pages[i]), b = cache_.data(g, want.pages[i]);
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    }
  }
}

TEST_F(Image, EveryCutAndEveryChangedByteIsRefused) {
  for (size_t n = 0; n < bytes_.size(); n += n < 400 ? 1 : 97) {
    EXPECT_EQ(refused(std::span(bytes_).first(n)), Error::Kind::kBadFile) << n;
  }
  for (size_t i = 0; i < bytes_.size(); i += i < 400 ? 1 : 61) {
    std::vector<std::byte> damaged = bytes_;
    damaged[i] ^= std::byte{0x10};
    EXPECT_EQ(refused(damaged), Error::Kind::kBadFile) << i;
  }
  std::vector<std::byte> longer = bytes_;
  longer.resize(longer.size() + 8);
  EXPECT_EQ(refused(longer), Error::Kind::kBadFile);
  EXPECT_EQ(refused(bytes_, kFingerprint + 1), Error::Kind::kBadFile);
}

// Numbers that lie, under a checksum that is right.
TEST_F(Image, EveryHeaderFieldIsCheckedByItself) {
  for (size_t at = 16; at + 8 <= 16 + 8 * 14; at += 8) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{1} << 31, uint64_t{1} << 62,
                                 ~uint64_t{0}, uint64_t{1} << 63}) {
      std::vector<std::byte> lie = bytes_;
      std::memcpy(lie.data() + at, &value, 8);
      Checksum sum;
      sum.add(std::span(lie).first(lie.size() - 8));
      const uint64_t right = sum.value();
      std::memcpy(lie.data() + lie.size() - 8, &right, 8);
      try {
        KvCache other(small_spec(), host);
        const PageImage image = read_image(lie, kFingerprint, kVocab, other, "image");
        check_sequence(image, other.spec(), "image");
        const SequenceId id = other.adopt(image.length, image.sets[0], image.floor);
        other.reserve(id, 10);  // what was accepted can be used
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << at << " " << error.what();
      }
    }
  }
}

TEST_F(Image, WithoutMemoryNothingIsLeft) {
  KvCache tiny(small_spec(), host, 3000);
  EXPECT_THROW(read_image(bytes_, kFingerprint, kVocab, tiny, "image"), Error);
  EXPECT_EQ(tiny.page_count(), 0);
}

TEST(Checksum, DoesNotDependOnHowBytesAreCut) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 100; ++i) bytes.push_back(static_cast<std::byte>(i * 37));
  Checksum whole;
  whole.add(bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    Checksum parts;
    parts.add(std::span(bytes).first(cut));
    parts.add(std::span(bytes).subspan(cut));
    EXPECT_EQ(parts.value(), whole.value()) << cut;
    Checksum shorter;
    shorter.add(std::span(bytes).first(cut));
    if (cut < bytes.size()) {
      EXPECT_NE(shorter.value(), whole.value());
    }
  }
}

}  // namespace
}  // namespace synod
