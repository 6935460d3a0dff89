#pragma once

// States with codes of 8 bits, for all tiers: see state_codes.h. This header follows the rules of
// elements_internal.h. V has these members in addition:
//
//   eight(table)                  the eight floats of a table, in every group of eight lanes
//   pick(eight, i), pick(table, i)     of them, those that the lowest three bits of integers select
//   ranks<kIsSigned>(codes)       floats: the codes of kLanes elements minus 127, or plus 1
//   exponents(x)                  integers: the bits of x >= 0, without those of the fraction
//   with_sign(x, y)               x >= 0 with the sign of y
//   least_class, bits_of, next_above, store_bytes     see blockwise_internal.h
//   state_codes<kIsSigned>(rank, x)    integers: the codes of numbers x with these ranks, rounded down

#include <cstdint>

#include "mantissa/kernels/blockwise.h"
#include "mantissa/kernels/cpu/blockwise_codes_internal.h"
#include "mantissa/kernels/state_codes.h"

namespace mantissa::kernels::cpu {

/// Returns the code of a state that is divided by its block's absmax. NaN counts as 0.
template <class Build>
uint8_t state_code_of(DynamicMap map, float x) {
  const bool is_signed = map == DynamicMap::kSigned, is_negative = x < 0;
  const float size = is_negative ? -x : x, most = size < 2 ? size : size >= 2 ? 2 : 0;
  const float* const least = (is_signed ? kSignedStateThresholds : kUnsignedStateThresholds).least;
  int rank = 0;
  for (int step = 128; step > 0; step /= 2) rank += most >= least[rank + step - 1] ? step : 0;
  if (!is_signed) return static_cast<uint8_t>(is_negative ? 0 : rank);
  if (!is_negative) return static_cast<uint8_t>(kSignedZero + rank);
  return static_cast<uint8_t>(kSignedZero - (rank < kSignedZero ? rank : kSignedZero));
}

/// Decodes the states of a block.
template <class V, DynamicMap kMap>
struct StateDecoder {
  using Float = typename V::Float;
  static constexpr bool kIsSigned = kMap == DynamicMap::kSigned;
  static constexpr const StateValues& kValues = kIsSigned ? kSignedStateValues : kUnsignedStateValues;

  Float slope, offset;

  [[gnu::always_inline]] explicit inline StateDecoder(float absmax)
      : slope(V::mul(V::eight(kValues.slope), V::set(absmax))),
        offset(V::mul(V::eight(kValues.offset), V::set(absmax))) {}
  [[gnu::always_inline]] inline Float operator()(const uint8_t* codes) const {
    const Float f = V::template ranks<kIsSigned>(codes), size = kIsSigned ? V::abs(f) : f;
    const auto which = V::exponents(size);
    // The rounding of a tiny absmax, below 1.2e-38, can make the sum negative.
    const Float value = V::max(V::fma(size, V::pick(slope, which), V::pick(offset, which)), V::zero());
    return kIsSigned ? V::with_sign(value, f) : value;
  }
};

/// Stores the codes of four vectors of states, which `factor` normalizes. None is inf or nan.
template <class V, DynamicMap kMap>
[[gnu::always_inline]] inline void store_state_codes(uint8_t* to, const float* values,
                                                     typename V::Float factor) {
  using Float = typename V::Float;
  constexpr bool kIsSigned = kMap == DynamicMap::kSigned;
  constexpr const StateClasses& kClasses = kIsSigned ? kSignedStateClasses : kUnsignedStateClasses;
  typename V::Int codes[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Float value = V::load(values + i * V::kLanes);
    // The sum makes -0 0, which is not negative.
    const Float x = kIsSigned ? V::fma(value, factor, V::zero()) : V::mul(value, factor);
    const Float size = kIsSigned ? V::abs(x) : x;
    const auto least = V::least_class(size);
    const auto which = V::next_above(least, V::bits_of(size), V::pick(kClasses.bound, least));
    const Float rank = V::fma(size, V::pick(kClasses.slope, which), V::pick(kClasses.offset, which));
    codes[i] = V::template state_codes<kIsSigned>(V::min(rank, V::pick(kClasses.most, which)), x);
  }
  V::store_bytes(to, codes);
}

/// The scale of a block, and the factors that normalize its states.
struct StateScale {
  float absmax, first, second;
  bool is_finite;  ///< whether absmax is the largest magnitude, and not a finite number in its place
};

template <class V>
[[gnu::always_inline]] inline StateScale scale_of(float largest) {
  const float absmax = largest < kLargestFloat ? largest : kLargestFloat;
  const auto [first, second] = normalizer<V>(absmax);
  return {absmax, first, second, largest <= kLargestFloat};
}

/// Encodes a block of states. `values` holds a whole block, and loses its values if they are tiny. Calls also(i)
/// for every kLanes elements, as work that the processor can do at the same time.
template <class V, DynamicMap kMap, bool kIsFinite, class Also>
[[gnu::always_inline]] inline void encode_states(float* values, const StateScale& scale, uint8_t* codes,
                                                 int64_t count, const Also& also) {
  if (scale.first != 1) {
    for (int64_t i = 0; i < kStateBlock; ++i) values[i] *= scale.first;
  }
  if (!kIsFinite || !scale.is_finite) {
    for (int64_t i = 0; i < count; ++i) codes[i] = state_code_of<V>(kMap, values[i] * scale.second);
    for (int64_t i = 0; i < kStateBlock; i += V::kLanes) also(i);
    return;
  }
  uint8_t copy[kStateBlock];
  uint8_t* const to = count == kStateBlock ? codes : copy;
  const auto factor = V::set(scale.second);
  for (int64_t i = 0; i < kStateBlock; i += 4 * V::kLanes) {
    store_state_codes<V, kMap>(to + i, values + i, factor);
#pragma GCC unroll 4
    for (int64_t k = 0; k < 4; ++k) also(i + k * V::kLanes);
  }
  if (to == copy) __builtin_memcpy(codes, copy, static_cast<size_t>(count));
}

}  // namespace mantissa::kernels::cpu
