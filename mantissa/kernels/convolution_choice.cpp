#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/convolution_choice_internal.h"
#include "mantissa/kernels/product_choice_internal.h"

namespace mantissa::convolutions {
namespace {

/// As convolution_bench.cpp measured it on a CPU with AVX512-BF16: oneDNN takes half of float32's time there,
/// but 30 to 50 times as long for the gradient of a strided depthwise convolution's input.
bool is_slow_where_native(const Kind& kind) { return kind.backward && kind.depthwise && kind.strided; }

}  // namespace

bool is_faster_here(cpu::Element element, const Kind& kind) {
  // Plain loops are no faster than libtorch's.
  if (cpu_tier() == CpuTier::kGeneric) return false;
  return !products::is_native(element) || is_slow_where_native(kind);
}

}  // namespace mantissa::convolutions
