#pragma once

// Functions of float32 vectors, written once for every tier, on the terms of gemm_blocked_internal.h. V names
// also:
//
//   set(value), sub, div        div: a / b
//   max(a, b), min(a, b)        b where a lane of either is NaN
//   power_of_two(x)             2^n of the n + 127 that stand in the lowest bits of x, 0 for n = -127

#include "mantissa/kernels/cpu/gemm_blocked_internal.h"

namespace mantissa::cpu {

/// e^x, within 1.5 units in the last place; 0 below -87.7, whose exponential is below the normal numbers, and
/// inf above 88.3; NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline typename V::Float exp(typename V::Float x) {
  using Float = typename V::Float;
  // Added to a number below 2^22, it rounds that to a whole one and leaves it, and 127, in the lowest bits.
  const Float shift = V::set(0x1.8p23F + 127);
  const Float inside = V::min(V::set(89.0F), V::max(V::set(-88.1F), x));
  const Float shifted = V::fma(inside, V::set(1.44269504F), shift);
  const Float power = V::sub(shifted, shift);
  // x - power * ln 2, the constant in two parts of which the first has trailing zeros.
  Float f = V::fma(power, V::set(-0x1.62e4p-1F), inside);
  f = V::fma(power, V::set(-0x1.7f7d1cp-20F), f);
  // The polynomial that is nearest to e^f, in relative terms, where |f| <= ln(2) / 2: within 3.1e-9.
  Float value = V::set(0.0013814539F);
  for (const float coefficient : {0.008368745F, 0.04166839F, 0.16666521F, 0.49999994F, 1.0F, 1.0F})
    value = V::fma(value, f, V::set(coefficient));
  return V::mul(value, V::power_of_two(shifted));
}

}  // namespace mantissa::cpu
