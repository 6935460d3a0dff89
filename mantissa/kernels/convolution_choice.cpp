#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/convolution_choice_internal.h"
#include "mantissa/kernels/product_choice_internal.h"

namespace mantissa::convolutions {

bool is_faster_here(cpu::Element element) {
  // Plain loops define what is correct and are no faster than libtorch's; where the CPU multiplies the dtype
  // itself, oneDNN takes half of float32's time.
  return cpu_tier() != CpuTier::kGeneric && !products::is_native(element);
}

}  // namespace mantissa::convolutions
