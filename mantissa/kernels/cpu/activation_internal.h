#pragma once

// Activations, written once for all vector tiers. This header follows the rules of elements_internal.h.

#include <type_traits>

#include "mantissa/kernels/cpu/activation_kernel.h"
#include "mantissa/kernels/cpu/elements_internal.h"
#include "mantissa/kernels/cpu/math_internal.h"

namespace mantissa::kernels::cpu {

/// The normal distribution at x.
template <class V>
struct Normal {
  typename V::Float below;    ///< the share of the distribution below x
  typename V::Float density;  ///< sqrt(2 pi) times its density
};

/// Below -|x| the share is the density times Mills' ratio. The ratio is t = 1 / (1 + 0.362 |x|) times a
/// polynomial of degree 6 in t, the one with the least relative error: 8e-7 where the density is not 0.
/// (Degree 7 would give 1.6e-7 for one more of some twenty operations; 16-bit results do not show the
/// difference.)
template <class V>
[[gnu::always_inline]] inline Normal<V> normal(typename V::Float x) {
  using Float = typename V::Float;
  const Float one = V::set(1), size = V::abs(x);
  const Float density = exp2<V>(V::mul(V::mul(x, V::set(-0.72134752F)), x));
  const Float t = V::div(one, V::fma(size, V::set(0.362F), one));
  Float value = V::set(0.047938243F);
  constexpr float kCoefficients[] = {-0.18000953F, 0.17661709F, 0.028831609F,
                                     0.13942964F,  0.14268932F, 0.1445039F};
  for (const float coefficient : kCoefficients) value = V::fma(value, t, V::set(coefficient));
  const Float outside = V::mul(V::mul(value, t), density);
  return {V::where_negative(x, outside, V::sub(one, outside)), density};
}

/// The factor of GELU's tanh form, 1 / (1 + exp(-2 u)), and twice the derivative of u.
template <class V>
struct Logistic {
  typename V::Float value, slope;
};

template <class V>
[[gnu::always_inline]] inline Logistic<V> logistic(typename V::Float x) {
  using Float = typename V::Float;
  constexpr float kTwice = 1.59576912F;     // 2 sqrt(2 / pi)
  constexpr float kToBase2 = -2.30220820F;  // -kTwice / ln 2
  const Float one = V::set(1), square = V::mul(x, x);
  const Float power = V::mul(V::fma(square, V::set(0.044715F * kToBase2), V::set(kToBase2)), x);
  const Float value = V::div(one, V::add(one, exp2<V>(V::min(V::set(128), power))));
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
      // Beyond these bounds the slope is 0 or 1, but its factors would be infinite.
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

/// Calls f with the activation as a constant, so that a loop selects it once.
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
      for (; i + 2 * V::kLanes <= count; i += 2 * V::kLanes) {
        typename V::Float two[2];
        Values::load_two(from + i, two);
        for (auto& each : two) each = activated<V>(kActivation, each);
        Values::store_two(to + i, two);
      }
      if (i + V::kLanes <= count) {
        Values::store(to + i, activated<V>(kActivation, Values::load(from + i)));
        i += V::kLanes;
      }
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
      for (; i + 2 * V::kLanes <= count; i += 2 * V::kLanes) {
        typename V::Float two[2], two_gradients[2];
        Values::load_two(values + i, two);
        Values::load_two(gradients + i, two_gradients);
        for (int k = 0; k < 2; ++k)
          two[k] = V::mul(two_gradients[k], activation_slope<V>(kActivation, two[k]));
        Values::store_two(to + i, two);
      }
      if (i + V::kLanes <= count) {
        const auto slope = activation_slope<V>(kActivation, Values::load(values + i));
        Values::store(to + i, V::mul(Values::load(gradients + i), slope));
        i += V::kLanes;
      }
      if (i < count) {
        const auto slope = activation_slope<V>(kActivation, Values::load_some(values + i, count - i));
        Values::scatter(to + i, 1, count - i, V::mul(Values::load_some(gradients + i, count - i), slope));
      }
    });
  });
}

}  // namespace mantissa::kernels::cpu
