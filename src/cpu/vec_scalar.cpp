// The vector helpers in plain C++: what the other tables must compute.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "cpu/vec_table.h"

namespace synod::cpu {
namespace {

// 16 floats.
struct V {
  float f[16];
};
constexpr int kAccumulators = 4;

template <typename F>
V lanes(F&& f) {
  V r;
  for (int i = 0; i < 16; ++i) r.f[i] = f(i);
  return r;
}
V load(const float* p) {
  return lanes([&](int i) { return p[i]; });
}
void store(float* p, V a) { std::memcpy(p, a.f, sizeof(a.f)); }
V set1(float x) {
  return lanes([&](int) { return x; });
}
V fma(V a, V b, V c) {
  return lanes([&](int i) { return __builtin_fmaf(a.f[i], b.f[i], c.f[i]); });
}
V operator+(V a, V b) {
  return lanes([&](int i) { return a.f[i] + b.f[i]; });
}
V operator-(V a, V b) {
  return lanes([&](int i) { return a.f[i] - b.f[i]; });
}
V operator*(V a, V b) {
  return lanes([&](int i) { return a.f[i] * b.f[i]; });
}
V operator/(V a, V b) {
  return lanes([&](int i) { return a.f[i] / b.f[i]; });
}
// As the instructions do it: the second operand when either is NaN.
V vmax(V a, V b) {
  return lanes([&](int i) { return a.f[i] > b.f[i] ? a.f[i] : b.f[i]; });
}
V vmin(V a, V b) {
  return lanes([&](int i) { return a.f[i] < b.f[i] ? a.f[i] : b.f[i]; });
}
// y, or 0 where x < limit.
V zero_below(V x, V limit, V y) {
  return lanes([&](int i) { return x.f[i] < limit.f[i] ? 0.0F : y.f[i]; });
}
// 2^n for the integer n in the low bits of a float that was rounded by adding 1.5 * 2^23.
V power_of_two(V shifted) {
  return lanes(
      [&](int i) { return std::bit_cast<float>((std::bit_cast<uint32_t>(shifted.f[i]) + 127U) << 23); });
}
float first_lane(V a) { return a.f[0]; }
float sum_lanes(V a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.f[i] += a.f[i + half];
  }
  return a.f[0];
}
float max_lanes(V a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.f[i] = a.f[i] > a.f[i + half] ? a.f[i] : a.f[i + half];
  }
  return a.f[0];
}
V sum_lanes_of_16(const V (&a)[16]) {
  return lanes([&](int i) { return sum_lanes(a[i]); });
}
V load_bf16(const uint16_t* p) {
  return lanes([&](int i) { return bf16_to_f32(p[i]); });
}
V load_f16(const uint16_t* p) {
  return lanes([&](int i) { return f16_to_f32(p[i]); });
}

// In order of use.
// clang-format off
#include "cpu/vec_kernels.inl"
#include "cpu/vec_attention.inl"
// clang-format on

}  // namespace

constinit const VecTable kVecScalar = make_table("scalar");

}  // namespace synod::cpu
