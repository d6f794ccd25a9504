// IQ1, IQ2 and IQ3: vectors of 4 or 8 values become entries of a fixed codebook, times a small scale shared
// by 16 or 32 values, times the scale of the super-block.
//
// For one vector and one multiplier m the error of entry g is m (m q_g - 2 p_g) plus a constant, where p_g
// and q_g do not depend on m. So the whole codebook is searched at a ladder of multipliers around the one
// that brings the largest value to the top level, and the winners (the "rungs") stand for the codebook from
// then on: between two neighbouring rungs with the same winner no other entry can be better. Scales are then
// chosen by trying super-block scales against the rungs, at next to no cost.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/half.h"
#include "quant/blocks.h"
#include "quant/encode_rows.h"
#include "quant/iq_tables.h"

namespace synod::quant {
namespace {

constexpr int kSuper = 256;
constexpr int kRungs = 8;
// Multipliers tried, relative to peak / top level.
constexpr std::array<float, kRungs> kLadder = {0.45F, 0.60F, 0.74F, 0.88F, 1.02F, 1.20F, 1.50F, 2.40F};
// Super-block scales tried, relative to the one that gives the largest sub-scale its last code.
constexpr std::array<float, 5> kSuperScales = {0.90F, 0.95F, 1.0F, 1.05F, 1.10F};

enum class Signs : uint8_t {
  kInCodebook,  // entries are signed
  kFree,        // 8 sign bits per 8 values
  kEven,        // 7 sign bits: an even number of minus signs
};

// A stored type, as far as the search is concerned. Multipliers are d * unit * (2 s + 1).
struct CodebookType {
  const Codebook* books;  // [n_variants]
  int n_variants;         // codebooks of which all vectors under one scale use the same
  float top_level;        // largest coordinate
  Signs signs;
  int scale_values;  // values under one scale
  int n_scale_codes;
  float unit;

  int n_scales() const { return kSuper / scale_values; }
  int vector_length() const { return books[0].length; }
};

// One vector at one rung.
struct Rung {
  float p;
  float q;
  int32_t entry;
};
using Rungs = std::array<Rung, kRungs>;

// The choice for a super-block.
struct Choice {
  uint16_t d = 0;                                 // f16
  std::array<uint8_t, 16> scales{};               // code per scale
  std::array<uint8_t, 16> variants{};             // codebook per scale
  std::array<int32_t, kSuper / 4> entries{};      // per vector
  std::array<uint8_t, kSuper / 8> minus_signs{};  // per 8 values, bit j set: value j is negative
};

class SuperBlock {
 public:
  SuperBlock(const CodebookType& type, const SearchTable& search, const float* x, const float* w)
      : type_(type), search_(search), n_vectors_(type.scale_values / type.vector_length()) {
    std::copy_n(x, kSuper, values_.begin());
    std::copy_n(w, kSuper, weights_.begin());
    take_signs();
  }

  Choice choose() {
    Choice best;
    best.minus_signs = minus_;
    float largest = 0.0F;  // multiplier any scale would like
    for (int s = 0; s < type_.n_scales(); ++s) {
      climb(s);
      largest = std::max(largest, wanted_[static_cast<size_t>(s)]);
    }
    if (!(largest > 0.0F)) return best;
    const float last = type_.unit * static_cast<float>(2 * type_.n_scale_codes - 1);
    float least = 0.0F;
    for (const float factor : kSuperScales) try_scale(factor * largest / last, best, least);
    for (int round = 0; round < 2; ++round) try_scale(fitted_scale(best), best, least);
    take_entries(best);
    return best;
  }

 private:
  const Rungs& rungs(int scale, int variant, int vector) const {
    return rungs_[static_cast<size_t>((scale * type_.n_variants + variant) * n_vectors_ + vector)];
  }

  // Moves the signs out of values_. Where their number must be even, the value whose wrong sign costs least
  // keeps its minus: the entry's coordinate there should be as small as possible.
  void take_signs() {
    if (type_.signs == Signs::kInCodebook) return;
    for (size_t i = 0; i < kSuper; i += 8) {
      int minus = 0;
      int n_minus = 0;
      size_t cheapest = 0;
      for (size_t j = 0; j < 8; ++j) {
        float& v = values_[i + j];
        if (v < 0.0F) {
          v = -v;
          minus |= 1 << j;
          ++n_minus;
        }
        if (weights_[i + j] * v < weights_[i + cheapest] * values_[i + cheapest]) cheapest = j;
      }
      if (type_.signs == Signs::kEven && n_minus % 2 != 0) {
        values_[i + cheapest] = -values_[i + cheapest];
        minus ^= 1 << cheapest;
      }
      minus_[i / 8] = static_cast<uint8_t>(minus);
    }
  }

  // Fills the rungs under one scale and finds the multiplier it would like best.
  void climb(int scale) {
    const size_t first = static_cast<size_t>(scale * type_.scale_values);
    float peak = 0.0F;
    for (size_t i = 0; i < static_cast<size_t>(type_.scale_values); ++i) {
      peak = std::max(peak, std::fabs(values_[first + i]));
    }
    float& wanted = wanted_[static_cast<size_t>(scale)];
    wanted = 0.0F;
    // Without a peak any ladder finds the shortest entry: no type but IQ1 has a level near zero.
    if (peak < kZeroGroup) peak = 1.0F;
    std::array<float, kRungs> multipliers;
    for (size_t k = 0; k < kRungs; ++k) multipliers[k] = kLadder[k] * peak / type_.top_level;

    float best_gain = 0.0F;
    for (int variant = 0; variant < type_.n_variants; ++variant) {
      std::array<float, kRungs> sum_p{};
      std::array<float, kRungs> sum_q{};
      for (int v = 0; v < n_vectors_; ++v) {
        Rungs& rungs = rungs_[static_cast<size_t>((scale * type_.n_variants + variant) * n_vectors_ + v)];
        search_vector(type_.books[variant], first + static_cast<size_t>(v * type_.vector_length()),
                      multipliers, rungs);
        for (size_t k = 0; k < kRungs; ++k) {
          sum_p[k] += rungs[k].p;
          sum_q[k] += rungs[k].q;
        }
      }
      for (size_t k = 0; k < kRungs; ++k) {
        if (!(sum_p[k] > 0.0F && sum_q[k] > 0.0F)) continue;
        const float fitted = sum_p[k] / sum_q[k];
        if (fitted * sum_p[k] > best_gain) {
          best_gain = fitted * sum_p[k];
          wanted = fitted;
        }
      }
    }
  }

  void search_vector(const Codebook& book, size_t first, const std::array<float, kRungs>& multipliers,
                     Rungs& rungs) {
    std::array<float, 8> wx;
    for (size_t j = 0; j < static_cast<size_t>(book.length); ++j) {
      wx[j] = weights_[first + j] * values_[first + j];
    }
    search_.project(book, wx.data(), weights_.data() + first, p_.data(), q_.data());
    std::array<int32_t, kRungs> entries;
    search_.nearest(p_.data(), q_.data(), book.n_entries, multipliers.data(), kRungs, entries.data());
    for (size_t k = 0; k < kRungs; ++k) {
      const auto e = static_cast<size_t>(entries[k]);
      rungs[k] = {p_[e], q_[e], entries[k]};
    }
  }

  static const Rung& best_rung(const Rungs& rungs, float multiplier) {
    size_t best = 0;
    float least = multiplier * rungs[0].q - 2.0F * rungs[0].p;
    for (size_t k = 1; k < kRungs; ++k) {
      const float error = multiplier * rungs[k].q - 2.0F * rungs[k].p;
      if (error < least) {
        least = error;
        best = k;
      }
    }
    return rungs[best];
  }

  // Error of all values under a scale, less their weighted square.
  float error_of(int scale, int variant, float multiplier) const {
    float sum = 0.0F;
    for (int v = 0; v < n_vectors_; ++v) {
      const Rungs& r = rungs(scale, variant, v);
      float least = multiplier * r[0].q - 2.0F * r[0].p;
      for (size_t k = 1; k < kRungs; ++k) least = std::min(least, multiplier * r[k].q - 2.0F * r[k].p);
      sum += least;
    }
    return multiplier * sum;
  }

