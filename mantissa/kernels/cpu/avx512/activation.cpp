#include "mantissa/kernels/cpu/activation_internal.h"
#include "mantissa/kernels/cpu/activation_kernel.h"
#include "mantissa/kernels/cpu/avx512/vector_internal.h"

namespace mantissa::kernels::cpu::avx512 {

void activate(Activation activation, Element element, const void* x, void* out, int64_t count) {
  activate_with<Avx512>(activation, element, x, out, count);
}

void activate_backward(Activation activation, Element element, const void* gradient, const void* x, void* out,
                       int64_t count) {
  activate_backward_with<Avx512>(activation, element, gradient, x, out, count);
}

}  // namespace mantissa::kernels::cpu::avx512
