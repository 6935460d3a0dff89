#pragma once

// The basis of every vector kernel. Each kernel is written once for all tiers. A tier instantiates it with V,
// a struct of its own anonymous namespace, so that each instance belongs to that source file; nothing here
// may be compiled without V. V has these members:
//
//   kLanes, kMR, kVectors       lanes of a vector; the micro-tile is MR x NR, where NR = kVectors * kLanes
//   kSteps                      steps of k that a lane of a micro-panel holds: 1 for float32, 2 for bf16
//   multiply_packed(a, b, c)    c + the product of what the lanes of micro-panels hold
//   Float, Short                vectors of kLanes float32 values, of kLanes 16-bit values
//   zero, load, store, broadcast, add, mul, fma (a * b + c)
//   load_short, store_short
//   load_some, load_short_some  the first elements; the other lanes are 0 and their memory is not read
//   widen_bf16, widen_fp16, narrow_bf16, narrow_fp16            narrow: to nearest even, NaN kept
//   load_two_bf16, store_two_bf16                               see Elements::load_two()
//   store_pair_bf16                                             see Elements::store_pair()
//   spread<kGroup, kLane>(x)    copies that lane to all lanes of each group of 2 or 4
//   transpose(Float* rows)      transposes kLanes vectors
//   set(value), sub, div        div: a / b
//   max(a, b), min(a, b)        b where a lane of either is NaN
//   abs(x), where_positive(x, a, b)     b where x is not positive, or is NaN
//   where_negative(x, a, b)     a where the sign bit of x is set
//   is_nan(x)                   whether any lane is NaN
//   power_of_two(x)             2^n, where the lowest bits of x hold n + 127; 0 for n = -127

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

/// Reads and writes elements of one type. kRounded is the type to which a float32 value is rounded on the
/// way.
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

  /// Loads the first `count` of kLanes elements, fewer than all. The other lanes are 0 and their memory is
  /// not read.
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

  /// Stores two vectors, one behind the other. See store_two() for NaN.
  [[gnu::always_inline]] static inline void store_pair(Storage* to, Float first, Float second) {
    if constexpr (kElement == Element::kBFloat16) {
      V::store_pair_bf16(to, first, second);
    } else {
      store(to, first);
      store(to + V::kLanes, second);
    }
  }

  /// Loads the next 2 * kLanes elements in an internal order, which store_two() reverses. For bf16 these are
  /// the elements at even and at odd positions, because no instruction then has to move them.
  [[gnu::always_inline]] static inline void load_two(const Storage* from, Float* two) {
    if constexpr (kElement == Element::kBFloat16) {
      V::load_two_bf16(from, two);
    } else {
      two[0] = load(from);
      two[1] = load(from + V::kLanes);
    }
  }

  /// Requires that the last 16 bits of a NaN are 0, so that rounding cannot carry: true for NaNs from
  /// elements of this type, and for those that arithmetic makes. The NaN keeps its bits, whereas store()
  /// writes 0x7fc0.
  [[gnu::always_inline]] static inline void store_two(Storage* to, const Float* two) {
    if constexpr (kElement == Element::kBFloat16) {
      V::store_two_bf16(to, two);
    } else {
      store(to, two[0]);
      store(to + V::kLanes, two[1]);
    }
  }

  /// Loads `count` elements that are `stride` apart, up to kLanes.
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

/// Calls f(Elements<...>{}) for an operand of type `element` beside one of type `other`, to which float32 is
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
