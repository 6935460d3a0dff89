#include "mantissa/kernels/cpu/avx512/vector_internal.h"
#include "mantissa/kernels/cpu/blockwise_internal.h"

namespace mantissa::kernels::cpu::avx512 {
namespace {

struct Avx512Codes : Avx512 {
  using Int = __m512i;
  using Lanes = __mmask16;

  static Float sqrt(Float x) { return _mm512_sqrt_ps(x); }
  static float largest(Float x) { return _mm512_reduce_max_ps(x); }
  /// Sixteen loads: a gather takes longer on some CPUs.
  static Float look_up(const float* table, const uint8_t* codes) {
    const auto half = [&](const uint8_t* c) {
      return _mm256_setr_ps(table[c[0]], table[c[1]], table[c[2]], table[c[3]], table[c[4]], table[c[5]],
                            table[c[6]], table[c[7]]);
    };
    return _mm512_insertf32x8(_mm512_castps256_ps512(half(codes)), half(codes + 8), 1);
  }
  static __mmask16 is_finite(Float x) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
  }
  static Float where_finite(Float x, Float a, Float b) { return _mm512_mask_blend_ps(is_finite(x), b, a); }
  static Float sign(Float x) {
    const Float up = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_GT_OQ), _mm512_set1_ps(1));
    return _mm512_mask_mov_ps(up, _mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), _mm512_set1_ps(-1));
  }
  static Int least_class(Float x) {
    const Int high = _mm512_srli_epi32(_mm512_castps_si512(x), 16);
    const Int above = _mm512_subs_epu16(high, _mm512_set1_epi32(CodeClasses::kFirst));
    return _mm512_mulhi_epu16(above, _mm512_set1_epi32(CodeClasses::kFactor));
  }
  static Int bits_of(Float x) { return _mm512_castps_si512(x); }
  static Int rotated(Float x) { return _mm512_rol_epi32(bits_of(x), 1); }
  static Int next_above(Int i, Int bits, Int bounds) {
    return _mm512_mask_add_epi32(i, _mm512_cmpgt_epi32_mask(bits, bounds), i, _mm512_set1_epi32(1));
  }
  static Int pick(const int32_t* table, Int i) {
    const __m256i eight = _mm256_load_si256(reinterpret_cast<const __m256i*>(table));
    return _mm512_permutexvar_epi32(i, _mm512_castsi256_si512(eight));
  }
  static Float pick(const float* table, Int i) {
    return _mm512_permutexvar_ps(i, _mm512_castps256_ps512(_mm256_load_ps(table)));
  }
  static Int truncate(Float x) { return _mm512_cvttps_epi32(x); }
  static Lanes is_whole(Int units) {
    const Int fraction = _mm512_set1_epi32((1 << CodeClasses::kFraction) - 2);
    return _mm512_testn_epi32_mask(_mm512_add_epi32(units, _mm512_set1_epi32(1)), fraction);
  }
  static uint32_t bits(uint32_t lanes) { return lanes; }
  static Int whole(Int units) { return _mm512_srli_epi32(units, CodeClasses::kFraction); }
  template <bool kIsSigned>
  static Int code_of_rank(Int rank, Float x) {
    if constexpr (!kIsSigned) return rank;
    const Lanes negative = _mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ);
    const Int zero_code = _mm512_set1_epi32(127);
    // -1 has no code of its own: its code would be -1, which store_bytes() makes 0.
    return _mm512_mask_sub_epi32(_mm512_add_epi32(zero_code, rank), negative, zero_code, rank);
  }
  static Float eight(const float* table) { return _mm512_broadcast_f32x8(_mm256_load_ps(table)); }
  static Float pick(Float eight, Int i) { return _mm512_permutexvar_ps(i, eight); }
  template <bool kIsSigned>
  static Float ranks(const uint8_t* codes) {
    const Int wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    return _mm512_cvtepi32_ps(_mm512_add_epi32(wide, _mm512_set1_epi32(kIsSigned ? -127 : 1)));
  }
  static Int exponents(Float x) { return _mm512_srli_epi32(bits_of(x), 23); }
  static Float with_sign(Float x, Float y) {
    constexpr int kXOrYAndSign = 0xf8;
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        bits_of(x), bits_of(y), _mm512_set1_epi32(static_cast<int>(0x80000000)), kXOrYAndSign));
  }
  template <bool kIsSigned>
  static Int state_codes(Float rank, Float x) {
    const Int size = _mm512_maskz_cvttps_epi32(_mm512_test_epi32_mask(bits_of(x), bits_of(x)), rank);
    if constexpr (!kIsSigned) return size;
    const Int zero_code = _mm512_set1_epi32(127);
    return _mm512_mask_sub_epi32(_mm512_add_epi32(zero_code, size), _mm512_movepi32_mask(bits_of(x)),
                                 zero_code, size);
  }
  static Int to_bytes(const Int (&codes)[4]) {
    const Int bytes =
        _mm512_packus_epi16(_mm512_packs_epi32(codes[0], codes[1]), _mm512_packs_epi32(codes[2], codes[3]));
    const Int order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, bytes);
  }
  static void store_bytes(uint8_t* to, const Int (&codes)[4]) { _mm512_storeu_si512(to, to_bytes(codes)); }

  static Int nibbles(const uint8_t* from) {
    const __m128i bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m128i high = _mm_srli_epi16(bytes, 4), low = _mm_slli_epi16(bytes, 8);
    return _mm512_cvtepu8_epi32(_mm_and_si128(_mm_or_si128(high, low), _mm_set1_epi8(15)));
  }
  static Float look_up_16(const float* table, Int codes) {
    return _mm512_permutexvar_ps(codes, _mm512_loadu_ps(table));
  }
  static Float to_float(Int i) { return _mm512_cvtepi32_ps(i); }
  static Int doubled(Int i, Float x, Float bound) {
    const Int twice = _mm512_add_epi32(i, i);
    return _mm512_mask_add_epi32(twice, _mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), twice,
                                 _mm512_set1_epi32(1));
  }
  static void store_nibbles(uint8_t* to, const Int (&codes)[4]) {
    const Int pairs = _mm512_maddubs_epi16(to_bytes(codes), _mm512_set1_epi16(0x0110));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(pairs));
  }
};

}  // namespace

void quantize_blocks(const QuantizeBlockwise& problem, int64_t first, int64_t last) {
  quantize_blocks_with<Avx512Codes>(problem, first, last);
}

void dequantize_blocks(const DequantizeBlockwise& problem, int64_t first, int64_t last) {
  dequantize_blocks_with<Avx512Codes>(problem, first, last);
}

void update_blocks(const BlockwiseUpdate& problem, int64_t first, int64_t last) {
  update_blocks_with<Avx512Codes>(problem, first, last);
}

}  // namespace mantissa::kernels::cpu::avx512
