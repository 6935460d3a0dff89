#include "mantissa/kernels/cpu/fp8_blocks_internal.h"
#include "mantissa/kernels/cpu/fp8_internal.h"
#include "mantissa/kernels/cpu/fp8_kernel.h"

#if __has_include(MANTISSA_CPU_VECTORS)
#include "mantissa/kernels/cpu/fp8_widen_internal.h"
#include "mantissa/kernels/cpu/shared/vectors_internal.h"
#else
#include "mantissa/kernels/cpu/generic/element_internal.h"
#endif

namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER {
namespace {

#if __has_include(MANTISSA_CPU_VECTORS)
using Fp8Widening = WidenWith<Vectors>;
#else  // the generic tier has no vectors
struct Fp8Widening {
  static void widen(Element element, const void* in, int64_t begin, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = load(element, in, begin + i);
  }
};
#endif

}  // namespace

Magnitudes find_magnitudes(const FindMagnitudes& problem) {
  return find_magnitudes_with<Fp8Widening>(problem);
}
Magnitudes quantize_fp8(const QuantizeFp8& problem) { return quantize_fp8_with<Fp8Widening>(problem); }
void dequantize_fp8(const DequantizeFp8& problem) { dequantize_fp8_with<Fp8Widening>(problem); }
void quantize_e2m1(const QuantizeE2M1& problem) { quantize_e2m1_with<Fp8Widening>(problem); }
void find_block_magnitudes(const FindBlockMagnitudes& problem) {
  find_block_magnitudes_with<Fp8Widening>(problem);
}
void quantize_fp8_blocks(const QuantizeFp8Blocks& problem) { quantize_fp8_blocks_with<Fp8Widening>(problem); }
bool restore_blocks(const RestoreBlocks& problem) { return restore_blocks_with<Fp8Widening>(problem); }

}  // namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER
