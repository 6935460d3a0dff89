#pragma once

// Functions of float32 vectors, written once for every tier, on the terms of elements_internal.h.

namespace mantissa::kernels::cpu {

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
  constexpr float kCoefficients[] = {0.008368745F, 0.04166839F, 0.16666521F, 0.49999994F, 1.0F, 1.0F};
  for (const float coefficient : kCoefficients) value = V::fma(value, f, V::set(coefficient));
  return V::mul(value, V::power_of_two(shifted));
}

/// 2^x, within a relative error of 1.8e-7 (2.2e-7 below the normal numbers); 0 from -126.5 down and inf above
/// 127.5; for x up to 128 alone. NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline typename V::Float exp2(typename V::Float x) {
  using Float = typename V::Float;
  const Float shift = V::set(0x1.8p23F + 127);  // see exp()
  const Float inside = V::max(V::set(-127), x);
  const Float shifted = V::add(inside, shift);
  const Float f = V::sub(inside, V::sub(shifted, shift));
  // The polynomial that is nearest to 2^f, in relative terms, where |f| <= 1/2: within 1.1e-7.
  Float value = V::set(0.0013264727F);
  constexpr float kCoefficients[] = {0.009671513F, 0.055507336F, 0.24022242F, 0.693147F, 1.0F};
  for (const float coefficient : kCoefficients) value = V::fma(value, f, V::set(coefficient));
  return V::mul(value, V::power_of_two(shifted));
}

}  // namespace mantissa::kernels::cpu
