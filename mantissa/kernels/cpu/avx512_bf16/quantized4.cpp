#include "mantissa/kernels/cpu/avx512/code4_internal.h"
#include "mantissa/kernels/cpu/avx512_bf16/vector_internal.h"
#include "mantissa/kernels/cpu/product4_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu::avx512_bf16 {
namespace {

struct Vectors4 : avx512::Avx512Code4 {
  using Single = avx512::Avx512Code4;
  static constexpr int kSteps = 2, kTerms = 1;

  static Float multiply_packed(Float a, Float b, Float c) { return Avx512Bf16::multiply_packed(a, b, c); }
  template <int kWidth>
  static void pack_pairs(Element element, const MicroPanels& panels, int64_t width, int64_t depth,
                         float* to) {
    Avx512Bf16::pack_pairs<kWidth>(element, panels, width, depth, to);
  }

  static void store_pairs(float* to, Float first, Float second) { store(to, pairs_of_lanes(first, second)); }
};

}  // namespace

void product4(const Product4& p, const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  if (p.a.element != Element::kBFloat16) return avx512::product4(p, g, part, scratch);
  product4_with<Vectors4>(p, g, part, scratch);
}

}  // namespace mantissa::kernels::cpu::avx512_bf16
