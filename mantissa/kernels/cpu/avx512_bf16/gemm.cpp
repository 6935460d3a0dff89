#include "mantissa/kernels/cpu/avx512_bf16/vector_internal.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/cpu/gemm_shallow_internal.h"
#include "mantissa/kernels/cpu/gemv_internal.h"

namespace mantissa::kernels::cpu::avx512_bf16 {
namespace {

/// True if both operands are bf16, or one is bf16 and the other is float32, which is rounded to bf16.
bool is_of_pairs(const Gemm& g) {
  return g.a.element != Element::kFloat16 && g.b.element != Element::kFloat16 &&
         (g.a.element == Element::kBFloat16 || g.b.element == Element::kBFloat16);
}

}  // namespace

void gemm(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  if (!is_of_pairs(g) || is_gemv<Avx512Bf16>(g) || is_shallow<Avx512Bf16>(g))
    return avx512::gemm(g, part, scratch);
  gemm_blocked<Avx512Bf16>(g, part, scratch);
}

}  // namespace mantissa::kernels::cpu::avx512_bf16
