#pragma once

// What each tier's hash of a weight implements; on the terms of element.h.

#include <cstdint>

namespace mantissa::kernels::cpu {

/// XXH3 (64 bits) of `count` adjacent values: every tier gives the same number.
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
