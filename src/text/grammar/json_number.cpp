// Numbers between bounds, digit by digit: a number is compared with a bound from the left, and a comparison
// stays "tight" while all digits so far are the bound's.
#include <algorithm>

#include "base/error.h"
#include "text/grammar/json_terms.h"

namespace synod {

namespace {

// Any two decimals of at most 15 significant digits are different doubles, so that an exclusive bound stays
// exclusive for a reader that rounds.
constexpr size_t kExactDigits = 15;
constexpr size_t kMaxWholeDigits = 18;

int compare_magnitudes(const DecimalBound& a, const DecimalBound& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  const int whole = a.whole.compare(b.whole);
  return whole != 0 ? whole : a.fraction.compare(b.fraction);
}

}  // namespace

// Numbers whose whole part has exactly `n_whole` digits; the bounds' whole parts have as many, or the bound
// is null.
struct JsonTerms::Digits {
  size_t n_whole;
  size_t n_fraction;  // digits after the point at most
  const DecimalBound* low;
  const DecimalBound* high;

  static char digit_of(const DecimalBound& bound, size_t n, size_t position) {
    if (position < n) return bound.whole[position];
    const size_t i = position - n;
    return i < bound.fraction.size() ? bound.fraction[i] : '0';
  }
  // Whether a number may stop after `position` digits.
  bool may_stop(size_t position, bool low_tight, bool high_tight) const {
    const size_t i = position - n_whole;
    if (low_tight && (i < low->fraction.size() || low->exclusive)) return false;
    if (high_tight && high->exclusive && i >= high->fraction.size()) return false;
    return true;
  }
};

Term JsonTerms::digits_from(const Digits& digits, size_t position, bool low_tight, bool high_tight) {
  const size_t n = digits.n_whole + digits.n_fraction;
  const bool in_fraction = position >= digits.n_whole;
  if (!low_tight && !high_tight && position > 0) {
    const auto rest = [&](int64_t min, size_t max) { return b_.repeat(digit(), min, int64_t(max)); };
    if (position > digits.n_whole) return rest(0, n - position);
    const Term fraction = digits.n_fraction == 0
                              ? b_.empty()
                              : b_.optional(b_.sequence({b_.text("."), rest(1, digits.n_fraction)}));
    const auto left = int64_t(digits.n_whole - position);
    return b_.sequence({b_.repeat(digit(), left, left), fraction});
  }
  std::vector<Term> alternatives;
  if (in_fraction && digits.may_stop(position, low_tight, high_tight)) alternatives.push_back(b_.empty());
  if (position < n) {
    // A whole part of several digits does not begin with 0.
    const char first = position == 0 && digits.n_whole > 1 ? '1' : '0';
    const char low =
        low_tight ? std::max(first, Digits::digit_of(*digits.low, digits.n_whole, position)) : first;
    const char high = high_tight ? Digits::digit_of(*digits.high, digits.n_whole, position) : '9';
    const auto next = [&](char from, char to, bool tight_low, bool tight_high) {
      if (from > to) return;
      const auto code = [](char c) { return char32_t(uint8_t(c)); };
      std::vector<Term> parts;
      if (position == digits.n_whole) parts.push_back(b_.text("."));
      parts.push_back(b_.characters({{code(from), code(to)}}));
      parts.push_back(digits_from(digits, position + 1, tight_low, tight_high));
      alternatives.push_back(b_.sequence(std::move(parts)));
    };
    if (low_tight && high_tight && low == high) {
      next(low, high, true, true);
    } else {
      if (low_tight) next(low, low, true, false);
      next(low_tight ? char(low + 1) : low, high_tight ? char(high - 1) : high, false, false);
      if (high_tight && low <= high) next(high, high, false, true);
    }
  }
  return b_.choice(std::move(alternatives));
}

// Magnitudes between the bounds (null: none). Zero is left out unless `with_zero`.
Term JsonTerms::magnitude(const DecimalBound* low, const DecimalBound* high, bool whole_only,
                          bool with_zero) {
  static const DecimalBound kZero{};
  DecimalBound above_zero;
  above_zero.exclusive = true;
  if (!low || (!with_zero && compare_magnitudes(*low, kZero) == 0)) low = with_zero ? &kZero : &above_zero;
  if (high && compare_magnitudes(*low, *high) > 0) return b_.never();
  size_t n_fraction = 0;
  if (!whole_only) {
    const size_t n_whole = std::max(low->whole.size(), high ? high->whole.size() : 0);
    const size_t needed = std::max(low->fraction.size(), high ? high->fraction.size() : 0);
    if (n_whole + needed > kExactDigits) {
      fail(Error::Kind::kUsage, "number bounds: expected at most {} digits, got {}", kExactDigits,
           n_whole + needed);
    }
    n_fraction = kExactDigits - n_whole;
  }
  const size_t longest = high ? high->whole.size() : std::max(low->whole.size(), kMaxWholeDigits);
  std::vector<Term> lengths;
  for (size_t n = low->whole.size(); n <= longest; ++n) {
    const bool low_tight = n == low->whole.size(), high_tight = high && n == high->whole.size();
    lengths.push_back(digits_from({n, n_fraction, low, high}, 0, low_tight, high_tight));
  }
  return b_.choice(std::move(lengths));
}

Term JsonTerms::bounded_number(const std::optional<DecimalBound>& low,
                               const std::optional<DecimalBound>& high, bool whole_only) {
  std::vector<Term> signs;
  const bool low_negative = !low || low->negative, high_negative = high && high->negative;
  if (!high_negative) {
    signs.push_back(
        magnitude(low && !low->negative ? &*low : nullptr, high ? &*high : nullptr, whole_only, true));
  }
  if (low_negative) {
    // -0 is spelled 0. Magnitudes swap the bounds.
    signs.push_back(b_.sequence({b_.text("-"), magnitude(high_negative ? &*high : nullptr,
                                                         low ? &*low : nullptr, whole_only, false)}));
  }
  return b_.choice(std::move(signs));
}

}  // namespace synod
