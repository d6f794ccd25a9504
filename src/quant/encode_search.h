// The searches for scales that the encoders share. Each takes many groups of a row at once; groups do not
// influence each other, which is what lets the fast tables give every vector lane a group of its own and
// still add in the order of the definition. All tables return the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

namespace synod::quant {

// `n` groups of `length` (16 or 32) values, end to end; w[i] >= 0 counts the squared error of x[i].
struct Groups {
  const float* x;  // f32 [n, length]
  const float* w;  // f32 [n, length]
  int64_t n;
  int length;
};

// x ~ scale * code - min, codes 0 to top. Candidate k of n_steps stretches the range of the group to
// top + first + step * k codes, then fits scale and min by least squares.
struct AffineSearch {
  int top;
  float first;
  float step;
  int n_steps;
  bool absolute_error;  // compare candidates by sum w |e| instead of sum w e^2
};

// The entries of a codebook, coordinate by coordinate.
struct Codebook {
  const float* coordinates;  // f32 [length, n_entries]
  int n_entries;             // a multiple of 16
  int length;                // 4 or 8
};

struct SearchTable {
  std::string_view name;
  // Writes scales[n] >= 0, mins[n] >= 0 and codes[n, length].
  void (*affine)(const Groups& groups, const AffineSearch& search, float* scales, float* mins,
                 uint8_t* codes);
  // x ~ scale * (code - top), codes 0 to 2 top - 1: 19 candidate scales around extreme / -top, best by
  // (sum w x c)^2 / sum w c^2. A group below 1e-15 gets scale 0 and codes 0.
  void (*symmetric)(const Groups& groups, int top, float* scales, uint8_t* codes);
  // As symmetric with one starting scale, then up to 5 sweeps that move single codes. Ignores groups.w: the
  // weight of a value is its square.
  void (*refined)(const Groups& groups, int top, float* scales, uint8_t* codes);
  // x ~ scale * kIq4Values[code]: 16 candidate scales. A group below 1e-15 gets scale 0. The search of codes
  // is the caller's, as it depends on how scales are stored.
  void (*iq4_scales)(const Groups& groups, float* scales);
  // Projects a vector on every entry g: p[e] = sum_j wx_j g_j and q[e] = sum_j w_j g_j^2, so that the
  // weighted error of m * g is m * (m * q - 2 * p) plus what no choice changes.
  void (*project)(const Codebook& book, const float* wx, const float* w, float* p, float* q);
  // entries[k]: the entry of least error at multiplier[k] > 0, the first of equals. `n` is a multiple of 4.
  void (*nearest)(const float* p, const float* q, int n_entries, const float* multipliers, int n,
                  int32_t* entries);
};

extern const SearchTable kPlainSearch;  // the definition: one group after the other
// Every table this CPU can run, slowest first; kPlainSearch is the first.
std::span<const SearchTable* const> available_searches();

// The non-negative scales of the groups of a super-block, as a row of their own: y[i] ~ result * codes[i],
// codes 0 to top, errors weighted by w. n <= 16.
float search_positive(const float* y, const float* w, int n, int top, uint8_t* codes);

inline constexpr float kZeroGroup = 1e-15F;  // a group of smaller magnitudes is stored as zeros

// Nearest integer, ties to even, for |v| < 2^22. Adding 1.5 * 2^23 puts the integer into the mantissa. Values
// out of range (overflowing reciprocals of tiny groups) give some integer, the same on every CPU.
inline int round_to_int(float v) {
  return static_cast<int>(std::bit_cast<uint32_t>(v + 12582912.0F) & 0x7fffffU) - 0x400000;
}

constexpr int clip(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

// Midpoints between neighbours of kIq4Values: the nearest level of v is the number of midpoints <= v.
inline constexpr float kIq4Midpoints[15] = {-115.5F, -93.5F, -74.0F, -57.0F, -42.0F, -28.5F, -16.0F, -4.5F,
                                            7.0F,    19.0F,  31.5F,  45.5F,  61.0F,  79.0F,  101.0F};
inline int nearest_iq4(float v) {
  int index = 0;
  for (const float middle : kIq4Midpoints) index += v >= middle ? 1 : 0;
  return index;
}

}  // namespace synod::quant
