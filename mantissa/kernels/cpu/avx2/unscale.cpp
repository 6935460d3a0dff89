#include "mantissa/kernels/cpu/avx2/vector_internal.h"
#include "mantissa/kernels/cpu/unscale_internal.h"
#include "mantissa/kernels/cpu/unscale_kernel.h"

namespace mantissa::kernels::cpu::avx2 {

bool unscale(void* values, Element element, int64_t count, float inv_scale) {
  return unscale_with<Avx2>(values, element, count, inv_scale);
}

}  // namespace mantissa::kernels::cpu::avx2
