#include "mantissa/kernels/cpu/avx512/vector_internal.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/cpu/gemm_shallow_internal.h"
#include "mantissa/kernels/cpu/gemv_internal.h"

namespace mantissa::kernels::cpu::avx512 {

void gemm(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  if (is_gemv<Avx512>(g)) return gemv<Avx512>(g, part, scratch);
  if (is_shallow<Avx512>(g)) return gemm_shallow<Avx512>(g, part, scratch);
  gemm_blocked<Avx512>(g, part, scratch);
}

}  // namespace mantissa::kernels::cpu::avx512
