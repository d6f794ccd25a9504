// The searches as they are defined: one group after the other, sums in ascending order, one rounding per
// operation. The vector tables must return these bits.
#include "quant/encode_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "quant/blocks.h"
#include "quant/encode_isa.h"

namespace synod::quant {
namespace {

constexpr int kMaxLength = 32;
constexpr int kMaxSweeps = 5;

// Value of largest magnitude with its sign, the first of equals.
float extreme(const float* x, int n) {
  float result = 0.0F;
  float largest = 0.0F;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > largest) {
      largest = std::fabs(x[i]);
      result = x[i];
    }
  }
  return result;
}

// Sums of a least-squares fit x ~ scale * code: scale = wxc / wcc, gain of the fit wxc^2 / wcc.
struct Fit {
  float wxc = 0.0F;
  float wcc = 0.0F;

  void add(float w, float x, float code) {
    wxc += w * x * code;
    wcc += w * code * code;
  }
  float scale() const { return wcc > 0.0F ? wxc / wcc : 0.0F; }
};

void affine_group(const float* x, const float* w, int n, const AffineSearch& search, float* scale_out,
                  float* min_out, uint8_t* codes) {
  float low = x[0];
  float high = x[0];
  float sum_w = 0.0F;
  float sum_wx = 0.0F;
  for (int i = 0; i < n; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    sum_w += w[i];
    sum_wx += w[i] * x[i];
  }
  if (low > 0.0F) low = 0.0F;
  std::fill(codes, codes + n, uint8_t{0});
  *scale_out = 0.0F;
  *min_out = -low;
  if (high == low) return;

  const auto top = static_cast<float>(search.top);
  std::array<uint8_t, kMaxLength> trial;
  const auto assign = [&](float inverse) {
    for (int i = 0; i < n; ++i) {
      trial[static_cast<size_t>(i)] =
          static_cast<uint8_t>(clip(round_to_int(inverse * (x[i] - low)), 0, search.top));
    }
  };
  const auto error_of = [&](float scale, float min) {
    float error = 0.0F;
    for (int i = 0; i < n; ++i) {
      const float e = scale * static_cast<float>(trial[static_cast<size_t>(i)]) + min - x[i];
      error += w[i] * (search.absolute_error ? std::fabs(e) : e * e);
    }
    return error;
  };

  const float start = top / (high - low);
  float best_scale = 1.0F / start;
  assign(start);
  std::copy_n(trial.begin(), n, codes);
  float best_error = error_of(best_scale, low);
  for (int k = 0; k < search.n_steps; ++k) {
    assign((search.first + search.step * static_cast<float>(k) + top) / (high - low));
    float sum_wc = 0.0F;
    float sum_wcc = 0.0F;
    float sum_wcx = 0.0F;
    for (int i = 0; i < n; ++i) {
      const auto code = static_cast<float>(trial[static_cast<size_t>(i)]);
      sum_wc += w[i] * code;
      sum_wcc += w[i] * code * code;
      sum_wcx += w[i] * code * x[i];
    }
    const float determinant = sum_w * sum_wcc - sum_wc * sum_wc;
    if (!(determinant > 0.0F)) continue;
    float scale = (sum_w * sum_wcx - sum_wx * sum_wc) / determinant;
    float min = (sum_wcc * sum_wx - sum_wc * sum_wcx) / determinant;
    if (min > 0.0F) {
      min = 0.0F;
      scale = sum_wcx / sum_wcc;
    }
    const float error = error_of(scale, min);
    if (error < best_error) {
      best_error = error;
      best_scale = scale;
      low = min;  // the candidates that follow start from the fitted minimum
      std::copy_n(trial.begin(), n, codes);
    }
  }
  *scale_out = best_scale;
  *min_out = -low;
}

void affine(const Groups& g, const AffineSearch& search, float* scales, float* mins, uint8_t* codes) {
  for (int64_t i = 0; i < g.n; ++i) {
    affine_group(g.x + i * g.length, g.w + i * g.length, g.length, search, scales + i, mins + i,
                 codes + i * g.length);
  }
}

