#pragma once

#include <cstdint>
#include <immintrin.h>

namespace mantissa::kernels::cpu::avx512 {
// Each source has its own copy of these functions, so that the linker cannot use one tier's copy for another.
namespace {

/// The micro-tile is 12 x 32. Its 24 sums and 2 vectors of b take 26 of the 32 registers; a is a memory
/// operand of the multiply-add.
struct Avx512 {
  static constexpr int kLanes = 16, kMR = 12, kVectors = 2, kSteps = 1;
  using Float = __m512;
  using Short = __m256i;

  static Float zero() { return _mm512_setzero_ps(); }
  static Float load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Float x) { _mm512_storeu_ps(to, x); }
  static Float broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float multiply_packed(Float a, Float b, Float c) { return fma(a, b, c); }
  static Float set(float value) { return _mm512_set1_ps(value); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float power_of_two(Float x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23));
  }
  static Float abs(Float x) { return _mm512_abs_ps(x); }
  static Float where_negative(Float x, Float a, Float b) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), b, a);
  }
  static Float where_positive(Float x, Float a, Float b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_GT_OQ), b, a);
  }
  static bool is_nan(Float x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

  static Float load_some(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), from);
  }
  static Short load_short_some(const uint16_t* from, int64_t count) {
    return _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << count) - 1), from);
  }
  static Short load_short(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_short(uint16_t* to, Short x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
  static Float widen_bf16(Short x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static __m512i rounded_to_bf16(Float x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  }
  static Short narrow_bf16(Float x) {
    const __m512i rounded = _mm512_srli_epi32(rounded_to_bf16(x), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, _mm512_set1_epi32(0x7fc0)));
  }
  static void load_two_bf16(const uint16_t* from, Float* two) {
    const __m512i pairs = _mm512_loadu_si512(from);
    two[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    two[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  static void store_two_bf16(uint16_t* to, const Float* two) {
    const __m512i even = _mm512_srli_epi32(rounded_to_bf16(two[0]), 16), odd = rounded_to_bf16(two[1]);
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, even, odd));
  }
  static void store_pair_bf16(uint16_t* to, Float first, Float second) {
    alignas(64) static constexpr uint16_t kOdd[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                    23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                    45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(rounded_to_bf16(first), _mm512_load_si512(kOdd),
                                                      rounded_to_bf16(second)));
  }
  static Float widen_fp16(Short x) { return _mm512_cvtph_ps(x); }
  static Short narrow_fp16(Float x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  template <int kGroup, int kLane>
  static Float spread(Float x) {
    return _mm512_permute_ps(x, kGroup == 4 ? kLane * 0x55 : 0xa0 + kLane * 0x55);
  }

  [[gnu::always_inline]] static inline void transpose(Float* rows) {
    // Transposes pairs and quadruples of rows inside each quarter, then quarters, as a 4 x 4 transpose of 128
    // bits each.
    Float pairs[16], quads[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      quads[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      quads[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Float even_low = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0x88);
      const Float odd_low = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0xdd);
      const Float even_high = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0x88);
      const Float odd_high = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0xdd);
      rows[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      rows[i + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      rows[i + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      rows[i + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
  }
};

/// For the sources in cpu/shared/.
using Vectors = Avx512;

}  // namespace
}  // namespace mantissa::kernels::cpu::avx512
