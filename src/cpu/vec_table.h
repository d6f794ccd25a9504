// Vector helpers of the operations that read no stored matrix: one table per instruction set. All of them are
// the same sequence of f32 operations (vec_kernels.inl, vec_attention.inl), so every table gives the same
// bits.
//
// Order of sums. 16 lanes, lane j takes the elements k = j mod 16, one chain of fma per lane; elements past
// the end add nothing. The lanes are then added as a tree: j + 8, j + 4, j + 2, j + 1.
#pragma once

#include <cstdint>
#include <string_view>

namespace synod::cpu {

// Keys of one step of the online softmax.
inline constexpr int64_t kChunkKeys = 64;

enum class Gate : uint8_t { kSilu, kGeluTanh };

struct VecTable {
  std::string_view name;  // as the kernel table that it belongs to

  // Sum of squares in 4 x 16 lanes.
  float (*sum_squares)(const float* x, int64_t n);
  // out = x * factor * weight; weight [n] may be null for 1; out may be x.
  void (*scale_by)(const float* x, float factor, const float* weight, int64_t n, float* out);
  // out = act(min(gate, limit)) * clamp(up, -limit, limit) * weight; limit <= 0 does not clamp. out may be
  // gate.
  void (*glu)(const float* gate, const float* up, int64_t n, Gate act, float limit, float weight, float* out);
  void (*add)(const float* a, const float* b, float factor, int64_t n, float* out);
  void (*soft_cap)(float* x, float cap, int64_t n);
  // Pairs (a[i], b[i]), or (a[2 i], a[2 i + 1]): a, b = a c - b s, b c + a s.
  void (*rotate_halves)(float* a, float* b, const float* cosines, const float* sines, int64_t n);
  void (*rotate_interleaved)(float* a, const float* cosines, const float* sines, int64_t n);
  // out[i] = sum_j weights[j * stride] * x[j][i], j ascending, from first * y[i] (y may be null for 0).
  void (*weighted_sum)(const float* y, float first, const float* const* x, const float* weights,
                       int64_t stride, int64_t n_terms, int64_t n, float* out);

  // out[i * out_stride + j] = scale * (q[i] . k[j]) over n elements.
  void (*dots)(const float* const* q, int64_t n_q, const float* const* k, int64_t n_k, int64_t n, float scale,
               float* out, int64_t out_stride);

  // One chunk of the online softmax of one query row. On entry s[lo, hi) are scores; on return s[0, 64) are
  // exp(s - m), zero outside [lo, hi). Updates the running maximum m and mass l; returns what the sum so far
  // must be multiplied with.
  float (*softmax)(float* s, int64_t lo, int64_t hi, float* m, float* l);
  // o[r] = o[r] * correction[r] + sum_j p[r][j] * v[j], j in [lo, hi) ascending.
  void (*add_values)(const float* p, int64_t n_rows, const float* const* v, int64_t lo, int64_t hi, int64_t d,
                     const float* correction, float* o, int64_t o_stride);
  // (m, l, o) += (m2, l2, o2)
  void (*merge)(float* m, float* l, float* o, float m2, float l2, const float* o2, int64_t d);
  // out = o / l; `sink` takes part in the mass (-inf: there is none).
  void (*finish)(float m, float l, const float* o, float sink, int64_t d, float* out);

  void (*from_bf16)(const uint16_t* in, int64_t n, float* out);
  void (*from_f16)(const uint16_t* in, int64_t n, float* out);
};

// The helpers that go with a kernel table's name.
const VecTable& vec_table(std::string_view name);

extern const VecTable kVecScalar;
#if defined(__x86_64__)
extern const VecTable kVecAvx2;
extern const VecTable kVecAvx512;
#endif

}  // namespace synod::cpu
