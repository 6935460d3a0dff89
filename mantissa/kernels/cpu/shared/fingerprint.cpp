#include "mantissa/kernels/cpu/fingerprint_kernel.h"

#define XXH_INLINE_ALL  // xxHash is compiled into this file, so that it uses this tier's instructions
#include <xxhash.h>

namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER {

uint64_t fingerprint(const float* values, int64_t count) {
  return XXH3_64bits(values, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER
