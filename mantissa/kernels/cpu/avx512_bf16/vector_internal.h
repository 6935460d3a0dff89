#pragma once

#include <cstdint>
#include <immintrin.h>
#include <type_traits>

#include "mantissa/kernels/cpu/avx512/vector_internal.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"

namespace mantissa::kernels::cpu::avx512_bf16 {
// Each source has its own copy of these functions, so that the linker cannot use one tier's copy for another.
namespace {

using avx512::Avx512;

/// Reads kLanes elements as bf16. float32 is rounded to nearest even, and denormals become 0. load_some()
/// reads the first `count` elements, followed by zeros.
template <Element kElement>
struct Lanes {
  using Storage = uint16_t;
  static __m256i load(const Storage* from) { return Avx512::load_short(from); }
  static __m256i load_some(const Storage* from, int64_t count) {
    return Avx512::load_short_some(from, count);
  }
};

template <>
struct Lanes<Element::kFloat32> {
  using Storage = float;
  static __m256i load(const Storage* from) { return round(Avx512::load(from)); }
  static __m256i load_some(const Storage* from, int64_t count) {
    return round(Avx512::load_some(from, count));
  }
  static __m256i round(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
};

/// Reads kLanes pairs of adjacent elements in the same way.
template <Element kElement>
struct Pairs {
  using Storage = uint16_t;
  static __m512 load(const Storage* from) { return _mm512_castsi512_ps(_mm512_loadu_si512(from)); }
  static __m512 load_some(const Storage* from, int64_t count) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from));
  }
};

template <>
struct Pairs<Element::kFloat32> {
  using Storage = float;
  static __m512 load(const Storage* from) {
    return round(Avx512::load(from), Avx512::load(from + Avx512::kLanes));
  }
  static __m512 load_some(const Storage* from, int64_t count) {
    return count < Avx512::kLanes
               ? round(Avx512::load_some(from, count), Avx512::zero())
               : round(Avx512::load(from), Avx512::load_some(from + Avx512::kLanes, count - Avx512::kLanes));
  }
  static __m512 round(__m512 first, __m512 second) {
    return reinterpret_cast<__m512>(_mm512_cvtne2ps_pbh(second, first));
  }
};

/// Returns the pair of each lane, rounded to bf16, with that of `first` in the low half.
inline __m512 pairs_of_lanes(__m512 first, __m512 second) {
  alignas(64) static constexpr uint16_t kInTurn[] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                     21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), both));
}

/// pack_micro_panel() of gemm_blocked_internal.h for any k_stride, with `depth` elements of k in pairs. The
/// earlier element is in the low half of a lane; an odd last element is paired with 0.
template <int kWidth, Element kElement>
void pack_pairs_apart(const typename Lanes<kElement>::Storage* from, int64_t lane_stride, int64_t k_stride,
                      int64_t lanes, int64_t depth, float* to) {
  using Source = Lanes<kElement>;
  constexpr int64_t kLanes = Avx512::kLanes, kMaxLanes = kWidth < kLanes ? kWidth : kLanes;
  for (int64_t begin = 0; begin < kWidth && begin < lanes; begin += kLanes) {
    const int64_t here = lanes - begin < kMaxLanes ? lanes - begin : kMaxLanes;
    const auto* const first = from + begin * lane_stride;
    const auto read = [&](const typename Source::Storage* step) __attribute__((always_inline)) {
      if (lane_stride == 1) return here == kLanes ? Source::load(step) : Source::load_some(step, here);
      alignas(64) typename Source::Storage values[kLanes] = {};
      for (int64_t lane = 0; lane < here; ++lane) values[lane] = step[lane * lane_stride];
      return Source::load(values);
    };
    for (int64_t k = 0; k < depth; k += 2) {
      __m512i pairs = _mm512_cvtepu16_epi32(read(first + k * k_stride));
      if (k + 1 < depth)
        pairs = _mm512_or_si512(
            pairs, _mm512_slli_epi32(_mm512_cvtepu16_epi32(read(first + (k + 1) * k_stride)), 16));
      Avx512::store(to + begin + k / 2 * kWidth, _mm512_castsi512_ps(pairs));
    }
  }
}

/// AVX-512 with packed panels that hold pairs of bf16.
struct Avx512Bf16 : Avx512 {
  static constexpr int kSteps = 2;

  /// Adds the later product of a pair first. Each product is exact, and each sum is rounded to float32.
  /// Denormal inputs and results become 0.
  static Float multiply_packed(Float a, Float b, Float c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  /// See pack() of gemm_blocked_internal.h.
  template <int kWidth>
  static void pack_pairs(Element element, const MicroPanels& panels, int64_t width, int64_t depth,
                         float* to) {
    if (element == Element::kFloat32)
      return pack_pairs_of<kWidth, Element::kFloat32>(panels, width, depth, to);
    pack_pairs_of<kWidth, Element::kBFloat16>(panels, width, depth, to);
  }

 private:
  template <int kWidth, Element kElement>
  static void pack_pairs_of(const MicroPanels& panels, int64_t width, int64_t depth, float* to) {
    const auto* const data = static_cast<const typename Pairs<kElement>::Storage*>(panels.data);
    // In ascending order, because pack_micro_panel() may write past a panel's end.
    for (int64_t lane = 0; lane < width; lane += kWidth) {
      const auto* const from = data + lane * panels.lane_stride;
      const int64_t lanes = panels.lanes - lane;
      float* const panel = to + lane * packed_depth<Avx512Bf16>(depth);
      if (panels.k_stride == 1) {
        pack_along_k<Avx512Bf16, kWidth, Pairs<kElement>>(from, panels.lane_stride, lanes, depth, panel,
                                                          std::integral_constant<int64_t, kWidth>{});
      } else {
        pack_pairs_apart<kWidth, kElement>(from, panels.lane_stride, panels.k_stride, lanes, depth, panel);
      }
    }
  }
};

}  // namespace
}  // namespace mantissa::kernels::cpu::avx512_bf16
