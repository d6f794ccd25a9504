// The vector tables of the encoders against the plain one, bit for bit, on rows chosen to reach every branch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "quant/encode_test_data.h"

namespace synod::quant_test {
namespace {

bool is_codebook(DType type) {
  return std::find(std::begin(kCodebookTypes), std::end(kCodebookTypes), type) != std::end(kCodebookTypes);
}

struct NamedRow {
  std::string name;
  std::vector<float> x;
};

std::vector<NamedRow> extreme_rows(size_t n) {
  std::vector<NamedRow> rows;
  const auto add = [&](std::string row_name, const auto& value) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = value(i);
    rows.push_back({std::move(row_name), std::move(x)});
  };
  const std::vector<float> noise = normal_row(n, 0.02F, 5);
  add("zero", [](size_t) { return 0.0F; });
  add("negative zero", [](size_t i) { return i % 3 == 0 ? -0.0F : 0.0F; });
  add("constant", [](size_t) { return 0.37F; });
  add("negative constant", [](size_t) { return -0.37F; });
  add("subnormal", [](size_t i) { return std::ldexp(static_cast<float>(i % 7) - 3.0F, -147); });
  add("near the zero threshold", [&](size_t i) { return noise[i] * 3e-14F; });
  add("below f16", [&](size_t i) { return noise[i] * 1e-6F; });
  add("subnormal scales", [&](size_t i) { return noise[i] * 1e-4F; });
  add("large", [&](size_t i) { return noise[i] * 1e5F; });
  add("one outlier", [&](size_t i) { return i == n / 2 ? 25.0F : noise[i]; });
  add("one negative outlier", [&](size_t i) { return i == n / 2 + 1 ? -25.0F : noise[i]; });
  add("only an outlier", [&](size_t i) { return i == 9 ? -1.0F : 0.0F; });
  add("ties", [](size_t i) { return static_cast<float>(static_cast<int>(i * 37 % 33) - 16) / 16.0F; });
  add("two levels", [](size_t i) { return i * 7 % 5 < 2 ? -0.5F : 1.0F; });
  add("ternary", [](size_t i) { return static_cast<float>(static_cast<int>(i * 5 % 3) - 1) * 0.01F; });
  add("all positive", [&](size_t i) { return std::fabs(noise[i]) + 0.1F; });
  add("all negative", [&](size_t i) { return -std::fabs(noise[i]) - 0.1F; });
  add("zero groups", [&](size_t i) { return i / 16 % 3 == 0 ? 0.0F : noise[i]; });
  add("growing", [&](size_t i) { return noise[i] * std::exp(0.02F * static_cast<float>(i % 256)); });
  add("noise", [&](size_t i) { return noise[i]; });
  return rows;
}

std::vector<std::vector<float>> importances(size_t n) {
  std::vector<std::vector<float>> all = {{}};
  std::vector<float> spread = normal_row(n, 2.0F, 6);
  for (float& v : spread) v = std::exp(v);
  all.push_back(spread);
  for (size_t i = 0; i < n; i += 3) spread[i] = 0.0F;
  for (size_t i = 32; i < 64; ++i) spread[i] = 0.0F;
  all.push_back(spread);
  return all;
}

// Bytes, or the message of the refusal.
std::pair<Bytes, std::string> outcome(DType type, const NamedRow& row, const std::vector<float>& importance,
                                      const quant::SearchTable& search) {
  try {
    return {encoded_row(type, row.x, importance, search), ""};
  } catch (const Error& e) {
    return {{}, e.what()};
  }
}

TEST(EncodeTwins, EveryTableGivesThePlainBytes) {
  // Numbers of groups that do not fill the lanes.
  for (const size_t n : {size_t{256}, size_t{768}, size_t{1280}}) {
    for (const NamedRow& row : extreme_rows(n)) {
      for (const std::vector<float>& importance : importances(n)) {
        for (const DType type : kAllTypes) {
          if (n != 256 && is_codebook(type)) continue;  // their unit is the super-block; plain is slow
          const auto want = outcome(type, row, importance, quant::kPlainSearch);
          for (const quant::SearchTable* search : quant::available_searches()) {
            EXPECT_TRUE(outcome(type, row, importance, *search) == want)
                << name(type) << ' ' << search->name << ", n " << n << ", row: " << row.name
                << ", importance " << importance.size();
          }
        }
      }
    }
  }
}

TEST(EncodeTwins, EveryTableGivesThePlainBytesOfRandomRows) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const size_t n = 32 * (1 + seed % 11);  // ends inside a super-block: only for the types of 32
    std::vector<float> x = normal_row(n, std::pow(10.0F, static_cast<float>(seed % 8) - 5.0F), seed);
    std::vector<float> importance = normal_row(n, 1.0F, seed + 100);
    for (float& v : importance) v = v * v;
    for (const DType type : kAllTypes) {
      if (seed >= 8 && is_codebook(type)) continue;
      std::vector<float> row = x;
      row.resize((n + 255) / 256 * 256, 0.001F);
      std::vector<float> weights = importance;
      weights.resize(row.size(), 0.5F);
      if (info(type).block_values <= 32) {
        row = x;
        weights = importance;
      }
      for (const auto& w : {std::vector<float>(), weights}) {
        const auto want = outcome(type, {"random", row}, w, quant::kPlainSearch);
        for (const quant::SearchTable* search : quant::available_searches()) {
          EXPECT_TRUE(outcome(type, {"random", row}, w, *search) == want)
              << name(type) << ' ' << search->name << " seed " << seed;
        }
      }
    }
  }
}

