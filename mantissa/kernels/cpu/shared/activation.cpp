#include "mantissa/kernels/cpu/activation_internal.h"
#include "mantissa/kernels/cpu/activation_kernel.h"
#include "mantissa/kernels/cpu/shared/vectors_internal.h"

namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER {

void activate(Activation activation, Element element, const void* x, void* out, int64_t count) {
  activate_with<Vectors>(activation, element, x, out, count);
}

void activate_backward(Activation activation, Element element, const void* gradient, const void* x, void* out,
                       int64_t count) {
  activate_backward_with<Vectors>(activation, element, gradient, x, out, count);
}

}  // namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER
