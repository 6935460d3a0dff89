#include "mantissa/kernels/cpu/avx2/code4_internal.h"
#include "mantissa/kernels/cpu/few_rows4_internal.h"
#include "mantissa/kernels/cpu/product4_internal.h"
#include "mantissa/kernels/cpu/quantized4_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu::avx2 {
namespace {

struct Vectors4 : Avx2Code4 {
  using Single = Vectors4;
};

/// Decodes 64 codes. A byte shuffle looks up 32 codes at once, one byte of the values each: four tables make
/// float32 values, in the order that interleaving their bytes leaves.
struct Decoder4 {
  using Float = Vectors4::Float;
  static constexpr int64_t kGroup = 64;

  Decoder4(const float* values, int block_shift) : half_block(block_shift < 6) {
    for (int byte = 0; byte < 4; ++byte) {
      alignas(32) uint8_t bytes[32];
      for (int i = 0; i < 32; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, values + i % 16, sizeof bits);
        bytes[i] = static_cast<uint8_t>(bits >> (8 * byte));
      }
      tables[byte] = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    }
  }

  /// Half of the vectors hold the values of the even codes, then follow those of the odd ones. The two halves
  /// of a vector come from the two halves of the group.
  static constexpr int64_t place(int64_t i) {
    const int64_t odd = i / 32, vector = i % 32 / 8, lane = i % 8;
    return 2 * (4 * vector + lane % 4 + 16 * (lane / 4)) + odd;
  }

  [[gnu::always_inline]] inline Float scales(const float* absmax) const {
    if (!half_block) return Vectors4::broadcast(absmax);
    return _mm256_set_m128(_mm_broadcast_ss(absmax + 1), _mm_broadcast_ss(absmax));
  }
  /// The last group has 32 values and one scale.
  [[gnu::always_inline]] inline Float last_scales(const float* absmax, int64_t /*left*/) const {
    return Vectors4::broadcast(absmax);
  }

  template <int kRows>
  [[gnu::always_inline]] inline void add(const uint8_t* from, const float* x, int64_t step,
                                         Float* sums) const {
    add_codes<kRows>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), x, step, sums);
  }
  template <int kRows>
  [[gnu::always_inline]] inline void add_last(const uint8_t* from, int64_t /*left*/, const float* x,
                                              int64_t step, Float* sums) const {
    add_codes<kRows>(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), x, step,
                     sums);
  }

  static float sum(Float x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  template <int kRows>
  [[gnu::always_inline]] inline void add_codes(__m256i codes, const float* x, int64_t step,
                                               Float* sums) const {
    const __m256i half = _mm256_set1_epi8(15);
    Float even[4], odd[4];
    look_up(_mm256_and_si256(_mm256_srli_epi16(codes, 4), half), even);
    look_up(_mm256_and_si256(codes, half), odd);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      const float* const row = x + r * step;
      Float first = _mm256_mul_ps(even[0], Vectors4::load(row));
      Float second = _mm256_mul_ps(odd[0], Vectors4::load(row + 32));
#pragma GCC unroll 4
      for (int64_t v = 1; v < 4; ++v) {
        first = Vectors4::fma(even[v], Vectors4::load(row + 8 * v), first);
        second = Vectors4::fma(odd[v], Vectors4::load(row + 32 + 8 * v), second);
      }
      sums[r] = Vectors4::add(first, second);
    }
  }

  [[gnu::always_inline]] inline void look_up(__m256i codes, Float* values) const {
    const __m256i b0 = _mm256_shuffle_epi8(tables[0], codes), b1 = _mm256_shuffle_epi8(tables[1], codes);
    const __m256i b2 = _mm256_shuffle_epi8(tables[2], codes), b3 = _mm256_shuffle_epi8(tables[3], codes);
    const __m256i low0 = _mm256_unpacklo_epi8(b0, b1), low1 = _mm256_unpackhi_epi8(b0, b1);
    const __m256i high0 = _mm256_unpacklo_epi8(b2, b3), high1 = _mm256_unpackhi_epi8(b2, b3);
    values[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low0, high0));
    values[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low0, high0));
    values[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low1, high1));
    values[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low1, high1));
  }

  __m256i tables[4] = {};
  bool half_block;  ///< whether a block has 32 values, half of a group
};

}  // namespace

void quantize4(const Quantize4& q, int64_t begin, int64_t end) { quantize4_with<Vectors4>(q, begin, end); }

void dequantize4(const Dequantize4& d, int64_t begin, int64_t end) {
  dequantize4_with<Vectors4>(d, begin, end);
}

void dequantize_rows4(const DequantizeRows4& d, int64_t begin, int64_t end) {
  dequantize_rows4_with<Vectors4>(d, begin, end);
}

void product4(const Product4& p, const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  product4_with<Vectors4>(p, g, part, scratch);
}

void arrange_rows4(const Product4& p, float* to) { arrange_rows4_with<Vectors4, Decoder4>(p, to); }

void few_rows4(const Product4& p, const Gemm& g, const float* arranged, int64_t begin, int64_t end,
               float* sums) {
  few_rows4_with<Vectors4, Decoder4>(p, g, arranged, begin, end, sums);
}

}  // namespace mantissa::kernels::cpu::avx2
