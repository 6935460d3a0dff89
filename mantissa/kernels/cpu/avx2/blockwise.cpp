#include <cstring>

#include "mantissa/kernels/cpu/avx2/vector_internal.h"
#include "mantissa/kernels/cpu/blockwise_internal.h"

namespace mantissa::kernels::cpu::avx2 {
namespace {

struct Avx2Codes : Avx2 {
  using Int = __m256i;
  using Lanes = __m256i;

  static Float sqrt(Float x) { return _mm256_sqrt_ps(x); }
  static float largest(Float x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  /// Eight loads: a gather takes longer on most CPUs that have no AVX-512.
  static Float look_up(const float* table, const uint8_t* codes) {
    return _mm256_setr_ps(table[codes[0]], table[codes[1]], table[codes[2]], table[codes[3]], table[codes[4]],
                          table[codes[5]], table[codes[6]], table[codes[7]]);
  }
  static Float where_finite(Float x, Float a, Float b) {
    const Float infinity = _mm256_set1_ps(__builtin_inff());
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(abs(x), infinity, _CMP_LT_OQ));
  }
  static Float sign(Float x) {
    const Float one = _mm256_set1_ps(1),
                size = abs(_mm256_and_ps(_mm256_cmp_ps(x, zero(), _CMP_NEQ_OQ), one));
    return _mm256_or_ps(
        size, _mm256_and_ps(x, _mm256_and_ps(_mm256_cmp_ps(x, zero(), _CMP_LT_OQ), _mm256_set1_ps(-0.0F))));
  }
  static Int least_class(Float x) {
    const Int high = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
    const Int above = _mm256_subs_epu16(high, _mm256_set1_epi32(CodeClasses::kFirst));
    return _mm256_mulhi_epu16(above, _mm256_set1_epi32(CodeClasses::kFactor));
  }
  static Int bits_of(Float x) { return _mm256_castps_si256(x); }
  static Int rotated(Float x) {
    return _mm256_add_epi32(_mm256_add_epi32(bits_of(x), bits_of(x)), _mm256_srli_epi32(bits_of(x), 31));
  }
  static Int next_above(Int i, Int bits, Int bounds) {
    return _mm256_sub_epi32(i, _mm256_cmpgt_epi32(bits, bounds));
  }
  static Int pick(const int32_t* table, Int i) {
    return _mm256_permutevar8x32_epi32(_mm256_load_si256(reinterpret_cast<const Int*>(table)), i);
  }
  static Float pick(const float* table, Int i) { return _mm256_permutevar8x32_ps(_mm256_load_ps(table), i); }
  static Int truncate(Float x) { return _mm256_cvttps_epi32(x); }
  static Lanes is_whole(Int units) {
    const Int fraction = _mm256_set1_epi32((1 << CodeClasses::kFraction) - 2);
    const Int next = _mm256_add_epi32(units, _mm256_set1_epi32(1));
    return _mm256_cmpeq_epi32(_mm256_and_si256(next, fraction), _mm256_setzero_si256());
  }
  static uint32_t bits(Lanes lanes) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
  }
  static Int whole(Int units) { return _mm256_srli_epi32(units, CodeClasses::kFraction); }
  template <bool kIsSigned>
  static Int code_of_rank(Int rank, Float x) {
    if constexpr (!kIsSigned) return rank;
    // -1 has no code of its own: its code would be -1, which store_bytes() makes 0.
    return _mm256_add_epi32(_mm256_sign_epi32(rank, bits_of(x)), _mm256_set1_epi32(127));
  }
  static Float eight(const float* table) { return _mm256_load_ps(table); }
  static Float pick(Float eight, Int i) { return _mm256_permutevar8x32_ps(eight, i); }
  template <bool kIsSigned>
  static Float ranks(const uint8_t* codes) {
    const Int wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(wide, _mm256_set1_epi32(kIsSigned ? -127 : 1)));
  }
  static Int exponents(Float x) { return _mm256_srli_epi32(bits_of(x), 23); }
  static Float with_sign(Float x, Float y) {
    return _mm256_or_ps(x, _mm256_and_ps(y, _mm256_set1_ps(-0.0F)));
  }
  template <bool kIsSigned>
  static Int state_codes(Float rank, Float x) {
    const Int code = _mm256_sign_epi32(truncate(rank), bits_of(x));  // 0 where x is 0
    return kIsSigned ? _mm256_add_epi32(code, _mm256_set1_epi32(127)) : code;
  }
  static Int to_bytes(const Int (&codes)[4]) {
    const Int bytes =
        _mm256_packus_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static void store_bytes(uint8_t* to, const Int (&codes)[4]) {
    _mm256_storeu_si256(reinterpret_cast<Int*>(to), to_bytes(codes));
  }

  static Int nibbles(const uint8_t* from) {
    int32_t four = 0;
    std::memcpy(&four, from, sizeof four);
    const __m128i bytes = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(four));
    const __m128i high = _mm_srli_epi16(bytes, 4), low = _mm_slli_epi16(bytes, 8);
    return _mm256_cvtepu8_epi32(_mm_and_si128(_mm_or_si128(high, low), _mm_set1_epi8(15)));
  }
  static Float look_up_16(const float* table, Int codes) {
    const Float low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), codes);
    const Float high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
  }
  static Float to_float(Int i) { return _mm256_cvtepi32_ps(i); }
  static Int doubled(Int i, Float x, Float bound) {
    const Int reached = _mm256_castps_si256(_mm256_cmp_ps(x, bound, _CMP_GE_OQ));
    return _mm256_sub_epi32(_mm256_add_epi32(i, i), reached);
  }
  static void store_nibbles(uint8_t* to, const Int (&codes)[4]) {
    const Int pairs = _mm256_maddubs_epi16(to_bytes(codes), _mm256_set1_epi16(0x0110));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
  }
};

}  // namespace

void quantize_blocks(const QuantizeBlockwise& problem, int64_t first, int64_t last) {
  quantize_blocks_with<Avx2Codes>(problem, first, last);
}

void dequantize_blocks(const DequantizeBlockwise& problem, int64_t first, int64_t last) {
  dequantize_blocks_with<Avx2Codes>(problem, first, last);
}

void update_blocks(const BlockwiseUpdate& problem, int64_t first, int64_t last) {
  update_blocks_with<Avx2Codes>(problem, first, last);
}

}  // namespace mantissa::kernels::cpu::avx2
