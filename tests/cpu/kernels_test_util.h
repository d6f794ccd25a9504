// What the kernel tests share: random tokens, prepared records, products with guards, pages with nothing
// readable around them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <new>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "cpu/kernels.h"

namespace synod::cpu {

// Tokens with values of very different size, zero stretches and exact extremes.
inline std::vector<float> random_tokens(int64_t n_tokens, int64_t k, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n_tokens * k));
  float scale = 1.0F;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 32 == 0) {
      constexpr float kScales[] = {1.0F, 1.0F, 1.0F, 0.0F, 1e-40F, 1e-30F, 1000.0F, -1.0F};
      scale = kScales[rng() % 8];
    }
    x[i] = scale == -1.0F ? (rng() % 2 == 0 ? 1.0F : -1.0F) : scale * normal(rng);
  }
  return x;
}

// Prepared records of tokens, as a caller lays them out.
struct Records {
  Records(const KernelTable& table, ActivationKind kind, const std::vector<float>& x, int64_t k)
      : stride(record_bytes(kind, k)), buffer(Buffer::host(stride * static_cast<int64_t>(x.size()) / k)) {
    for (int64_t m = 0; m < static_cast<int64_t>(x.size()) / k; ++m) {
      std::byte* record = buffer.data() + m * stride;
      table.prepare(kind, x.data() + m * k, k, record);
      pointers.push_back(record);
    }
  }
  std::span<const std::byte* const> first(int64_t n) const {
    return {pointers.data(), static_cast<size_t>(n)};
  }

  int64_t stride;
  Buffer buffer;
  std::vector<const std::byte*> pointers;
};

// [n_tokens][row_end - row_begin], with a guard value behind each row that must survive.
inline std::vector<std::vector<float>> products(const KernelTable& table, const Matrix& matrix,
                                                int64_t row_begin, int64_t row_end,
                                                std::span<const std::byte* const> records) {
  constexpr float kGuard = 12345.0F;
  const auto rows = static_cast<size_t>(row_end - row_begin);
  std::vector<std::vector<float>> out(records.size(), std::vector<float>(rows + 1, kGuard));
  std::vector<float*> pointers;
  for (auto& row : out) pointers.push_back(row.data());
  const Buffer scratch = Buffer::host(scratch_bytes(static_cast<int64_t>(records.size())));
  table.rows(matrix, row_begin, row_end, records, pointers, scratch.data());
  for (auto& row : out) {
    EXPECT_EQ(row.back(), kGuard);
    row.pop_back();
  }
  return out;
}

inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Compares rows [row_begin, row_end) of the first n_tokens with the expected products of all rows.
inline void expect_same(const KernelTable& table, const Matrix& matrix, int64_t row_begin, int64_t row_end,
                        std::span<const std::byte* const> records,
                        const std::vector<std::vector<float>>& expected) {
  const auto got = products(table, matrix, row_begin, row_end, records);
  for (size_t m = 0; m < got.size(); ++m) {
    for (int64_t r = row_begin; r < row_end; ++r) {
      const float want = expected[m][static_cast<size_t>(r)];
      const float have = got[m][static_cast<size_t>(r - row_begin)];
      ASSERT_TRUE(same(have, want)) << table.name << " " << matrix.name << " n_in=" << matrix.n_in
                                    << " n_tokens=" << records.size() << " rows [" << row_begin << ", "
                                    << row_end << ") token " << m << " row " << r << ": " << have
                                    << ", expected " << want;
    }
  }
}

// Pages with nothing readable in front or behind.
class GuardedBytes {
 public:
  explicit GuardedBytes(int64_t bytes) : page_(sysconf(_SC_PAGESIZE)) {
    inner_ = (bytes + page_ - 1) / page_ * page_;
    void* mapped =
        mmap(nullptr, static_cast<size_t>(inner_ + 2 * page_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<uint8_t*>(mapped);
    if (mprotect(base_ + page_, static_cast<size_t>(inner_), PROT_READ | PROT_WRITE) != 0)
      throw std::bad_alloc();
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(base_, static_cast<size_t>(inner_ + 2 * page_)); }
  uint8_t* begin() const { return base_ + page_; }
  uint8_t* end() const { return begin() + inner_; }

 private:
  int64_t page_;
  int64_t inner_ = 0;
  uint8_t* base_ = nullptr;
};

}  // namespace synod::cpu
