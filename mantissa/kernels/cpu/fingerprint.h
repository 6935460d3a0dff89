#pragma once

// What a tier's hash of a weight takes; seen by every tier, on the terms of gemm.h.

#include <cstdint>

namespace mantissa::cpu {

/// XXH3 (64 bits) of `count` adjacent values: the same number on every tier.
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

}  // namespace mantissa::cpu
