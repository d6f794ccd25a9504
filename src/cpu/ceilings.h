// What this machine can do at most, measured: the denominators of every share that `bench` reports.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "cpu/pool.h"

namespace synod::cpu {

struct Ceilings {
  double read_gb_s = 0.0;  // plain reading with all threads, 10^9 bytes per second
  double int8_gop_s =
      0.0;  // 8-bit dot products with all threads, a multiply-add as two; 0 where there are none
};

// Reads `memory` (the weights: so huge pages and their absence count) once per repetition, best of a few, and
// runs the dot product instruction of `isa` on registers. Takes about a second. An empty or small `memory`
// flatters the machine: caches answer for it.
Ceilings measure_ceilings(Pool& pool, std::string_view isa,
                          std::span<const std::span<const std::byte>> memory);

}  // namespace synod::cpu
