#include "mantissa/kernels/cpu/unscale.h"

#include "mantissa/kernels/cpu/generic/element_internal.h"

namespace mantissa::cpu::generic {

bool unscale(void* values, Element element, int64_t count, float inv_scale) {
  bool found = false;
  for (int64_t i = 0; i < count; ++i) {
    const float value = load(element, values, i);
    found |= !std::isfinite(value);
    if (inv_scale != 1) store(element, values, i, value * inv_scale);
  }
  return found;
}

}  // namespace mantissa::cpu::generic
