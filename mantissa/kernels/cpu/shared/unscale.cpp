#include "mantissa/kernels/cpu/shared/vectors_internal.h"
#include "mantissa/kernels/cpu/unscale_internal.h"
#include "mantissa/kernels/cpu/unscale_kernel.h"

namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER {

bool unscale(void* values, Element element, int64_t count, float inv_scale) {
  return unscale_with<Vectors>(values, element, count, inv_scale);
}

}  // namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER
