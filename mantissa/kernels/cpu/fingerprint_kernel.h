#pragma once

// The interface of each tier's weight hash. This header follows the rules of element.h.

#include <cstdint>

namespace mantissa::kernels::cpu {

/// Returns the XXH3 hash (64 bits) of `count` adjacent values. Every tier gives the same number.
using FingerprintKernel = uint64_t(const float* values, int64_t count);

namespace generic {
FingerprintKernel fingerprint;
}
namespace avx2 {
FingerprintKernel fingerprint;
}
namespace avx512 {
FingerprintKernel fingerprint;
}

}  // namespace mantissa::kernels::cpu
