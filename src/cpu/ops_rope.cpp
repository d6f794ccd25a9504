// Rope. Cosines and sines are computed once per position and pair, and kept for the following calls: all
// layers rotate the same positions by one of a few frequency tables.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/ops_parallel.h"
#include "cpu/vec_table.h"

namespace synod {
namespace {

struct Turns {
  std::vector<float> freqs;           // [n_pairs]
  std::vector<int32_t> positions;     // [n_tokens]
  std::vector<float> cosines, sines;  // [n_tokens, n_pairs]
};

template <typename T>
bool same(const std::vector<T>& kept, const T* values, int64_t n) {
  return static_cast<int64_t>(kept.size()) == n &&
         (n == 0 || std::memcmp(kept.data(), values, static_cast<size_t>(n) * sizeof(T)) == 0);
}

// The phase is one f32 product; its cosine and sine are those of that f32 value, rounded once.
void compute(cpu::Pool& pool, Turns& turns) {
  const auto n_pairs = static_cast<int64_t>(turns.freqs.size());
  const auto n_tokens = static_cast<int64_t>(turns.positions.size());
  turns.cosines.resize(static_cast<size_t>(n_tokens * n_pairs));
  turns.sines.resize(static_cast<size_t>(n_tokens * n_pairs));
  constexpr double kTurnUs = 0.04;
  cpu::for_ranges(pool, n_tokens, 4, static_cast<double>(n_pairs) * kTurnUs, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto position = static_cast<float>(turns.positions[static_cast<size_t>(t)]);
      for (int64_t i = 0; i < n_pairs; ++i) {
        const float phase = position * turns.freqs[static_cast<size_t>(i)];
        const auto at = static_cast<size_t>(t * n_pairs + i);
        turns.cosines[at] = static_cast<float>(std::cos(static_cast<double>(phase)));
        turns.sines[at] = static_cast<float>(std::sin(static_cast<double>(phase)));
      }
    }
  });
}

const Turns& turns_of(cpu::Pool& pool, const Rope& op) {
  constexpr size_t kKept = 4;  // frequency tables in use at a time, by direction or layer kind
  thread_local std::array<Turns, kKept> kept;
  thread_local size_t next = 0;
  const float* freqs = op.freqs.as<const float>();
  const int32_t* positions = op.positions.as<const int32_t>();
  const int64_t n_pairs = op.freqs.dim(0), n_tokens = op.positions.dim(0);
  for (const Turns& t : kept) {
    if (same(t.freqs, freqs, n_pairs) && same(t.positions, positions, n_tokens)) return t;
  }
  Turns& turns = kept[next++ % kKept];
  turns.freqs.assign(freqs, freqs + n_pairs);
  turns.positions.assign(positions, positions + n_tokens);
  compute(pool, turns);
  return turns;
}

}  // namespace

void CpuBackend::run(const Rope& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const int64_t n_pairs = op.freqs.dim(0), n_heads = op.x.rank == 3 ? op.x.dim(1) : 1;
  if (n_pairs == 0 || op.x.dim(0) == 0) return;
  const Turns& turns = turns_of(pool_, op);
  constexpr double kPairUs = 0.5e-3;
  cpu::for_ranges(pool_, op.x.dim(0), 2, static_cast<double>(n_pairs * n_heads) * kPairUs,
                  [&](int64_t begin, int64_t end) {
                    std::vector<float> back;
                    for (int64_t t = begin; t < end; ++t) {
                      const float* cosines = turns.cosines.data() + t * n_pairs;
                      const float* sines = turns.sines.data() + t * n_pairs;
                      if (op.inverse) {
                        back.assign(sines, sines + n_pairs);
                        for (float& s : back) s = -s;
                        sines = back.data();
                      }
                      for (int64_t h = 0; h < n_heads; ++h) {
                        float* x = op.x.row_as<float>(t * n_heads + h) + op.first;
                        if (op.layout == Rope::Layout::kHalves) {
                          vec.rotate_halves(x, x + n_pairs, cosines, sines, n_pairs);
                        } else {
                          vec.rotate_interleaved(x, cosines, sines, n_pairs);
                        }
                      }
                    }
                  });
}

}  // namespace synod
