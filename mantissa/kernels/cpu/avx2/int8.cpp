#include "mantissa/kernels/cpu/avx2/vector_internal.h"
#include "mantissa/kernels/cpu/int8_internal.h"

namespace mantissa::kernels::cpu::avx2 {
namespace {

/// Widens the codes to int16 while packing: one instruction multiplies pairs and adds the two products, which
/// cannot overflow. The instruction for bytes needs more instructions around it, and gains nothing.
struct VectorsInt8 : Avx2 {
  using Plain = Avx2;
  static constexpr int kSteps = 2, kOffset = 0;

  struct Codes {
    using Storage = int8_t;
    static Float load(const int8_t* from) {
      return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    static Float load_some(const int8_t* from, int64_t count) {
      alignas(16) int8_t codes[16] = {};
      std::memcpy(codes, from, static_cast<size_t>(count));
      return load(codes);
    }
    static Float widen(__m128i codes) { return _mm256_castsi256_ps(_mm256_cvtepi8_epi16(codes)); }
  };
  using LeftCodes = Codes;
  using RightCodes = Codes;

  static Float add(Float a, Float b) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static Float multiply_packed(Float a, Float b, Float c) {
    return add(c, _mm256_castsi256_ps(_mm256_madd_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b))));
  }
  static Float to_floats(Float x) { return _mm256_cvtepi32_ps(_mm256_castps_si256(x)); }
};

/// The floats that are quantized and restored.
struct FloatsInt8 : Avx2 {
  static Float load_codes(const int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static void store_rounded(int8_t* to, const Float* x) {
    const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1])),
                  second = _mm256_packs_epi32(_mm256_cvtps_epi32(x[2]), _mm256_cvtps_epi32(x[3]));
    // Packing interleaves the halves of the vectors.
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
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

}  // namespace mantissa::kernels::cpu::avx2