  // Chooses scale codes for one super-block scale; replaces `best` if the error falls below `least`.
  void try_scale(float d, Choice& best, float& least) const {
    const uint16_t bits = f32_to_f16(d);
    const float stored = f16_to_f32(bits);
    if (!(stored > 0.0F) || !std::isfinite(stored)) {
      if (best.d == 0 && !std::isfinite(stored)) best.d = bits;  // too large: for validation to find
      return;
    }
    float error = 0.0F;
    std::array<uint8_t, 16> scales{};
    std::array<uint8_t, 16> variants{};
    for (int s = 0; s < type_.n_scales(); ++s) {
      const auto index = static_cast<size_t>(s);
      const float unit = stored * type_.unit;
      const int below =
          clip(static_cast<int>((wanted_[index] / unit - 1.0F) * 0.5F), 0, type_.n_scale_codes - 1);
      float least_here = 0.0F;
      bool first = true;
      for (int code = below; code <= std::min(below + 1, type_.n_scale_codes - 1); ++code) {
        for (int variant = 0; variant < type_.n_variants; ++variant) {
          const float e = error_of(s, variant, unit * static_cast<float>(2 * code + 1));
          if (!first && !(e < least_here)) continue;
          first = false;
          least_here = e;
          scales[index] = static_cast<uint8_t>(code);
          variants[index] = static_cast<uint8_t>(variant);
        }
      }
      error += least_here;
    }
    if (best.d != 0 && !(error < least)) return;
    least = error;
    best.d = bits;
    best.scales = scales;
    best.variants = variants;
  }

  // Least-squares super-block scale for the scale codes of `choice`.
  float fitted_scale(const Choice& choice) const {
    const float unit = f16_to_f32(choice.d) * type_.unit;
    float sum_p = 0.0F;
    float sum_q = 0.0F;
    for (int s = 0; s < type_.n_scales(); ++s) {
      const auto index = static_cast<size_t>(s);
      const auto step = static_cast<float>(2 * choice.scales[index] + 1);
      for (int v = 0; v < n_vectors_; ++v) {
        const Rung& r = best_rung(rungs(s, choice.variants[index], v), unit * step);
        sum_p += r.p * step;
        sum_q += r.q * step * step;
      }
    }
    return sum_q > 0.0F ? sum_p / sum_q / type_.unit : 0.0F;
  }

  void take_entries(Choice& choice) const {
    const float unit = f16_to_f32(choice.d) * type_.unit;
    for (int s = 0; s < type_.n_scales(); ++s) {
      const auto index = static_cast<size_t>(s);
      const float multiplier = unit * static_cast<float>(2 * choice.scales[index] + 1);
      for (int v = 0; v < n_vectors_; ++v) {
        choice.entries[static_cast<size_t>(s * n_vectors_ + v)] =
            best_rung(rungs(s, choice.variants[index], v), multiplier).entry;
      }
    }
  }

  const CodebookType& type_;
  const SearchTable& search_;
  int n_vectors_;                     // under one scale
  std::array<float, kSuper> values_;  // magnitudes where signs are stored apart
  std::array<float, kSuper> weights_;
  std::array<uint8_t, kSuper / 8> minus_{};
  std::array<float, 16> wanted_;  // multiplier per scale
  std::array<Rungs, kSuper / 4> rungs_;
  std::array<float, 4096> p_;  // of one vector, per entry
  std::array<float, 4096> q_;
};

// Coordinates of a packed codebook, shifted.
class Coordinates {
 public:
  template <typename Word, size_t kEntries>
  explicit Coordinates(const std::array<Word, kEntries>& grid, std::initializer_list<float> shifts = {0.0F})
      : length_(sizeof(Word)), n_(static_cast<int>(kEntries)) {
    const size_t total = kEntries * shifts.size();
    values_.resize(total * sizeof(Word));
    for (size_t v = 0; v < shifts.size(); ++v) {
      for (size_t e = 0; e < kEntries; ++e) {
        for (size_t j = 0; j < sizeof(Word); ++j) {
          const auto coordinate = static_cast<float>(static_cast<int8_t>(grid[e] >> (8 * j)));
          values_[j * total + v * kEntries + e] = coordinate + shifts.begin()[v];
        }
      }
    }
    n_ = static_cast<int>(total);
  }

  Codebook book() const { return {.coordinates = values_.data(), .n_entries = n_, .length = length_}; }

