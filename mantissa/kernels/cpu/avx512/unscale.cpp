#include "mantissa/kernels/cpu/avx512/vector_internal.h"
#include "mantissa/kernels/cpu/unscale_internal.h"
#include "mantissa/kernels/cpu/unscale_kernel.h"

namespace mantissa::kernels::cpu::avx512 {

bool unscale(void* values, Element element, int64_t count, float inv_scale) {
  return unscale_with<Avx512>(values, element, count, inv_scale);
}

}  // namespace mantissa::kernels::cpu::avx512
