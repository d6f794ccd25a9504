// Codebooks of the IQ types. An entry is one word, coordinate j in byte j (IQ1: as a signed byte).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace synod {

extern const std::array<uint64_t, 256> kIq2XxsGrid;  // coordinates 8, 25, 43
extern const std::array<uint64_t, 512> kIq2XsGrid;
extern const std::array<uint64_t, 1024> kIq2SGrid;
extern const std::array<uint32_t, 256> kIq3XxsGrid;  // 4, 12, 20, 28, 36, 44, 52, 62
extern const std::array<uint32_t, 512> kIq3SGrid;    // odd, 1 to 15
extern const std::array<uint64_t, 2048> kIq1Grid;    // -1, 0, 1; IQ1_S and IQ1_M

}  // namespace synod
