#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/cpu/gemm_shallow_internal.h"
#include "mantissa/kernels/cpu/gemv_internal.h"
#include "mantissa/kernels/cpu/shared/vectors_internal.h"

namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER {

void gemm(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  if (is_gemv<Vectors>(g)) return gemv<Vectors>(g, part, scratch);
  if (is_shallow<Vectors>(g)) return gemm_shallow<Vectors>(g, part, scratch);
  gemm_blocked<Vectors>(g, part, scratch);
}

}  // namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER
