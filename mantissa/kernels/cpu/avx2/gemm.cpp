#include "mantissa/kernels/cpu/avx2/vector_internal.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/cpu/gemm_shallow_internal.h"
#include "mantissa/kernels/cpu/gemv_internal.h"

namespace mantissa::kernels::cpu::avx2 {

void gemm(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  if (is_gemv<Avx2>(g)) return gemv<Avx2>(g, part, scratch);
  if (is_shallow<Avx2>(g)) return gemm_shallow<Avx2>(g, part, scratch);
  gemm_blocked<Avx2>(g, part, scratch);
}

}  // namespace mantissa::kernels::cpu::avx2
