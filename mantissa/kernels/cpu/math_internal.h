#pragma once

// Functions of float32 vectors, written once for every tier, on the terms of gemm_blocked_internal.h. V names
// also:
//
//   set(value), sub, div        div: a / b
//   max(a, b), min(a, b)        b where a lane of either is NaN
//   if_positive(x, a, b)        a where x > 0, else b
//   power_of_two(x)             2^n of the n + 127 that stand in the lowest bits of x, 0 for n = -127

#include <cstdint>

#include "mantissa/kernels/cpu/gemm.h"

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

/// x times the part of a normal distribution that lies below x, within (4 + x^2) 2^-23 of it, relative.
template <class V>
[[gnu::always_inline]] inline typename V::Float gelu(typename V::Float x) {
  using Float = typename V::Float;
  // Beyond 14 the smaller part is 0. Its square must not overflow.
  const Float size = V::min(V::set(14), V::max(V::sub(V::zero(), x), x));
  const Float s = V::div(V::set(1), V::fma(size, V::set(0.28284271F), V::set(1)));
  // The part beyond |x| is exp(-x^2 / 2) s P(s) / 2, where P is the polynomial that is nearest, in relative
  // terms, to exp(t^2) erfc(t) / s with t = |x| / sqrt(2): within 5.8e-8. So it is not a difference from 1.
  Float part = V::set(0.04026747F);
  for (const float coefficient : {-0.13547097F, 0.073841915F, 0.099729836F, 0.07150815F, 0.19696309F,
                                  0.20095856F, 0.22657572F, 0.2256263F})
    part = V::fma(part, s, V::set(coefficient));
  part = V::mul(V::mul(part, s), V::set(0.5F));
  part = V::mul(part, exp<V>(V::mul(V::mul(size, size), V::set(-0.5F))));
  return V::mul(x, V::if_positive(x, V::sub(V::set(1), part), part));
}

/// x (1 + tanh(z)) / 2 with z = sqrt(2 / pi) (x + 0.044715 x^3), within (4 + 4 |z|) 2^-23, relative: x / (1 +
/// exp(-2 z)).
template <class V>
[[gnu::always_inline]] inline typename V::Float gelu_tanh(typename V::Float x) {
  const auto cubic = V::fma(V::mul(V::mul(x, x), V::set(0.044715F)), x, x);
  return V::div(x, V::add(V::set(1), exp<V>(V::mul(cubic, V::set(-1.5957691F)))));
}

/// In place, of whole vectors.
template <class V>
void activate(Activation activation, float* values, int64_t count) {
  const auto all = [&](const auto& f) __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; i += V::kLanes) V::store(values + i, f(V::load(values + i)));
  };
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      all([](auto x) __attribute__((always_inline)) { return V::max(V::zero(), x); });  // a NaN stays one
      break;
    case Activation::kGelu:
      all([](auto x) __attribute__((always_inline)) { return gelu<V>(x); });
      break;
    case Activation::kGeluTanh:
      all([](auto x) __attribute__((always_inline)) { return gelu_tanh<V>(x); });
      break;
  }
}

}  // namespace mantissa::cpu
