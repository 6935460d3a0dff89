#pragma once

// How the vector tiers widen 16-bit values for fp8_internal.h. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels::cpu {

template <class V>
struct WidenWith {
  static void widen(Element element, const void* in, int64_t begin, int64_t count, float* out) {
    const auto* const from = static_cast<const uint16_t*>(in) + begin;
    element == Element::kBFloat16 ? widen_as<true>(from, count, out) : widen_as<false>(from, count, out);
  }

 private:
  template <bool kBFloat16>
  static void widen_as(const uint16_t* from, int64_t count, float* out) {
    const auto widened = [](typename V::Short x) {
      if constexpr (kBFloat16) return V::widen_bf16(x);
      return V::widen_fp16(x);
    };
    int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes) V::store(out + i, widened(V::load_short(from + i)));
    if (i == count) return;
    float rest[V::kLanes];
    V::store(rest, widened(V::load_short_some(from + i, count - i)));
    for (int64_t lane = 0; lane < count - i; ++lane) out[i + lane] = rest[lane];
  }
};

}  // namespace mantissa::kernels::cpu
