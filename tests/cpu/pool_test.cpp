#include "cpu/pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace synod::cpu {
namespace {

TEST(Pool, EveryItemRunsOnceOnAThreadOfThePool) {
  for (const int n_threads : {1, 2, 3, 9}) {
    Pool pool(n_threads);
    ASSERT_EQ(pool.n_threads(), n_threads);
    for (const int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      std::atomic<bool> known_threads{true};
      pool.run(n, [&](int64_t item, int thread) {
        ++runs[static_cast<size_t>(item)];
        if (thread < 0 || thread >= n_threads) known_threads = false;
      });
      for (const auto& r : runs) EXPECT_EQ(r, 1);
      EXPECT_TRUE(known_threads);
    }
  }
}

// Plain memory written by one phase is read by other threads in the next: what a thread sanitizer looks at.
TEST(Pool, APhaseSeesWhatThePhaseBeforeWrote) {
  Pool pool(4);
  constexpr int64_t kItems = 37;
  std::vector<int64_t> a(kItems, 0), b(kItems, 0);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.run(kItems,
             [&](int64_t i, int) { b[static_cast<size_t>(i)] = a[static_cast<size_t>(kItems - 1 - i)] + 1; });
    pool.run(kItems, [&](int64_t i, int) { a[static_cast<size_t>(i)] = b[static_cast<size_t>(i)]; });
    ASSERT_EQ(a[static_cast<size_t>(round % kItems)], round);
  }
}

TEST(Pool, PhasesRunAfterTheThreadsWentToSleep) {
  Pool pool(3);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run(10, [&](int64_t item, int) { sum += item; });
  }
  EXPECT_EQ(sum, 20 * 45);
}

TEST(Pool, TheCallerSleepsWhileAnItemIsLong) {
  Pool pool(2);
  std::atomic<int> done{0};
  for (int round = 0; round < 5; ++round) {
    pool.run(2, [&](int64_t, int thread) {
      if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      ++done;
    });
  }
  EXPECT_EQ(done, 10);
}

// Work is shared: with items that wait for each other no single thread could finish.
TEST(Pool, ItemsRunAtTheSameTime) {
  Pool pool(2);
  std::atomic<int> arrived{0};
  pool.run(2, [&](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest()
      : root(std::filesystem::temp_directory_path() / ("synod_cgroup_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(root / "outer/inner");
    write("membership", "4:memory:/elsewhere\n0::/outer/inner\n");
  }
  ~CgroupTest() override { std::filesystem::remove_all(root); }
  void write(const char* file, const char* text) const { std::ofstream(root / file) << text; }
  int cpus() const { return cgroup_cpus(root / "membership", root); }
  std::filesystem::path root;
};

TEST_F(CgroupTest, TheSmallestQuotaOfAllAncestorsCounts) {
  EXPECT_EQ(cpus(), INT_MAX);
  write("outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), INT_MAX);
  write("outer/inner/cpu.max", "350000 100000\n");
  EXPECT_EQ(cpus(), 3);
  write("outer/cpu.max", "200000 100000\n");
  EXPECT_EQ(cpus(), 2);
  write("cpu.max", "10000 100000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST_F(CgroupTest, ADamagedFileSetsNoLimit) {
  for (const char* text : {"", "100000", "100000 0", "-5 100000", "12x 100000", "99999999999999999999 1"}) {
    write("outer/inner/cpu.max", text);
    EXPECT_EQ(cpus(), INT_MAX) << text;
  }
  EXPECT_EQ(cgroup_cpus(root / "missing", root), INT_MAX);
}

TEST(Pool, TheDefaultIsAtLeastOneThreadAndNotMoreThanTheMachineHas) {
  EXPECT_GE(default_threads(), 1);
  EXPECT_LE(default_threads(), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(Pool(0).n_threads(), default_threads());
}

}  // namespace
}  // namespace synod::cpu
