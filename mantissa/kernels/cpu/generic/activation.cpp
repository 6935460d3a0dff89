#include <cmath>

#include "mantissa/kernels/cpu/activation_kernel.h"
#include "mantissa/kernels/cpu/generic/activation_internal.h"
#include "mantissa/kernels/cpu/generic/element_internal.h"

namespace mantissa::kernels::cpu::generic {
namespace {

double slope(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
    case Activation::kGelu:
      return 0.5 * std::erfc(x * -M_SQRT1_2) + x * (M_2_SQRTPI * M_SQRT1_2 / 2) * std::exp(-0.5 * x * x);
    case Activation::kGeluTanh: {
      const double value = 1 / (1 + std::exp(-2 * tanh_argument(x)));
      return value + x * M_2_SQRTPI * M_SQRT2 * (1 + 3 * 0.044715 * x * x) * value * (1 - value);
    }
  }
  return 1;
}

}  // namespace

void activate(Activation activation, Element element, const void* x, void* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store(element, out, i, activated(activation, load(element, x, i)));
}

void activate_backward(Activation activation, Element element, const void* gradient, const void* x, void* out,
                       int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    store(element, out, i,
          static_cast<float>(load(element, gradient, i) * slope(activation, load(element, x, i))));
}

}  // namespace mantissa::kernels::cpu::generic
