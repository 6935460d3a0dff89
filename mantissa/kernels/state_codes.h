#pragma once

// The 8-bit codes of optimizers' states, for any device. They are those of the dynamic maps (core/code_tables.h),
// but for two shortcuts that save a third of a step's time. This header follows the rules of element.h.
//
// A map consists of classes of equal spacing: one for each power of ten from 1e-7, and one for the value 1. The
// rank of a code is its distance from the code of 0. Within a class, the value is an affine function of the rank,
// and the rank nearest to a number is an affine function of the number, rounded down. A kernel computes both
// functions with one product and sum, which are fused, where the maps themselves would need a table of 256 values
// or a search. So a state is up to 1e-6 of itself away from the map's value, and a number whose distances to two
// values are nearly equal, by 1e-5 of their distance, may get either code.

#include <bit>
#include <cstdint>

#include "mantissa/core/code_tables.h"

namespace mantissa::kernels {

/// The signed map's code of 0. That of the unsigned map is 0.
inline constexpr int kSignedZero = 127;

/// The value of a code is that of its rank, with the rank's sign: slope * f + offset, and 0 where that is negative.
/// f is the rank's magnitude in the signed map, and the rank plus 1 in the unsigned one. The index is the lowest
/// three bits of the exponent of f as a float.
struct StateValues {
  alignas(32) float slope[8];
  alignas(32) float offset[8];
};

/// The rank of a number's magnitude x, up to 1: slope * x + offset or, if it is less, `most`; rounded down. Only 0
/// has rank 0. The index is the number of bounds that are below the bits of x.
struct StateClasses {
  alignas(32) int32_t bound[8];
  alignas(32) float slope[8];
  alignas(32) float offset[8];
  alignas(32) float most[8];
};

/// least[k] is the least positive number whose rank is k + 1. Ranks that a map does not have are infinitely far.
struct StateThresholds {
  float least[255];
};

consteval StateValues state_values(const float (&table)[256], int zero, bool is_signed) {
  StateValues values = {};
  const int shift = is_signed ? 0 : 1;  // f is rank + shift
  for (int exponent = is_signed ? 0 : 1; exponent < 8; ++exponent) {
    const int first = (1 << exponent) - shift,
              last = exponent == 7 && is_signed ? first : 2 * first + shift - 1;
    const double low = table[zero + first], high = table[zero + last];
    const double slope = last == first ? 0 : (high - low) / (last - first);
    const int index = (127 + exponent) % 8;
    values.slope[index] = static_cast<float>(slope);
    values.offset[index] = static_cast<float>(low - slope * (first + shift));
  }
  // In the unsigned map, f = 1 stands for 0, and f = 256, whose exponent has the same last bits, for 1.
  if (!is_signed) values.slope[7] = 1.0F / 255, values.offset[7] = -1.0F / 255;
  return values;
}

/// Returns the largest float that is not above `x`: a float is above it exactly if it is above `x`.
consteval float float_below(double x) {
  const auto nearest = static_cast<float>(x);
  if (nearest <= x) return nearest;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) + (nearest > 0 ? uint32_t(-1) : 1));
}

/// Each class but the last begins with the rank that is `first_rank` of it.
consteval StateClasses state_classes(const float (&table)[256], int zero, const int (&first_rank)[8]) {
  StateClasses classes = {};
  const auto middle = [&](int rank) {  // between this rank and the next one
    return (static_cast<double>(table[zero + rank]) + table[zero + rank + 1]) / 2;
  };
  for (int c = 0; c < 7; ++c) {
    const int first = first_rank[c], last = first_rank[c + 1] - 1;
    classes.bound[c] = std::bit_cast<int32_t>(float_below(middle(last)));
    // The function reaches first + 1 at x0 and last at x1. With two ranks, the middle below the first is taken to be
    // as far as the one above it.
    const double x0 = middle(first), x1 = last > first + 1 ? middle(last - 1) : x0;
    double slope = 0;
    if (last > first + 1) slope = (last - first - 1) / (x1 - x0);
    if (last == first + 1) slope = 0.5 / (x0 - table[zero + first]);
    if (c == 0 && last > first) slope = 1 / x0;  // 1 at 0
    classes.slope[c] = static_cast<float>(slope);
    classes.offset[c] = static_cast<float>(last == first ? first + 0.5 : first + 1 - slope * x0);
    classes.most[c] = static_cast<float>(last + 0.5);
  }
  classes.bound[7] = 0x7fffffff;
  classes.offset[7] = classes.most[7] = static_cast<float>(first_rank[7] + 0.5);
  return classes;
}

consteval int state_rank(const StateClasses& classes, float x) {
  int c = 0;
  while (std::bit_cast<int32_t>(x) > classes.bound[c]) ++c;
  // The product is exact and the sum is rounded once.
  const auto rank = static_cast<float>(static_cast<long double>(classes.slope[c]) * x + classes.offset[c]);
  return static_cast<int>(rank < classes.most[c] ? rank : classes.most[c]);
}

consteval StateThresholds state_thresholds(const StateClasses& classes) {
  StateThresholds thresholds = {};
  constexpr uint32_t kOne = 0x3f800000, kInfinity = 0x7f800000;
  for (int k = 0; k < 255; ++k) {
    uint32_t least = 1, above = kOne + 1;
    while (least < above) {
      const uint32_t bits = (least + above) / 2;
      if (state_rank(classes, std::bit_cast<float>(bits)) > k) {
        above = bits;
      } else {
        least = bits + 1;
      }
    }
    thresholds.least[k] = std::bit_cast<float>(least > kOne ? kInfinity : least);
  }
  return thresholds;
}

inline constexpr StateValues kSignedStateValues = state_values(kDynamicSigned, kSignedZero, true);
inline constexpr StateValues kUnsignedStateValues = state_values(kDynamicUnsigned, 0, false);
inline constexpr StateClasses kSignedStateClasses =
    state_classes(kDynamicSigned, kSignedZero, {1, 2, 4, 8, 16, 32, 64, 128});
inline constexpr StateClasses kUnsignedStateClasses =
    state_classes(kDynamicUnsigned, 0, {1, 3, 7, 15, 31, 63, 127, 255});
inline constexpr StateThresholds kSignedStateThresholds = state_thresholds(kSignedStateClasses);
inline constexpr StateThresholds kUnsignedStateThresholds = state_thresholds(kUnsignedStateClasses);

}  // namespace mantissa::kernels
