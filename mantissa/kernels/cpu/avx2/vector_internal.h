#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace mantissa::kernels::cpu::avx2 {
// Each source has its own copy of these functions, so that the linker cannot use one tier's copy for another.
namespace {

/// The micro-tile is 6 x 16. Its 12 sums, 2 vectors of b and 1 of a take 15 of the 16 registers.
struct Avx2 {
  static constexpr int kLanes = 8, kMR = 6, kVectors = 2, kSteps = 1;
  using Float = __m256;
  using Short = __m128i;

  static Float zero() { return _mm256_setzero_ps(); }
  static Float load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Float x) { _mm256_storeu_ps(to, x); }
  static Float broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float multiply_packed(Float a, Float b, Float c) { return fma(a, b, c); }
  static Float set(float value) { return _mm256_set1_ps(value); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float power_of_two(Float x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
  }
  static Float abs(Float x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }
  static Float where_negative(Float x, Float a, Float b) { return _mm256_blendv_ps(b, a, x); }
  static Float where_positive(Float x, Float a, Float b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_GT_OQ));
  }
  static bool is_nan(Float x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }

  static Float load_some(const float* from, int64_t count) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes));
  }
  /// Loads up to three elements.
  static uint64_t load_few(const uint16_t* from, int64_t count) {
    if (count < 2) return count == 0 ? 0 : *from;
    uint32_t two = 0;
    std::memcpy(&two, from, sizeof two);
    return count == 2 ? two : two | static_cast<uint64_t>(from[2]) << 32;
  }
  static Short load_short_some(const uint16_t* from, int64_t count) {
    if (count < 4) return _mm_cvtsi64_si128(static_cast<int64_t>(load_few(from, count)));
    uint64_t four = 0;
    std::memcpy(&four, from, sizeof four);
    return _mm_set_epi64x(static_cast<int64_t>(load_few(from + 4, count - 4)), static_cast<int64_t>(four));
  }
  static Short load_short(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void store_short(uint16_t* to, Short x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
  static Float widen_bf16(Short x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static __m256i rounded_to_bf16(Float x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  }
  static Short narrow_bf16(Float x) {
    const __m256i rounded = _mm256_srli_epi32(rounded_to_bf16(x), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i kept = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
  }
  static void load_two_bf16(const uint16_t* from, Float* two) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    two[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    two[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
  static void store_two_bf16(uint16_t* to, const Float* two) {
    const __m256i even = _mm256_srli_epi32(rounded_to_bf16(two[0]), 16), odd = rounded_to_bf16(two[1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi16(even, odd, 0xaa));
  }
  static void store_pair_bf16(uint16_t* to, Float first, Float second) {
    const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded_to_bf16(first), 16),
                                               _mm256_srli_epi32(rounded_to_bf16(second), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static Float widen_fp16(Short x) { return _mm256_cvtph_ps(x); }
  static Short narrow_fp16(Float x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  template <int kGroup, int kLane>
  static Float spread(Float x) {
    return _mm256_permute_ps(x, kGroup == 4 ? kLane * 0x55 : 0xa0 + kLane * 0x55);
  }

  [[gnu::always_inline]] static inline void transpose(Float* rows) {
    // Interleaves pairs of rows, then groups of four rows inside each 128-bit half, and then swaps the
    // halves.
    const Float a0 = _mm256_unpacklo_ps(rows[0], rows[1]), a1 = _mm256_unpackhi_ps(rows[0], rows[1]);
    const Float a2 = _mm256_unpacklo_ps(rows[2], rows[3]), a3 = _mm256_unpackhi_ps(rows[2], rows[3]);
    const Float a4 = _mm256_unpacklo_ps(rows[4], rows[5]), a5 = _mm256_unpackhi_ps(rows[4], rows[5]);
    const Float a6 = _mm256_unpacklo_ps(rows[6], rows[7]), a7 = _mm256_unpackhi_ps(rows[6], rows[7]);
    const Float b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xee);
    const Float b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xee);
    const Float b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xee);
    const Float b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xee);
    rows[0] = _mm256_permute2f128_ps(b0, b4, 0x20), rows[4] = _mm256_permute2f128_ps(b0, b4, 0x31);
    rows[1] = _mm256_permute2f128_ps(b1, b5, 0x20), rows[5] = _mm256_permute2f128_ps(b1, b5, 0x31);
    rows[2] = _mm256_permute2f128_ps(b2, b6, 0x20), rows[6] = _mm256_permute2f128_ps(b2, b6, 0x31);
    rows[3] = _mm256_permute2f128_ps(b3, b7, 0x20), rows[7] = _mm256_permute2f128_ps(b3, b7, 0x31);
  }
};

/// For the sources in cpu/shared/.
using Vectors = Avx2;

}  // namespace
}  // namespace mantissa::kernels::cpu::avx2