float symmetric_group(const float* x, const float* w, int n, int top, uint8_t* codes) {
  std::fill(codes, codes + n, uint8_t{0});
  const float peak = extreme(x, n);
  if (std::fabs(peak) < kZeroGroup) return 0.0F;
  const auto code_of = [&](float inverse, int i) {
    return clip(round_to_int(inverse * x[i]), -top, top - 1);
  };
  float best_inverse = 0.0F;
  float best_gain = 0.0F;
  float scale = 0.0F;
  for (int k = 0; k <= 18; ++k) {  // the plain scale, then -9 to 9 tenths of a code more, without 0
    const int tenths = k == 0 ? 0 : k <= 9 ? k - 10 : k - 9;
    const float inverse = -(static_cast<float>(top) + 0.1F * static_cast<float>(tenths)) / peak;
    Fit fit;
    for (int i = 0; i < n; ++i) fit.add(w[i], x[i], static_cast<float>(code_of(inverse, i)));
    if (k > 0 && !(fit.wcc > 0.0F && fit.wxc * fit.wxc > best_gain * fit.wcc)) continue;
    scale = fit.scale();
    best_gain = scale * fit.wxc;
    best_inverse = inverse;
  }
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(code_of(best_inverse, i) + top);
  return scale;
}

void symmetric(const Groups& g, int top, float* scales, uint8_t* codes) {
  for (int64_t i = 0; i < g.n; ++i) {
    scales[i] = symmetric_group(g.x + i * g.length, g.w + i * g.length, g.length, top, codes + i * g.length);
  }
}

float refined_group(const float* x, int n, int top, uint8_t* codes) {
  std::fill(codes, codes + n, uint8_t{0});
  const float peak = extreme(x, n);
  if (std::fabs(peak) < kZeroGroup) return 0.0F;
  const float inverse = -static_cast<float>(top) / peak;
  std::array<int, kMaxLength> code;
  Fit fit;
  for (int i = 0; i < n; ++i) {
    const int c = clip(round_to_int(inverse * x[i]), -top, top - 1);
    code[static_cast<size_t>(i)] = c;
    fit.add(x[i] * x[i], x[i], static_cast<float>(c));
  }
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    bool moved = false;
    for (int i = 0; i < n; ++i) {
      const float w = x[i] * x[i];
      const auto old = static_cast<float>(code[static_cast<size_t>(i)]);
      Fit rest = fit;
      rest.wxc -= w * x[i] * old;
      if (!(rest.wxc > 0.0F)) continue;
      rest.wcc -= w * old * old;
      const int c = clip(round_to_int(x[i] * rest.wcc / rest.wxc), -top, top - 1);
      if (c == code[static_cast<size_t>(i)]) continue;
      rest.add(w, x[i], static_cast<float>(c));
      if (!(rest.wcc > 0.0F && rest.wxc * rest.wxc * fit.wcc > fit.wxc * fit.wxc * rest.wcc)) continue;
      code[static_cast<size_t>(i)] = c;
      fit = rest;
      moved = true;
    }
    if (!moved) break;
  }
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(code[static_cast<size_t>(i)] + top);
  return fit.wxc / fit.wcc;
}

void refined(const Groups& g, int top, float* scales, uint8_t* codes) {
  for (int64_t i = 0; i < g.n; ++i) {
    scales[i] = refined_group(g.x + i * g.length, g.length, top, codes + i * g.length);
  }
}

float iq4_scale(const float* x, const float* w, int n) {
  const float peak = extreme(x, n);
  if (std::fabs(peak) < kZeroGroup) return 0.0F;
  constexpr float kLowest = kIq4Values[0];
  float best_gain = 0.0F;
  float scale = 0.0F;
  for (int k = -8; k <= 7; ++k) {
    const float inverse = k == -8 ? 1.0F / (-peak / kLowest) : (static_cast<float>(k) + kLowest) / peak;
    Fit fit;
    for (int i = 0; i < n; ++i) {
      const float level = kIq4Values[nearest_iq4(inverse * x[i])];
      fit.wxc += w[i] * level * x[i];
      fit.wcc += w[i] * level * level;
    }
    if (k > -8 && !(fit.wcc > 0.0F && fit.wxc * fit.wxc > best_gain * fit.wcc)) continue;
    scale = fit.scale();
    best_gain = scale * fit.wxc;
  }
  return scale;
}

