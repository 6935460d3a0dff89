#include "mantissa/kernels/cpu/avx512/code4_internal.h"
#include "mantissa/kernels/cpu/few_rows4_internal.h"
#include "mantissa/kernels/cpu/product4_internal.h"
#include "mantissa/kernels/cpu/quantized4_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu::avx512 {
namespace {

struct Vectors4 : Avx512Code4 {
  using Single = Vectors4;
};

/// Decodes 128 codes: eight for each lane, which a shift brings to the lowest bits one after another.
struct Decoder4 {
  using Float = Vectors4::Float;
  static constexpr int64_t kGroup = 128;

  Decoder4(const float* values, int block_shift)
      : table(Vectors4::table(values)),
        shift(block_shift < 7 ? block_shift : 7),
        some(mask_of(kGroup >> shift)),
        places(_mm512_srli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                 static_cast<unsigned>(shift - 3))) {}

  static constexpr int64_t place(int64_t i) { return i % 16 * 8 + i / 16; }

  [[gnu::always_inline]] inline Float scales(const float* absmax) const {
    return _mm512_permutexvar_ps(places, _mm512_maskz_loadu_ps(some, absmax));
  }
  [[gnu::always_inline]] inline Float last_scales(const float* absmax, int64_t left) const {
    return _mm512_permutexvar_ps(places, _mm512_maskz_loadu_ps(mask_of(left >> shift), absmax));
  }

  template <int kRows>
  [[gnu::always_inline]] inline void add(const uint8_t* from, const float* x, int64_t step,
                                         Float* sums) const {
    add_words<kRows>(_mm512_loadu_si512(from), x, step, sums);
  }
  template <int kRows>
  [[gnu::always_inline]] inline void add_last(const uint8_t* from, int64_t left, const float* x, int64_t step,
                                              Float* sums) const {
    add_words<kRows>(_mm512_maskz_loadu_epi32(mask_of(left / 8), from), x, step, sums);
  }

  static float sum(Float x) { return _mm512_reduce_add_ps(x); }

 private:
  static __mmask16 mask_of(int64_t lanes) { return static_cast<__mmask16>((1U << lanes) - 1); }

  template <int kRows>
  [[gnu::always_inline]] inline void add_words(__m512i codes, const float* x, int64_t step,
                                               Float* sums) const {
    const Float words = _mm512_castsi512_ps(codes);
    const Float values[] = {Vectors4::look_up<0>(table, words), Vectors4::look_up<1>(table, words),
                            Vectors4::look_up<2>(table, words), Vectors4::look_up<3>(table, words),
                            Vectors4::look_up<4>(table, words), Vectors4::look_up<5>(table, words),
                            Vectors4::look_up<6>(table, words), Vectors4::look_up<7>(table, words)};
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      const float* const row = x + r * step;
      Float first = Vectors4::mul(values[0], Vectors4::load(row));
      Float second = Vectors4::mul(values[1], Vectors4::load(row + 16));
#pragma GCC unroll 4
      for (int64_t v = 2; v < 8; v += 2) {
        first = Vectors4::fma(values[v], Vectors4::load(row + 16 * v), first);
        second = Vectors4::fma(values[v + 1], Vectors4::load(row + 16 * (v + 1)), second);
      }
      sums[r] = Vectors4::add(first, second);
    }
  }

  Vectors4::Table table;
  int shift;       ///< log2 of the values of a group that share a scale
  __mmask16 some;  ///< the scales of a group
  __m512i places;  ///< which of them belongs to each lane
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

}  // namespace mantissa::kernels::cpu::avx512
