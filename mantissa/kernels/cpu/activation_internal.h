#pragma once

// Activations, written once for every tier with vectors, on the terms of elements_internal.h.

#include <type_traits>

#include "mantissa/kernels/cpu/activation.h"
#include "mantissa/kernels/cpu/elements_internal.h"
#include "mantissa/kernels/cpu/math_internal.h"

namespace mantissa::cpu {

/// The normal distribution at x.
template <class V>
struct Normal {
  typename V::Float below;    ///< its share below x
  typename V::Float density;  ///< sqrt(2 pi) times its density
};

/// Below -|x| the share is the density times Mills' ratio, which is the polynomial of t = 1 / (1 + 0.31 |x|) that
/// is nearest to it in relative terms: within 1.7e-7.
template <class V>
[[gnu::always_inline]] inline Normal<V> normal(typename V::Float x) {
  using Float = typename V::Float;
  const Float one = V::set(1), size = V::abs(x);
  const Float density = exp<V>(V::mul(V::mul(x, V::set(-0.5F)), x));
  const Float t = V::div(one, V::fma(size, V::set(0.31F), one));
  Float value = V::set(0.035854928F);
  constexpr float kCoefficients[] = {-0.14166197F, 0.15517141F, -0.0150035908F, 0.110166095F,
                                     0.10775312F,  0.12406340F, 0.123656698F};
  for (const float coefficient : kCoefficients) value = V::fma(value, t, V::set(coefficient));
  const Float outside = V::mul(V::mul(value, t), density);
  return {V::where_negative(x, outside, V::sub(one, outside)), density};
}

/// The factor of tanh's form of GELU, 1 / (1 + exp(-2 u)), and u's derivative times two.
template <class V>
struct Logistic {
  typename V::Float value, slope;
};

template <class V>
[[gnu::always_inline]] inline Logistic<V> logistic(typename V::Float x) {
  using Float = typename V::Float;
  constexpr float kTwice = 1.59576912F;  // 2 sqrt(2 / pi)
  const Float one = V::set(1), square = V::mul(x, x);
  const Float inner = V::fma(V::mul(square, V::set(0.044715F)), x, x);
  const Float value = V::div(one, V::add(one, exp<V>(V::mul(inner, V::set(-kTwice)))));
  return {value, V::fma(square, V::set(3 * 0.044715F * kTwice), V::set(kTwice))};
}

template <class V>
[[gnu::always_inline]] inline typename V::Float activated(Activation activation, typename V::Float x) {
  switch (activation) {
    case Activation::kRelu:
      return V::max(V::zero(), x);
    case Activation::kGelu:
      return V::mul(x, normal<V>(x).below);
    case Activation::kGeluTanh:
      return V::mul(x, logistic<V>(x).value);
    case Activation::kNone:
      break;
  }
  return x;
}

template <class V>
[[gnu::always_inline]] inline typename V::Float activation_slope(Activation activation, typename V::Float x) {
  switch (activation) {
    case Activation::kRelu:
      return V::where_positive(x, V::set(1), V::zero());
    case Activation::kGelu: {
      const Normal<V> n = normal<V>(x);
      return V::fma(V::mul(x, n.density), V::set(0.398942280F), n.below);
    }
    case Activation::kGeluTanh: {
      // Beyond, the slope is 0 or 1, but its factors would be infinite.
      x = V::min(V::set(16), V::max(V::set(-16), x));
      const Logistic<V> l = logistic<V>(x);
      const auto bend = V::mul(V::mul(x, l.slope), V::sub(V::set(1), l.value));
      return V::fma(bend, l.value, l.value);
    }
    case Activation::kNone:
      break;
  }
  return V::set(1);
}

/// f(Activation) as a constant, so that a loop chooses once.
template <class F>
[[gnu::always_inline]] inline void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kNone:
      return f(std::integral_constant<Activation, Activation::kNone>{});
    case Activation::kRelu:
      return f(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kGelu:
      return f(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kGeluTanh:
      return f(std::integral_constant<Activation, Activation::kGeluTanh>{});
  }
}

template <class V>
void activate_with(Activation activation, Element element, const void* x, void* out, int64_t count) {
  with_elements<V>(element, element, [&](auto elements) {
    using Values = decltype(elements);
    const auto* const from = static_cast<const typename Values::Storage*>(x);
    auto* const to = static_cast<typename Values::Storage*>(out);
    with_activation(activation, [&](auto which) {
      constexpr Activation kActivation = which();
      int64_t i = 0;
      for (; i + V::kLanes <= count; i += V::kLanes)
        Values::store(to + i, activated<V>(kActivation, Values::load(from + i)));
      if (i < count)
        Values::scatter(to + i, 1, count - i,
                        activated<V>(kActivation, Values::load_some(from + i, count - i)));
    });
  });
}

template <class V>
void activate_backward_with(Activation activation, Element element, const void* gradient, const void* x,
                            void* out, int64_t count) {
  with_elements<V>(element, element, [&](auto elements) {
    using Values = decltype(elements);
    const auto* const values = static_cast<const typename Values::Storage*>(x);
    const auto* const gradients = static_cast<const typename Values::Storage*>(gradient);
    auto* const to = static_cast<typename Values::Storage*>(out);
    with_activation(activation, [&](auto which) {
      constexpr Activation kActivation = which();
      int64_t i = 0;
      for (; i + V::kLanes <= count; i += V::kLanes)
        Values::store(to + i, V::mul(Values::load(gradients + i),
                                     activation_slope<V>(kActivation, Values::load(values + i))));
      if (i < count) {
        const auto slope = activation_slope<V>(kActivation, Values::load_some(values + i, count - i));
        Values::scatter(to + i, 1, count - i, V::mul(Values::load_some(gradients + i, count - i), slope));
      }
    });
  });
}

}  // namespace mantissa::cpu
