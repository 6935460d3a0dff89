#pragma once

#include <cstdint>
#include <immintrin.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/cpu/avx512/vector_internal.h"

namespace mantissa::kernels::cpu::avx512 {
namespace {

/// AVX-512 with the members that quantized4_internal.h needs. One permutation is a table of 16 values, and
/// reads only the lowest four bits of its index.
struct Avx512Code4 : Avx512 {
  using Codes = __m512i;
  using Table = __m512;

  static Table table(const float* values) { return load(values); }

  static Float decode(Table table, const uint8_t* bytes) {
    const __m128i odd = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
    const __m128i both = _mm_unpacklo_epi8(_mm_srli_epi16(odd, 4), odd);
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(both), table);
  }
  template <int kStep>
  static Float look_up(Table table, Float words) {
    __m512i codes = _mm512_castps_si512(words);
    if constexpr (kStep != 1) codes = _mm512_srli_epi32(codes, 4 * (kStep ^ 1));
    return _mm512_permutexvar_ps(codes, table);
  }

  static Codes nf4_codes(Float x) {
    __m512i codes = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (const float threshold : kNF4Thresholds) codes = count_above(codes, x, threshold);
    return codes;
  }
  static Codes fp4_codes(Float x) {
    __m512i place = _mm512_setzero_si512();
    const Float magnitude = abs(x);
#pragma GCC unroll 8
    for (const float threshold : kFP4Thresholds) place = count_above(place, magnitude, threshold);
    const auto& m = kFP4Magnitudes;
    const __m512i codes = _mm512_permutexvar_epi32(
        place, _mm512_setr_epi32(m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7], 0, 0, 0, 0, 0, 0, 0, 0));
    return _mm512_mask_or_epi32(codes, _mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), codes,
                                _mm512_set1_epi32(8));
  }

  static void store_codes(uint8_t* to, const Codes* codes) {
    for (int64_t i = 0; i < 2; ++i) {
      const __m512i bytes = _mm512_or_si512(_mm512_slli_epi64(codes[i], 4), _mm512_srli_epi64(codes[i], 32));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 8 * i), _mm512_cvtepi64_epi8(bytes));
    }
  }

 private:
  static __m512i count_above(__m512i counts, Float x, float threshold) {
    return _mm512_mask_add_epi32(counts, _mm512_cmp_ps_mask(x, set(threshold), _CMP_GT_OQ), counts,
                                 _mm512_set1_epi32(1));
  }
};

}  // namespace
}  // namespace mantissa::kernels::cpu::avx512