 private:
  int length_;
  int n_;
  std::vector<float> values_;
};

constexpr float kIq1Shift = 0.125F;

// Weights of the squared errors of a row. Columns of no measured importance keep a trace of weight, so that
// their values stay plausible.
std::vector<float> codebook_weights(const Row& row) {
  std::vector<float> w(static_cast<size_t>(row.n));
  float floor = 0.0F;
  if (row.importance != nullptr) {
    double sum = 0.0;
    for (int64_t i = 0; i < row.n; ++i) sum += static_cast<double>(row.importance[i]);
    floor = static_cast<float>(sum / static_cast<double>(row.n) * 1e-4);
  }
  for (int64_t i = 0; i < row.n; i += kSuper) {
    const float variance = sum_of_squares(row.x + i, kSuper) / static_cast<float>(kSuper);
    for (int64_t j = i; j < i + kSuper; ++j) {
      const float square = variance + row.x[j] * row.x[j];
      w[static_cast<size_t>(j)] =
          row.importance != nullptr ? std::max(row.importance[j], floor) * std::sqrt(square) : square;
    }
  }
  return w;
}

template <typename Block, typename Pack>
void encode_super_blocks(const Row& row, const CodebookType& type, std::byte* out, const Pack& pack) {
  const std::vector<float> w = codebook_weights(row);
  for (int64_t i = 0; i < row.n / kSuper; ++i) {
    Block b{};
    pack(SuperBlock(type, row.search, row.x + i * kSuper, w.data() + i * kSuper).choose(), b);
    store_block(out, i, b);
  }
}

// Four groups of 7 sign bits and a 4-bit scale.
uint32_t signs_and_scale(const Choice& c, size_t k) {
  uint32_t word = static_cast<uint32_t>(c.scales[k]) << 28;
  for (size_t l = 0; l < 4; ++l) word |= static_cast<uint32_t>(c.minus_signs[4 * k + l] & 127) << (7 * l);
  return word;
}

uint8_t scale_pair(const Choice& c, size_t k) {
  return static_cast<uint8_t>(c.scales[2 * k] | c.scales[2 * k + 1] << 4);
}

void encode_iq2_xxs(const Row& row, std::byte* out) {
  static const Coordinates coordinates(kIq2XxsGrid);
  static const Codebook book = coordinates.book();
  static const CodebookType type{&book, 1, 43.0F, Signs::kEven, 32, 16, 0.125F};
  encode_super_blocks<BlockIQ2_XXS>(row, type, out, [](const Choice& c, BlockIQ2_XXS& b) {
    b.d = c.d;
    for (size_t k = 0; k < 8; ++k) {
      for (size_t l = 0; l < 4; ++l) b.q[k][l] = static_cast<uint8_t>(c.entries[4 * k + l]);
      const uint32_t word = signs_and_scale(c, k);
      std::memcpy(b.q[k] + 4, &word, sizeof(word));
    }
  });
}

void encode_iq2_xs(const Row& row, std::byte* out) {
  static const Coordinates coordinates(kIq2XsGrid);
  static const Codebook book = coordinates.book();
  static const CodebookType type{&book, 1, 43.0F, Signs::kEven, 16, 16, 0.125F};
  encode_super_blocks<BlockIQ2_XS>(row, type, out, [](const Choice& c, BlockIQ2_XS& b) {
    b.d = c.d;
    for (size_t i = 0; i < 32; ++i) {
      b.q[i] = static_cast<uint16_t>(c.entries[i] | (c.minus_signs[i] & 127) << 9);
    }
    for (size_t k = 0; k < 8; ++k) b.scales[k] = scale_pair(c, k);
  });
}

void encode_iq2_s(const Row& row, std::byte* out) {
  static const Coordinates coordinates(kIq2SGrid);
  static const Codebook book = coordinates.book();
  static const CodebookType type{&book, 1, 43.0F, Signs::kFree, 16, 16, 0.125F};
  encode_super_blocks<BlockIQ2_S>(row, type, out, [](const Choice& c, BlockIQ2_S& b) {
    b.d = c.d;
    for (size_t i = 0; i < 32; ++i) {
      b.q[i] = static_cast<uint8_t>(c.entries[i] & 255);
      b.qh[i / 4] |= static_cast<uint8_t>(c.entries[i] >> 8 << (2 * (i % 4)));
      b.signs[i] = c.minus_signs[i];
    }
    for (size_t k = 0; k < 8; ++k) b.scales[k] = scale_pair(c, k);
  });
}

void encode_iq3_xxs(const Row& row, std::byte* out) {
  static const Coordinates coordinates(kIq3XxsGrid);
  static const Codebook book = coordinates.book();
  static const CodebookType type{&book, 1, 62.0F, Signs::kEven, 32, 16, 0.25F};
  encode_super_blocks<BlockIQ3_XXS>(row, type, out, [](const Choice& c, BlockIQ3_XXS& b) {
    b.d = c.d;
    for (size_t i = 0; i < 64; ++i) b.q[i] = static_cast<uint8_t>(c.entries[i]);
    for (size_t k = 0; k < 8; ++k) {
      const uint32_t word = signs_and_scale(c, k);
      std::memcpy(b.w[k], &word, sizeof(word));
    }
  });
}

void encode_iq3_s(const Row& row, std::byte* out) {
  static const Coordinates coordinates(kIq3SGrid);
  static const Codebook book = coordinates.book();
  static const CodebookType type{&book, 1, 15.0F, Signs::kFree, 32, 16, 1.0F};
  encode_super_blocks<BlockIQ3_S>(row, type, out, [](const Choice& c, BlockIQ3_S& b) {
    b.d = c.d;
    for (size_t i = 0; i < 64; ++i) {
      b.q[i] = static_cast<uint8_t>(c.entries[i] & 255);
      b.qh[i / 8] |= static_cast<uint8_t>(c.entries[i] >> 8 << (i % 8));
    }
    std::copy(c.minus_signs.begin(), c.minus_signs.end(), b.signs);
    for (size_t k = 0; k < 4; ++k) b.scales[k] = scale_pair(c, k);
  });
}

void encode_iq1_s(const Row& row, std::byte* out) {
  static const Coordinates up(kIq1Grid, {kIq1Shift});
  static const Coordinates down(kIq1Grid, {-kIq1Shift});
  static const std::array<Codebook, 2> books = {up.book(), down.book()};
  static const CodebookType type{books.data(), 2, 1.0F + kIq1Shift, Signs::kInCodebook, 32, 8, 1.0F};
  encode_super_blocks<BlockIQ1_S>(row, type, out, [](const Choice& c, BlockIQ1_S& b) {
    b.d = c.d;
    for (size_t k = 0; k < 8; ++k) {
      int high = c.scales[k] << 12 | c.variants[k] << 15;
      for (size_t l = 0; l < 4; ++l) {
        b.q[4 * k + l] = static_cast<uint8_t>(c.entries[4 * k + l] & 255);
        high |= c.entries[4 * k + l] >> 8 << (3 * l);
      }
      b.qh[k] = static_cast<uint16_t>(high);
    }
  });
}

// Every vector has a shift of its own, so both shifts together are one codebook: bit 11 of the entry is the
// sign of the shift.
void encode_iq1_m(const Row& row, std::byte* out) {
  static const Coordinates coordinates(kIq1Grid, {kIq1Shift, -kIq1Shift});
  static const Codebook book = coordinates.book();
  static const CodebookType type{&book, 1, 1.0F + kIq1Shift, Signs::kInCodebook, 16, 8, 1.0F};
  encode_super_blocks<BlockIQ1_M>(row, type, out, [](const Choice& c, BlockIQ1_M& b) {
    for (size_t i = 0; i < 32; ++i) {
      b.q[i] = static_cast<uint8_t>(c.entries[i] & 255);
      b.qh[i / 2] |= static_cast<uint8_t>(c.entries[i] >> 8 << (4 * (i % 2)));
    }
    for (size_t k = 0; k < 4; ++k) {
      int word = (c.d >> (4 * k) & 15) << 12;
      for (size_t s = 0; s < 4; ++s) word |= c.scales[4 * k + s] << (3 * s);
      b.scales[k] = static_cast<uint16_t>(word);
    }
  });
}

constexpr float kF16 = 65504.0F;
constexpr RowEncoder kEncoders[] = {
    {.type = DType::kIQ2_XXS,
     .encode = encode_iq2_xxs,
     .largest = kF16 * 31 / 8 * 43,
     .wants_importance = true},
    {.type = DType::kIQ2_XS,
     .encode = encode_iq2_xs,
     .largest = kF16 * 31 / 8 * 43,
     .wants_importance = true},
    {.type = DType::kIQ2_S, .encode = encode_iq2_s, .largest = kF16 * 31 / 8 * 43, .wants_importance = true},
    {.type = DType::kIQ3_XXS, .encode = encode_iq3_xxs, .largest = kF16 * 31 / 4 * 62},
    {.type = DType::kIQ3_S, .encode = encode_iq3_s, .largest = kF16 * 31 * 15},
    {.type = DType::kIQ1_S, .encode = encode_iq1_s, .largest = kF16 * 15, .wants_importance = true},
    {.type = DType::kIQ1_M, .encode = encode_iq1_m, .largest = kF16 * 15, .wants_importance = true},
};

}  // namespace

std::span<const RowEncoder> codebook_encoders() { return kEncoders; }

}  // namespace synod::quant
