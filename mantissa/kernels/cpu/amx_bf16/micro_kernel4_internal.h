#pragma once

// The micro-kernel of products with 4-bit weights in the tiles of AMX. This header follows the rules of
// quantized4_internal.h.

#include <cstdint>
#include <immintrin.h>
#include <utility>

#include "mantissa/kernels/cpu/avx512/code4_internal.h"
#include "mantissa/kernels/cpu/avx512_bf16/vector_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu::amx_bf16 {
namespace {

using Single = avx512::Avx512Code4;
using Float = __m512;

constexpr int64_t kTileFloats = 256;            // a tile of 16 lines of 64 bytes
constexpr int64_t kDeep = 32, kTileLines = 16;  // steps of k that a tile holds, and its lines
constexpr int64_t kPanelFloats = kTileKC4 / 2 * kTile4;

/// AVX-512 with packed panels of pairs of bf16: kNumbers panels, whose sum is the weight. If there are several, the
/// weight itself follows in float32: a panel of the even steps of k and one of the odd steps.
template <int kNumbers>
struct Terms4 : Single {
  using Single = avx512::Avx512Code4;
  static constexpr int kSteps = 2, kTerms = kNumbers;

  static void store_pairs(float* to, Float first, Float second) {
    if constexpr (kTerms > 1) {
      store(to + kTerms * kPanelFloats, first);
      store(to + (kTerms + 1) * kPanelFloats, second);
    }
#pragma GCC unroll 3
    for (int term = 0; term < kTerms; ++term) {
      const Float pairs = avx512_bf16::pairs_of_lanes(first, second);
      store(to + term * kPanelFloats, pairs);
      if (term + 1 == kTerms) return;
      first = sub(first, first_of(pairs));
      second = sub(second, second_of(pairs));
    }
  }

