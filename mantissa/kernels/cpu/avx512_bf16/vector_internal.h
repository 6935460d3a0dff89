#pragma once

#include <cstdint>
#include <immintrin.h>

#include "mantissa/kernels/cpu/avx512/vector_internal.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"

namespace mantissa::cpu::avx512_bf16 {
// Not shared with other sources: no linker may take one tier's copy for another's.
namespace {

using avx512::Avx512;

/// Reads operands as bf16: kLanes elements, or along k as many pairs; what float32 holds is rounded to nearest
/// even, denormals to 0. `some`: the first `count` elements, then zeros.
template <Element kElement>
struct Bf16Source {
  using Storage = uint16_t;
  static __m256i load(const Storage* from) { return Avx512::load_short(from); }
  static __m256i load_some(const Storage* from, int64_t count) {
    return Avx512::load_short_some(from, count);
  }
  static __m512i load_pairs(const Storage* from) { return _mm512_loadu_si512(from); }
  static __m512i load_some_pairs(const Storage* from, int64_t count) {
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << count) - 1), from);
  }
};

template <>
struct Bf16Source<Element::kFloat32> {
  using Storage = float;
  static __m256i round(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
  static __m512i round(__m512 first, __m512 second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  }
  static __m256i load(const Storage* from) { return round(Avx512::load(from)); }
  static __m256i load_some(const Storage* from, int64_t count) {
    return round(Avx512::load_some(from, count));
  }
  static __m512i load_pairs(const Storage* from) {
    return round(Avx512::load(from), Avx512::load(from + Avx512::kLanes));
  }
  static __m512i load_some_pairs(const Storage* from, int64_t count) {
    return count < Avx512::kLanes
               ? round(Avx512::load_some(from, count), Avx512::zero())
               : round(Avx512::load(from), Avx512::load_some(from + Avx512::kLanes, count - Avx512::kLanes));
  }
};

/// pack_panel() of gemm_blocked_internal.h, with `depth` elements of k in pairs: the earlier in the low half of a
/// lane, after the last of an odd number 0.
template <int kWidth, class Source>
void pack_pairs_panel(const typename Source::Storage* from, int64_t lane_stride, int64_t k_stride,
                      int64_t lanes, int64_t depth, float* to) {
  constexpr int64_t kLanes = Avx512::kLanes, kMost = kWidth < kLanes ? kWidth : kLanes;
  for (int64_t begin = 0; begin < kWidth && begin < lanes; begin += kLanes) {
    const int64_t here = lanes - begin < kMost ? lanes - begin : kMost;
    const typename Source::Storage* const first = from + begin * lane_stride;
    float* const panel = to + begin;
    if (k_stride == 1) {
      for (int64_t k = 0; k < depth; k += 2 * kLanes) {
        Avx512::Float rows[kLanes];
        const int64_t left = depth - k;
        if (here == kMost && left >= 2 * kLanes) {
#pragma GCC unroll 16
          for (int64_t lane = 0; lane < kLanes; ++lane)
            rows[lane] = lane < kMost
                             ? _mm512_castsi512_ps(Source::load_pairs(first + lane * lane_stride + k))
                             : Avx512::zero();
        } else {
          for (int64_t lane = 0; lane < kLanes; ++lane) {
            const auto* const row = first + lane * lane_stride + k;
            rows[lane] = lane >= here         ? Avx512::zero()
                         : left >= 2 * kLanes ? _mm512_castsi512_ps(Source::load_pairs(row))
                                              : _mm512_castsi512_ps(Source::load_some_pairs(row, left));
          }
        }
        Avx512::transpose(rows);
        float* const out = panel + k / 2 * kWidth;
        if (left >= 2 * kLanes) {
#pragma GCC unroll 16
          for (int64_t row = 0; row < kLanes; ++row) Avx512::store(out + row * kWidth, rows[row]);
        } else {
          for (int64_t row = 0; row < (left + 1) / 2; ++row) Avx512::store(out + row * kWidth, rows[row]);
        }
      }
      continue;
    }
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
      Avx512::store(panel + k / 2 * kWidth, _mm512_castsi512_ps(pairs));
    }
  }
}

/// AVX-512 whose packed panels hold pairs of bf16.
struct Avx512Bf16 : Avx512 {
  static constexpr int kSteps = 2;

  /// The later product of a pair is added first; each is exact and each sum rounded to float32. Denormals are
  /// taken, and sums that would be are written, as 0.
  static Float multiply_packed(Float a, Float b, Float c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  /// pack() of gemm_blocked_internal.h.
  template <int kWidth>
  static void pack_pairs(Element element, const Panels& panels, int64_t width, int64_t depth, float* to) {
    const auto pack_all = [&](auto source) {
      using Source = decltype(source);
      // In ascending order: see pack_panel() about what it writes past a panel's end.
      for (int64_t lane = 0; lane < width; lane += kWidth)
        pack_pairs_panel<kWidth, Source>(
            static_cast<const typename Source::Storage*>(panels.data) + lane * panels.lane_stride,
            panels.lane_stride, panels.k_stride, panels.lanes - lane, depth,
            to + lane * packed_depth<Avx512Bf16>(depth));
    };
    if (element == Element::kFloat32) return pack_all(Bf16Source<Element::kFloat32>{});
    pack_all(Bf16Source<Element::kBFloat16>{});
  }
};

}  // namespace
}  // namespace mantissa::cpu::avx512_bf16