// Decoding an encoded row stays near the row: within the distance that the coarsest code of the type leaves.
TEST(EncodeTwins, ExtremeRowsDecodeCloseToThemselves) {
  constexpr size_t kN = 512;
  for (const NamedRow& row : extreme_rows(kN)) {
    for (const DType type : kAllTypes) {
      const auto [bytes, refusal] = outcome(type, row, {}, *quant::available_searches().back());
      if (!refusal.empty()) {
        EXPECT_EQ(row.name, "large") << name(type) << ": " << refusal;  // beyond f16 scales of some types
        continue;
      }
      EXPECT_EQ(validate_blocks(type, bytes), -1);
      const std::vector<float> y = decoded(type, bytes);
      const auto block = static_cast<size_t>(std::max<int64_t>(16, info(type).block_values));
      for (size_t i = 0; i < kN; ++i) {
        float largest = 0.0F;
        for (size_t j = i / block * block; j < i / block * block + block; ++j) {
          largest = std::max(largest, std::fabs(row.x[j]));
        }
        // The floor is what scales below the smallest f16 leave (NVFP4: below its smallest scale).
        const float floor = type == DType::kNVFP4 ? 0x1p-9F : 1e-4F;
        ASSERT_LE(std::fabs(y[i] - row.x[i]), 0.85F * largest + floor) << name(type) << ' ' << row.name;
      }
    }
  }
}

TEST(EncodeTwins, BytesDoNotDependOnThreadsOrNeighbours) {
  std::vector<std::vector<float>> rows;
  for (uint32_t r = 0; r < 8; ++r) rows.push_back(normal_row(512, 0.05F, r));
  for (const DType type : kAllTypes) {
    std::vector<Bytes> want;
    for (const auto& x : rows) want.push_back(encoded_row(type, x, {}));
    std::vector<Bytes> got(rows.size());
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t r = rows.size(); r-- > 0;) {
          if (r % 4 == t) got[r] = encoded_row(type, rows[r], {});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(got, want) << name(type);
  }
}

TEST(EncodeTwins, WritesAtAnyAlignment) {
  const std::vector<float> x = normal_row(256, 0.05F, 3);
  for (const DType type : kAllTypes) {
    const Bytes want = encoded_row(type, x, {});
    Bytes out(want.size() + 2, std::byte{0x5a});
    encode_row(type, x, {}, out.data() + 1);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), out.begin() + 1)) << name(type);
    EXPECT_EQ(out.front(), std::byte{0x5a}) << name(type);
    EXPECT_EQ(out.back(), std::byte{0x5a}) << name(type);
  }
}

}  // namespace
}  // namespace synod::quant_test
