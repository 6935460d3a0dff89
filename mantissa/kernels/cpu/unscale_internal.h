#pragma once

// Unscaling, written once for every tier with vectors, on the terms of elements_internal.h.

#include "mantissa/kernels/cpu/elements_internal.h"
#include "mantissa/kernels/cpu/unscale.h"

namespace mantissa::cpu {

/// 0 times inf or nan is nan, of all else 0: two sums of such products keep any nan, and are looked at once.
template <class V, class Source, bool kWrites>
bool unscale_values(void* values, int64_t count, float inv_scale) {
  auto* const data = static_cast<typename Source::Storage*>(values);
  const auto factor = V::broadcast(&inv_scale), zero = V::zero();
  auto even = zero, odd = zero;
  int64_t i = 0;
  for (; i + 2 * V::kLanes <= count; i += 2 * V::kLanes) {
    const auto first = Source::load(data + i), second = Source::load(data + i + V::kLanes);
    even = V::fma(first, zero, even);
    odd = V::fma(second, zero, odd);
    if constexpr (kWrites) {
      Source::store(data + i, V::mul(first, factor));
      Source::store(data + i + V::kLanes, V::mul(second, factor));
    }
  }
  while (i < count) {
    const int64_t here = count - i < V::kLanes ? count - i : V::kLanes;
    const auto rest = Source::gather(data + i, 1, here);
    even = V::fma(rest, zero, even);
    if constexpr (kWrites) Source::scatter(data + i, 1, here, V::mul(rest, factor));
    i += here;
  }
  return V::is_nan(V::add(even, odd));
}

template <class V>
bool unscale_with(void* values, Element element, int64_t count, float inv_scale) {
  return with_elements<V>(element, element, [&](auto source) {
    return inv_scale == 1 ? unscale_values<V, decltype(source), false>(values, count, inv_scale)
                          : unscale_values<V, decltype(source), true>(values, count, inv_scale);
  });
}

}  // namespace mantissa::cpu
