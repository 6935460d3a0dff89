#include "mantissa/kernels/cpu/generic/element_internal.h"
#include "mantissa/kernels/cpu/unscale_kernel.h"

namespace mantissa::kernels::cpu::generic {

bool unscale(void* values, Element element, int64_t count, float inv_scale) {
  bool found = false;
  for (int64_t i = 0; i < count; ++i) {
    const float value = load(element, values, i);
    found |= !std::isfinite(value);
    if (inv_scale != 1) store(element, values, i, value * inv_scale);
  }
  return found;
}

}  // namespace mantissa::kernels::cpu::generic
