#include "mantissa/kernels/cpu/avx512/vector_internal.h"
#include "mantissa/kernels/cpu/int8_internal.h"

namespace mantissa::kernels::cpu::avx512_vnni {
namespace {

/// One instruction multiplies four codes and adds their products. It takes one operand without a sign, so that
/// the codes of a are stored with an offset of 128, whose part of each sum is subtracted in the end.
struct VectorsInt8 : avx512::Avx512 {
  using Plain = avx512::Avx512;
  static constexpr int kSteps = 4, kOffset = 128;

  struct RightCodes {
    using Storage = int8_t;
    static Float load(const int8_t* from) { return _mm512_castsi512_ps(_mm512_loadu_si512(from)); }
    static Float load_some(const int8_t* from, int64_t count) {
      return _mm512_castsi512_ps(_mm512_maskz_loadu_epi8((uint64_t{1} << count) - 1, from));
    }
  };
  struct LeftCodes {
    using Storage = int8_t;
    static Float load(const int8_t* from) { return with_offset(RightCodes::load(from)); }
    static Float load_some(const int8_t* from, int64_t count) {
      return with_offset(RightCodes::load_some(from, count));
    }
    static Float with_offset(Float codes) {
      return _mm512_castsi512_ps(
          _mm512_xor_si512(_mm512_castps_si512(codes), _mm512_set1_epi8(static_cast<char>(0x80))));
    }
  };

  static Float add(Float a, Float b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static Float multiply_packed(Float a, Float b, Float c) {
    return _mm512_castsi512_ps(
        _mm512_dpbusd_epi32(_mm512_castps_si512(c), _mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static Float add_columns(Float sums, Float codes) {
    return multiply_packed(_mm512_castsi512_ps(_mm512_set1_epi8(1)), codes, sums);
  }
  static Float without_offset(Float sums, Float columns) {
    return _mm512_castsi512_ps(
        _mm512_sub_epi32(_mm512_castps_si512(sums), _mm512_slli_epi32(_mm512_castps_si512(columns), 7)));
  }
  static Float to_floats(Float x) { return _mm512_cvtepi32_ps(_mm512_castps_si512(x)); }
};

}  // namespace

void product_int8(const ProductInt8& p, const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  product_int8_with<VectorsInt8>(p, g, part, scratch);
}

}  // namespace mantissa::kernels::cpu::avx512_vnni