 private:
  static Float first_of(Float pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
  }
  static Float second_of(Float pairs) {
    return _mm512_and_ps(pairs, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
};

/// A packed group of rows.
struct PackedGroup4 {
  const float* tiles;   ///< for each kDeep steps of k and each term, two tiles
  const float* vector;  ///< element (row, k) of the vector rows at [k * kVectorRows4 + row]
  const float* next;    ///< the tiles of the group that comes next
};

/// Completes the stores before it. GCC 12's intrinsics for tiles do not tell the compiler what memory they read and
/// write, so that it may move or drop those stores.
[[gnu::always_inline]] inline void complete_stores() { __asm__ volatile("" ::: "memory"); }

/// Multiplies a group by a packed panel b: sums[row * kTile4 + column]. Tiles multiply the rows of its micro-tile, and
/// AVX-512 its vector rows, kRow..., at the same time.
///
/// Tiles are much slower on a core whose other hyperthread is busy. A product then takes 31 cycles instead of 14, a load
/// 22 instead of 7, and each waits for the one before (seen on a Xeon of 2.1 GHz). Therefore the products are in an order
/// that needs few loads, what they load is in the L1 cache by then, and AVX-512 multiplies a fifth of the rows meanwhile.
/// On such a core all this takes a third off the time of a float32 product; on an idle one it adds a tenth.
template <int kTerms, bool kHasVectorRows, int... kRow>
void multiply_group(PackedGroup4 group, const float* b, int64_t depth, float* sums, bool accumulate,
                    std::integer_sequence<int, kRow...>) {
  constexpr int64_t kLine = kTile4 * sizeof(float);
  float *const lower = sums + kTileLines * kTile4, *const vector = sums + kTile4 * kTile4;
  complete_stores();
  if (accumulate) {
    _tile_loadd(0, sums, kLine);
    _tile_loadd(1, sums + 16, kLine);
    _tile_loadd(2, lower, kLine);
    _tile_loadd(3, lower + 16, kLine);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const bool adds = kHasVectorRows && accumulate;
  // These are indexed by constants only: see micro_kernel().
  Float left[] = {(adds ? Single::load(vector + kRow * kTile4) : Single::zero())...};
  Float right[] = {(adds ? Single::load(vector + kRow * kTile4 + 16) : Single::zero())...};

  const float *a = group.tiles, *x = group.vector, *weight = b + kTerms * kPanelFloats;
  bool is_odd = false;
  const auto add_vector_steps = [&](int count) __attribute__((always_inline)) {
    if constexpr (!kHasVectorRows) return;
#pragma GCC unroll 2
    for (int step = 0; step < count; ++step, is_odd = !is_odd) {
      const Float first = Single::load(weight), second = Single::load(weight + 16);
      ((left[kRow] = Single::fma(Single::set(x[kRow]), first, left[kRow]),
        right[kRow] = Single::fma(Single::set(x[kRow]), second, right[kRow])),
       ...);
      x += kVectorRows4;
      weight += is_odd ? kTile4 - kPanelFloats : kPanelFloats;
    }
  };

  constexpr int64_t kPairs = kTerms == 3   ? 6
                             : kTerms == 2 ? 4
                                           : 1;  // of terms, for each of which there are four products
  constexpr int64_t kOperand = 2 * kTileFloats;  // the floats of one term of kDeep steps
  const float *next_a = a, *next_b = b;
  int64_t fetched = 0;
  const auto fetch_next = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int64_t line = 0; line < kTerms * kOperand / 16 / (4 * kPairs); ++line, fetched += 16) {
      const int64_t in_panel = fetched / kOperand * kPanelFloats + fetched % kOperand;
      _mm_prefetch(reinterpret_cast<const char*>(next_a + fetched), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(next_b + in_panel), _MM_HINT_T0);
    }
  };

  const auto load_a = [&](int64_t term) __attribute__((always_inline)) {
    _tile_loadd(4, a + term * kOperand, 64);
    _tile_loadd(5, a + term * kOperand + kTileFloats, 64);
  };
  const auto load_b = [&](int64_t term) __attribute__((always_inline)) {
    _tile_loadd(6, b + term * kPanelFloats, kLine);
    _tile_loadd(7, b + term * kPanelFloats + 16, kLine);
  };
  const auto meanwhile = [&]() __attribute__((always_inline)) {
    fetch_next();
    add_vector_steps(kTerms == 3 ? 1 : 2);
  };
  const auto add_products = [&]() __attribute__((always_inline)) {
    _tile_dpbf16ps(0, 4, 6);
    meanwhile();
    _tile_dpbf16ps(1, 4, 7);
    meanwhile();
    _tile_dpbf16ps(2, 5, 6);
    meanwhile();
    _tile_dpbf16ps(3, 5, 7);
    meanwhile();
  };
  const auto add_after_load = [&]() __attribute__((always_inline)) {
    if constexpr (kTerms == 3) add_vector_steps(2);
    add_products();
  };
  const float* const panel = b;
  for (int64_t k = 0; k < depth; k += kDeep) {
    const bool is_last = k + kDeep >= depth;
    next_a = is_last ? group.next : a + kTerms * kOperand;
    next_b = is_last ? panel : b + kOperand;
    fetched = 0;
    load_a(0);
    if constexpr (kTerms == 3) {
      load_b(2);
      add_products();
    }
    if constexpr (kTerms > 1) {
      load_b(1);
      add_after_load();
      load_a(1);
      add_after_load();
    }
    load_b(0);
    if constexpr (kTerms > 1) add_after_load();
    if constexpr (kTerms == 3) {
      load_a(2);
      add_after_load();
    }
    if constexpr (kTerms > 1) load_a(0);
    add_products();
    a += kTerms * kOperand;
    b += kOperand;
  }
  if constexpr (kHasVectorRows) {
    (Single::store(vector + kRow * kTile4, left[kRow]), ...);
    (Single::store(vector + kRow * kTile4 + 16, right[kRow]), ...);
  }
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + 16, kLine);
  _tile_stored(2, lower, kLine);
  _tile_stored(3, lower + 16, kLine);
}

template <int kTerms, bool kHasVectorRows>
void multiply_group(const PackedGroup4& group, const float* b, int64_t depth, float* sums, bool accumulate) {
  multiply_group<kTerms, kHasVectorRows>(group, b, depth, sums, accumulate,
                                         std::make_integer_sequence<int, kVectorRows4>{});
}

}  // namespace
}  // namespace mantissa::kernels::cpu::amx_bf16
