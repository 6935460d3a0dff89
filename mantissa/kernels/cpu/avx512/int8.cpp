#include "mantissa/kernels/cpu/avx512/vector_internal.h"
#include "mantissa/kernels/cpu/int8_internal.h"

namespace mantissa::kernels::cpu::avx512 {
namespace {

/// As in tier avx2.
struct VectorsInt8 : Avx512 {
  using Plain = Avx512;
  static constexpr int kSteps = 2, kOffset = 0;

  struct Codes {
    using Storage = int8_t;
    static Float load(const int8_t* from) {
      return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static Float load_some(const int8_t* from, int64_t count) {
      return widen(_mm256_maskz_loadu_epi8(static_cast<__mmask32>((uint64_t{1} << count) - 1), from));
    }
    static Float widen(__m256i codes) { return _mm512_castsi512_ps(_mm512_cvtepi8_epi16(codes)); }
  };
  using LeftCodes = Codes;
  using RightCodes = Codes;

  static Float add(Float a, Float b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static Float multiply_packed(Float a, Float b, Float c) {
    return add(c, _mm512_castsi512_ps(_mm512_madd_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b))));
  }
  static Float to_floats(Float x) { return _mm512_cvtepi32_ps(_mm512_castps_si512(x)); }
};

/// The floats that are quantized and restored.
struct FloatsInt8 : Avx512 {
  static Float load_codes(const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static void store_rounded(int8_t* to, const Float* x) {
    for (int64_t i = 0; i < 2; ++i)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i),
                       _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x[i])));
  }
};

}  // namespace

void quantize_int8(const QuantizeInt8& q, int64_t begin, int64_t end, uint8_t* outliers) {
  quantize_int8_with<FloatsInt8>(q, begin, end, outliers);
}

void dequantize_int8(const DequantizeInt8& d, int64_t begin, int64_t end) {
  dequantize_int8_with<FloatsInt8>(d, begin, end);
}

void product_int8(const ProductInt8& p, const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  product_int8_with<VectorsInt8>(p, g, part, scratch);
}

}  // namespace mantissa::kernels::cpu::avx512
