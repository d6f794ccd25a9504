// Expands the packed codebooks of iq_codes.inc (written by tools/make_iq_tables.py) at compile time.
#include "quant/iq_tables.h"

namespace synod {
namespace {

#include "quant/iq_codes.inc"

// Entry r of the result has `levels[code]` in byte j for the j-th code (`kBits` wide, lowest first) of
// packed[r].
template <typename Word, int kBits, size_t kEntries, size_t kLevels>
constexpr std::array<Word, kEntries> expand(const uint16_t (&packed)[kEntries],
                                            const int8_t (&levels)[kLevels]) {
  static_assert(kLevels <= 1U << kBits);
  std::array<Word, kEntries> grid{};
  for (size_t r = 0; r < kEntries; ++r) {
    for (size_t j = 0; j < sizeof(Word); ++j) {
      const size_t code = packed[r] >> (kBits * j) & ((1U << kBits) - 1U);
      grid[r] |= static_cast<Word>(static_cast<uint8_t>(levels[code])) << (8 * j);
    }
  }
  return grid;
}

constexpr int8_t kIq2Levels[] = {8, 25, 43};
constexpr int8_t kIq3XxsLevels[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIq3SLevels[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr int8_t kIq1Levels[] = {-1, 0, 1};

}  // namespace

constexpr std::array<uint64_t, 256> kIq2XxsGrid = expand<uint64_t, 2>(kIq2XxsCodes, kIq2Levels);
constexpr std::array<uint64_t, 512> kIq2XsGrid = expand<uint64_t, 2>(kIq2XsCodes, kIq2Levels);
constexpr std::array<uint64_t, 1024> kIq2SGrid = expand<uint64_t, 2>(kIq2SCodes, kIq2Levels);
constexpr std::array<uint32_t, 256> kIq3XxsGrid = expand<uint32_t, 3>(kIq3XxsCodes, kIq3XxsLevels);
constexpr std::array<uint32_t, 512> kIq3SGrid = expand<uint32_t, 3>(kIq3SCodes, kIq3SLevels);
constexpr std::array<uint64_t, 2048> kIq1Grid = expand<uint64_t, 2>(kIq1Codes, kIq1Levels);

}  // namespace synod
