#include "convert/row_pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "convert/sha256.h"
#include "temp_folder.h"

namespace synod {
namespace {

TEST(RowPipeline, ResultsArriveInOrderWhateverTheThreads) {
  for (const int n_threads : {1, 2, 7}) {
    std::vector<int64_t> taken;
    std::atomic<int64_t> started{0}, behind{0};
    const RowPipeline pipeline{
        .n_threads = n_threads,
        .make =
            [&](int64_t i, int worker, std::vector<std::byte>& out) {
              EXPECT_LT(worker, n_threads);
              ++started;
              if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
              out.assign(static_cast<size_t>(i % 7), static_cast<std::byte>(i));
            },
        .take =
            [&](int64_t i, std::vector<std::byte>& bytes) {
              taken.push_back(i);
              behind = std::max<int64_t>(behind, started - i);
              EXPECT_EQ(bytes, std::vector<std::byte>(static_cast<size_t>(i % 7), static_cast<std::byte>(i)));
              return true;
            }};
    EXPECT_TRUE(pipeline.run(300));
    ASSERT_EQ(taken.size(), 300U);
    for (int64_t i = 0; i < 300; ++i) ASSERT_EQ(taken[static_cast<size_t>(i)], i);
    EXPECT_LE(behind, n_threads * 2 + 3) << "memory would grow with the model";
  }
}

TEST(RowPipeline, TheFirstErrorInOrderIsThrown) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const RowPipeline pipeline{.n_threads = 4,
                               .make =
                                   [](int64_t i, int, std::vector<std::byte>&) {
                                     if (i >= 17) throw std::runtime_error("item " + std::to_string(i));
                                   },
                               .take = [](int64_t, std::vector<std::byte>&) { return true; }};
    try {
      pipeline.run(100);
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "item 17");
    }
  }
}

TEST(RowPipeline, StopsWhenTheTakerSaysSoAndRunsNothingForNothing) {
  int64_t n = 0;
  RowPipeline pipeline{.n_threads = 3,
                       .make = [](int64_t, int, std::vector<std::byte>&) {},
                       .take = [&](int64_t, std::vector<std::byte>&) { return ++n < 10; }};
  EXPECT_FALSE(pipeline.run(1000));
  EXPECT_EQ(n, 10);
  EXPECT_TRUE(pipeline.run(0));
  EXPECT_GE(default_convert_threads(), 1);
}

// FIPS 180-4 examples, and every length around the padding's borders against the portable code.
TEST(Sha256, MatchesTheStandardAndItself) {
  const auto hash = [](const std::string& text) {
    Sha256 h;
    // Odd pieces: the buffer between calls is part of the test.
    for (size_t at = 0; at < text.size(); at += 13)
      h.update(std::as_bytes(std::span(text).subspan(at, std::min<size_t>(13, text.size() - at))));
    return h.hex();
  };
  for (const bool portable : {false, true}) {
    sha256_use_portable(portable);
    EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(hash(std::string(1000000, 'a')),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
  for (size_t n = 0; n < 200; ++n) {
    const std::string text(n, static_cast<char>(n));
    sha256_use_portable(true);
    const std::string want = hash(text);
    sha256_use_portable(false);
    ASSERT_EQ(hash(text), want) << n;
  }
  const test::TempFolder dir;
  EXPECT_EQ(sha256_of_file(dir.write("abc", "abc")), hash("abc"));
}

}  // namespace
}  // namespace synod
