#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/cpu/avx2/vector_internal.h"

namespace mantissa::kernels::cpu::avx2 {
namespace {

/// AVX2 with the members that quantized4_internal.h needs. A permutation has eight lanes, so that each value
/// is looked up in both halves of the table.
struct Avx2Code4 : Avx2 {
  using Codes = __m256i;
  struct Table {
    __m256 low, high;
  };

  static Table table(const float* values) { return {load(values), load(values + 8)}; }

  /// The codes are the lowest four bits of `index`; bit 3 is the highest bit of `upper`.
  static Float select(const Table& table, __m256i index, __m256i upper) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index),
                            _mm256_permutevar8x32_ps(table.high, index), _mm256_castsi256_ps(upper));
  }
  static Float decode(const Table& table, const uint8_t* bytes) {
    int32_t word = 0;
    std::memcpy(&word, bytes, sizeof word);
    const __m256i words = _mm256_set1_epi32(word);
    const __m256i index = _mm256_srlv_epi32(words, _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24));
    return select(table, index, _mm256_slli_epi32(index, 28));
  }
  template <int kStep>
  static Float look_up(const Table& table, Float words) {
    constexpr int kShift = 4 * (kStep ^ 1);
    const __m256i codes = _mm256_castps_si256(words);
    return select(table, _mm256_srli_epi32(codes, kShift), _mm256_slli_epi32(codes, 28 - kShift));
  }

  static Codes nf4_codes(Float x) {
    __m256i codes = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (const float threshold : kNF4Thresholds) codes = count_above(codes, x, threshold);
    return codes;
  }
  static Codes fp4_codes(Float x) {
    __m256i place = _mm256_setzero_si256();
    const Float magnitude = abs(x);
#pragma GCC unroll 8
    for (const float threshold : kFP4Thresholds) place = count_above(place, magnitude, threshold);
    const auto& m = kFP4Magnitudes;
    const __m256i codes =
        _mm256_permutevar8x32_epi32(_mm256_setr_epi32(m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7]), place);
    const __m256i negative = _mm256_castps_si256(_mm256_cmp_ps(x, zero(), _CMP_LT_OQ));
    return _mm256_or_si256(codes, _mm256_and_si256(negative, _mm256_set1_epi32(8)));
  }

  static void store_codes(uint8_t* to, const Codes* codes) {
    const __m256i first = _mm256_packs_epi32(codes[0], codes[1]),
                  second = _mm256_packs_epi32(codes[2], codes[3]);
    // Packing interleaves the halves of the vectors.
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x0110));  // 16 * even + odd
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }

 private:
  static __m256i count_above(__m256i counts, Float x, float threshold) {
    return _mm256_sub_epi32(counts, _mm256_castps_si256(_mm256_cmp_ps(x, set(threshold), _CMP_GT_OQ)));
  }
};

}  // namespace
}  // namespace mantissa::kernels::cpu::avx2
