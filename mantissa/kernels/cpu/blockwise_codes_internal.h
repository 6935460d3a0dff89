#pragma once

// How the numbers of a block become codes, for all tiers. This header follows the rules of
// elements_internal.h; what has no V or Build is evaluated by the compiler only.

#include <bit>
#include <cstdint>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/blockwise.h"
#include "mantissa/kernels/state_codes.h"

namespace mantissa::kernels::cpu {

/// Dividing by a block's absmax is multiplying by `first` and then by `second`. `first` is 1 unless the
/// reciprocal would be infinite.
struct Normalizer {
  float first, second;
};

template <class Build>
Normalizer normalizer(float absmax) {
  if (absmax == 0) return {1, 0};
  return absmax < 0x1p-100F ? Normalizer{0x1p60F, 1 / (absmax * 0x1p60F)} : Normalizer{1, 1 / absmax};
}

inline constexpr float kLargestFloat = 0x1.fffffep127F;

/// How a state is stored.
enum class StateBits : uint8_t { k4, k8, k32 };

/// Memory for a block of a state.
struct CopyOfState {
  alignas(64) float values[kStateBlock];
  uint8_t codes[kStateBlock];
};

/// Returns an integer that has the order of floats.
consteval int32_t order_of(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

/// A number is nearest to a later code than `code` exactly if its order is above below_middle[code].
struct Thresholds {
  int32_t below_middle[255];
};

consteval Thresholds thresholds_of(const float (&table)[256]) {
  Thresholds thresholds = {};
  for (int code = 0; code < 255; ++code) {
    const float below = float_below((static_cast<double>(table[code]) + table[code + 1]) / 2);
    thresholds.below_middle[code] = order_of(std::bit_cast<int32_t>(below));
  }
  return thresholds;
}

inline constexpr Thresholds kSignedThresholds = thresholds_of(kDynamicSigned);
inline constexpr Thresholds kUnsignedThresholds = thresholds_of(kDynamicUnsigned);

/// Returns the code of a number that is normalized: nearest_code() without branches, and NaN as 0.
template <class Build>
uint8_t code_of(DynamicMap map, float x) {
  if (x != x) x = 0;
  const int32_t* const thresholds =
      (map == DynamicMap::kSigned ? kSignedThresholds : kUnsignedThresholds).below_middle;
  int32_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const int64_t order = bits ^ ((bits >> 31) & 0x7fffffff);
  int code = 0;
  // The sign of a difference instead of a comparison, which GCC 12 makes a branch that is hard to predict.
  for (int bit = 7; bit >= 0; --bit)
    code += static_cast<int>(static_cast<uint64_t>(thresholds[code + (1 << bit) - 1] - order) >> 63) << bit;
  return static_cast<uint8_t>(code);
}

/// The positive values of a map in classes of equal spacing, as state_codes.h explains, but exact.
struct CodeClasses {
  static constexpr int kCount = 8;
  /// A number whose magnitude's bits are above it belongs to a later class.
  alignas(32) int32_t bound[kCount];
  /// For the signed map. At a tie, which goes to the lower code, a negative number belongs to the later class. A
  /// number whose rotated bits are above it belongs to it: the bits of a float, rotated left by one,
  /// are twice those of its magnitude, plus 1 if it is negative.
  alignas(32) int32_t rotated_bound[kCount];
  /// slope * number + offset is the rank with a fraction, in units of 2^-kFraction.
  alignas(32) float slope[kCount];
  alignas(32) float offset[kCount];
  alignas(32) float most[kCount];  ///< the largest rank of the class, plus 1/2

  /// Where the rank is nearer than one unit to the next whole number, the rounding of the affine function and
  /// of the table's values could make a difference: it amounts to at most 0.6 units. code_of() decides there.
  static constexpr int kFraction = 13;

  /// A number's class is (bits / 2^16 - kFirst) * kFactor / 2^16, or the next one. `bits` are those of the
  /// float, which are nearly a multiple of its logarithm.
  static constexpr int kFirst = 106 * 128, kFactor = 155;
};

consteval int least_class(float number) {
  const int high = static_cast<int>(std::bit_cast<uint32_t>(number) >> 16) - CodeClasses::kFirst;
  return high < 0 ? 0 : high * CodeClasses::kFactor >> 16;
}

/// `first_rank[c]` is the first rank of class c; the last class has only one. `zero` is the code of 0.
consteval CodeClasses classes_of(const float (&table)[256], int zero, const int (&first_rank)[8]) {
  CodeClasses classes = {};
  constexpr double kUnit = 1 << CodeClasses::kFraction;
  const auto middle = [&](int rank) {  // between this rank and the next one
    return (static_cast<double>(table[zero + rank]) + table[zero + rank + 1]) / 2;
  };
  for (int c = 0; c < 7; ++c) {
    const int first = first_rank[c], last = first_rank[c + 1] - 1;
    const float bound = float_below(middle(last));
    classes.bound[c] = std::bit_cast<int32_t>(bound);
    classes.rotated_bound[c] = classes.bound[c] * 2 + (bound != middle(last));
    // Two points determine the function. Where there is only one middle, the other point makes the value
    // itself, or 0, lie between two whole numbers.
    double x0 = middle(first), x1 = middle(last - 1), y0 = first + 1, y1 = last;
    if (c == 0) {
      x0 = middle(0), y0 = 1;
      if (last == 1) x1 = 0, y1 = 0.5;
      if (last == 2) x1 = middle(1), y1 = 2;
    } else if (last == first + 1) {
      x1 = table[zero + first], y1 = first + 0.5;
    }
    const double slope = (y1 - y0) / (x1 - x0);
    classes.slope[c] = static_cast<float>(slope * kUnit);
    classes.offset[c] = static_cast<float>((y0 - slope * x0) * kUnit);
    classes.most[c] = static_cast<float>((last + 0.5) * kUnit);
    if (least_class(bound) != c) throw "least_class() is wrong";
  }
  classes.bound[7] = classes.rotated_bound[7] = 0x7fffffff;
  classes.offset[7] = classes.most[7] = static_cast<float>((first_rank[7] + 0.5) * kUnit);
  return classes;
}

inline constexpr CodeClasses kSignedClasses = classes_of(kDynamicSigned, 127, {1, 2, 4, 8, 16, 32, 64, 128});
inline constexpr CodeClasses kUnsignedClasses =
    classes_of(kDynamicUnsigned, 0, {1, 3, 7, 15, 31, 63, 127, 255});

/// Stores the codes of four vectors of numbers that are normalized, and finite.
template <class V, DynamicMap kMap>
[[gnu::always_inline]] inline void store_codes(uint8_t* to, const float* values, typename V::Float factor) {
  using Float = typename V::Float;
  constexpr bool kIsSigned = kMap == DynamicMap::kSigned;
  constexpr const CodeClasses& kClasses = kIsSigned ? kSignedClasses : kUnsignedClasses;
  typename V::Int codes[4];
  typename V::Lanes undecided[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    // The sum makes -0 0, which is not negative.
    const Float x = V::fma(V::load(values + i * V::kLanes), factor, V::zero()),
                size = kIsSigned ? V::abs(x) : x;
    const auto least = V::least_class(size);
    const auto which = kIsSigned ? V::next_above(least, V::rotated(x), V::pick(kClasses.rotated_bound, least))
                                 : V::next_above(least, V::bits_of(size), V::pick(kClasses.bound, least));
    const Float rank = V::fma(size, V::pick(kClasses.slope, which), V::pick(kClasses.offset, which));
    // V::min keeps a NaN, which truncate() makes undecided.
    const auto units = V::truncate(V::min(V::pick(kClasses.most, which), rank));
    undecided[i] = V::is_whole(units);
    codes[i] = V::template code_of_rank<kIsSigned>(V::whole(units), x);
  }
  V::store_bytes(to, codes);
  if (V::bits((undecided[0] | undecided[1]) | (undecided[2] | undecided[3])) == 0) [[likely]]
    return;
  for (int i = 0; i < 4; ++i) {
    alignas(64) float numbers[V::kLanes];
    V::store(numbers, V::mul(V::load(values + i * V::kLanes), factor));
    for (uint32_t lanes = V::bits(undecided[i]); lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      to[i * V::kLanes + lane] = code_of<V>(kMap, numbers[lane]);
    }
  }
}

}  // namespace mantissa::kernels::cpu
