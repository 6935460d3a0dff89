#pragma once

// What every kernel with vectors builds on. Each kernel is written once for every tier: the tier instantiates it
// with V, a struct of its own anonymous namespace, so that each instance is that file's alone; nothing here
// may be compiled without V. V names:
//
//   kLanes, kMR, kVectors       lanes of a vector; the micro-tile: MR x NR, where NR = kVectors * kLanes
//   kSteps                      steps of k that a lane of a micro-panel holds: 1 float32, or 2 bf16
//   multiply_packed(a, b, c)    c + the product of what the lanes of micro-panels hold
//   Float, Short                kLanes float32, kLanes 16-bit values
//   zero, load, store, broadcast, add, mul, fma (a * b + c)
//   load_short, store_short
//   load_some, load_short_some  the first elements, 0 in the other lanes, whose memory is not read
//   widen_bf16, widen_fp16, narrow_bf16, narrow_fp16            narrow: to nearest even, NaN kept
//   load_two_bf16, store_two_bf16                               see Elements::load_two()
//   store_pair_bf16                                          see Elements::store_pair()
//   spread<kGroup, kLane>(x)    in each group of 2 or 4 lanes, that lane in all
//   transpose(Float* rows)      of kLanes vectors
//   set(value), sub, div        div: a / b
//   max(a, b), min(a, b)        b where a lane of either is NaN
//   abs(x), where_positive(x, a, b)     b where x is not, or is NaN
//   where_negative(x, a, b)     by the bit of x's sign
//   is_nan(x)                   whether any lane is
//   power_of_two(x)             2^n of the n + 127 that stand in the lowest bits of x, 0 for n = -127

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels::cpu {

template <Element kElement>
struct StorageOf {
  using type = uint16_t;
};
template <>
struct StorageOf<Element::kFloat32> {
  using type = float;
};

/// Reads and writes elements of one type. kRounded: what a float32 value is rounded to on its way.
template <class V, Element kElement, Element kRounded = kElement>
struct Elements {
  using Storage = typename StorageOf<kElement>::type;
  using Float = typename V::Float;

  [[gnu::always_inline]] static inline Float load(const Storage* from) {
    if constexpr (kElement == Element::kFloat32) {
      return widen(V::load(from));
    } else {
      return widen(V::load_short(from));
    }
  }

  /// The first `count` of kLanes, fewer than all; 0 in the other lanes, whose memory is not read.
  [[gnu::always_inline]] static inline Float load_some(const Storage* from, int64_t count) {
    if constexpr (kElement == Element::kFloat32) {
      return widen(V::load_some(from, count));
    } else {
      return widen(V::load_short_some(from, count));
    }
  }

  template <typename Raw>
  [[gnu::always_inline]] static inline Float widen(Raw raw) {
    if constexpr (kElement == Element::kBFloat16) {
      return V::widen_bf16(raw);
    } else if constexpr (kElement == Element::kFloat16) {
      return V::widen_fp16(raw);
    } else if constexpr (kRounded == Element::kBFloat16) {
      return V::widen_bf16(V::narrow_bf16(raw));
    } else if constexpr (kRounded == Element::kFloat16) {
      return V::widen_fp16(V::narrow_fp16(raw));
    } else {
      return raw;
    }
  }

  [[gnu::always_inline]] static inline void store(Storage* to, Float value) {
    if constexpr (kElement == Element::kBFloat16) {
      V::store_short(to, V::narrow_bf16(value));
    } else if constexpr (kElement == Element::kFloat16) {
      V::store_short(to, V::narrow_fp16(value));
    } else {
      V::store(to, widen(value));
    }
  }

  /// store() of two vectors, one behind the other. As to NaN see store_two().
  [[gnu::always_inline]] static inline void store_pair(Storage* to, Float first, Float second) {
    if constexpr (kElement == Element::kBFloat16) {
      V::store_pair_bf16(to, first, second);
    } else {
      store(to, first);
      store(to + V::kLanes, second);
    }
  }

  /// The next 2 * kLanes elements, in an order of their own that store_two() undoes: of bf16 those of even
  /// and those of odd places, which no instruction has to move.
  [[gnu::always_inline]] static inline void load_two(const Storage* from, Float* two) {
    if constexpr (kElement == Element::kBFloat16) {
      V::load_two_bf16(from, two);
    } else {
      two[0] = load(from);
      two[1] = load(from + V::kLanes);
    }
  }

  /// A NaN stays one whose last 16 bits are 0, so that rounding cannot carry it over: all that come of
  /// elements of this type, and those that arithmetic makes. It keeps its bits, where store() writes 0x7fc0.
  [[gnu::always_inline]] static inline void store_two(Storage* to, const Float* two) {
    if constexpr (kElement == Element::kBFloat16) {
      V::store_two_bf16(to, two);
    } else {
      store(to, two[0]);
      store(to + V::kLanes, two[1]);
    }
  }

  /// The same of elements that are `stride` apart, up to all of them.
  static Float gather(const Storage* from, int64_t stride, int64_t count) {
    alignas(64) Storage values[V::kLanes] = {};
    for (int64_t i = 0; i < count; ++i) values[i] = from[i * stride];
    return load(values);
  }

  static void scatter(Storage* to, int64_t stride, int64_t count, Float value) {
    alignas(64) Storage values[V::kLanes];
    store(values, value);
    for (int64_t i = 0; i < count; ++i) to[i * stride] = values[i];
  }
};

/// f(Elements<...>{}) for an operand of type `element` beside one of type `other`, to which float32 is
/// rounded.
template <class V, class F>
[[gnu::always_inline]] inline auto with_elements(Element element, Element other, const F& f) {
  if (element == Element::kBFloat16) return f(Elements<V, Element::kBFloat16>{});
  if (element == Element::kFloat16) return f(Elements<V, Element::kFloat16>{});
  if (other == Element::kBFloat16) return f(Elements<V, Element::kFloat32, Element::kBFloat16>{});
  if (other == Element::kFloat16) return f(Elements<V, Element::kFloat32, Element::kFloat16>{});
  return f(Elements<V, Element::kFloat32>{});
}

}  // namespace mantissa::kernels::cpu
