#pragma once

// Functions of float32 vectors, written once for all vector tiers. This header follows the rules of
// elements_internal.h.

namespace mantissa::kernels::cpu {

/// Returns e^x within 1.5 ulp. The result is 0 below -87.7, where it would be below the normal numbers, and
/// inf above 88.3. NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline typename V::Float exp(typename V::Float x) {
  using Float = typename V::Float;
  // Adding this to a number below 2^22 rounds the number to an integer and leaves it, plus 127, in the lowest
  // bits.
  const Float shift = V::set(0x1.8p23F + 127);
  const Float inside = V::min(V::set(89.0F), V::max(V::set(-88.1F), x));
  const Float shifted = V::fma(inside, V::set(1.44269504F), shift);
  const Float power = V::sub(shifted, shift);
  // x - power * ln 2, with the constant in two parts, the first of which has trailing zeros.
  Float f = V::fma(power, V::set(-0x1.62e4p-1F), inside);
  f = V::fma(power, V::set(-0x1.7f7d1cp-20F), f);
  // The polynomial with the least relative error from e^f for |f| <= ln(2) / 2: 3.1e-9.
  Float value = V::set(0.0013814539F);
  constexpr float kCoefficients[] = {0.008368745F, 0.04166839F, 0.16666521F, 0.49999994F, 1.0F, 1.0F};
  for (const float coefficient : kCoefficients) value = V::fma(value, f, V::set(coefficient));
  return V::mul(value, V::power_of_two(shifted));
}

/// Returns 2^x within a relative error of 1.8e-7 (2.2e-7 below the normal numbers), for x up to 128 only. The
/// result is 0 from -126.5 down and inf above 127.5. NaN stays NaN.
template <class V>
[[gnu::always_inline]] inline typename V::Float exp2(typename V::Float x) {
  using Float = typename V::Float;
  const Float shift = V::set(0x1.8p23F + 127);  // see exp()
  const Float inside = V::max(V::set(-127), x);
  const Float shifted = V::add(inside, shift);
  const Float f = V::sub(inside, V::sub(shifted, shift));
  // The polynomial with the least relative error from 2^f for |f| <= 1/2: 1.1e-7.
  Float value = V::set(0.0013264727F);
  constexpr float kCoefficients[] = {0.009671513F, 0.055507336F, 0.24022242F, 0.693147F, 1.0F};
  for (const float coefficient : kCoefficients) value = V::fma(value, f, V::set(coefficient));
  return V::mul(value, V::power_of_two(shifted));
}

}  // namespace mantissa::kernels::cpu