void iq4_scales(const Groups& g, float* scales) {
  for (int64_t i = 0; i < g.n; ++i) {
    scales[i] = iq4_scale(g.x + i * g.length, g.w + i * g.length, g.length);
  }
}

void project(const Codebook& book, const float* wx, const float* w, float* p, float* q) {
  for (int e = 0; e < book.n_entries; ++e) {
    float sum_p = 0.0F;
    float sum_q = 0.0F;
    for (int j = 0; j < book.length; ++j) {
      const float g = book.coordinates[j * book.n_entries + e];
      sum_p += wx[j] * g;
      sum_q += w[j] * g * g;
    }
    p[e] = sum_p;
    q[e] = sum_q;
  }
}

void nearest(const float* p, const float* q, int n_entries, const float* multipliers, int n,
             int32_t* entries) {
  for (int k = 0; k < n; ++k) {
    float least = std::numeric_limits<float>::max();
    entries[k] = 0;
    for (int e = 0; e < n_entries; ++e) {
      const float error = multipliers[k] * q[e] - 2.0F * p[e];
      if (error < least) {
        least = error;
        entries[k] = e;
      }
    }
  }
}

struct Available {
  std::array<const SearchTable*, 3> tables{};
  size_t count = 0;

  Available() {
    tables[count++] = &kPlainSearch;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) tables[count++] = &kAvx2Search;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
      tables[count++] = &kAvx512Search;
    }
#endif
  }
};

}  // namespace

constexpr SearchTable kPlainSearch = {.name = "plain",
                                      .affine = affine,
                                      .symmetric = symmetric,
                                      .refined = refined,
                                      .iq4_scales = iq4_scales,
                                      .project = project,
                                      .nearest = nearest};

std::span<const SearchTable* const> available_searches() {
  static const Available available;
  return {available.tables.data(), available.count};
}

float search_positive(const float* y, const float* w, int n, int top, uint8_t* codes) {
  std::fill(codes, codes + n, uint8_t{0});
  const float largest = *std::max_element(y, y + n);
  if (largest < kZeroGroup) return 0.0F;
  const auto code_of = [&](float inverse, int i) { return clip(round_to_int(inverse * y[i]), 0, top); };
  const auto error_of = [&](float inverse) {
    const float step = 1.0F / inverse;
    float error = 0.0F;
    for (int i = 0; i < n; ++i) {
      const float e = y[i] - step * static_cast<float>(code_of(inverse, i));
      error += w[i] * e * e;
    }
    return error;
  };
  float inverse = static_cast<float>(top) / largest;
  float best_error = error_of(inverse);
  for (int tenths = -4; tenths <= 4; ++tenths) {
    if (tenths == 0) continue;
    const float candidate = (0.1F * static_cast<float>(tenths) + static_cast<float>(top)) / largest;
    const float error = error_of(candidate);
    if (error < best_error) {
      best_error = error;
      inverse = candidate;
    }
  }

  Fit fit;
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(code_of(inverse, i));
    fit.add(w[i], y[i], codes[i]);
  }
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    bool moved = false;
    for (int i = 0; i < n; ++i) {
      Fit rest = fit;
      rest.wxc -= w[i] * y[i] * static_cast<float>(codes[i]);
      rest.wcc -= w[i] * static_cast<float>(codes[i]) * static_cast<float>(codes[i]);
      if (!(rest.wxc > 0.0F && rest.wcc > 0.0F)) continue;
      const int c = clip(round_to_int(y[i] * rest.wcc / rest.wxc), 0, top);
      if (c == codes[i]) continue;
      rest.add(w[i], y[i], static_cast<float>(c));
      if (!(rest.wxc * rest.wxc * fit.wcc > fit.wxc * fit.wxc * rest.wcc)) continue;
      codes[i] = static_cast<uint8_t>(c);
      fit = rest;
      moved = true;
    }
    if (!moved) break;
  }
  return fit.scale();
}

}  // namespace synod::quant
