#pragma once

// What a tier's unscaling kernel takes; seen by every tier, on the terms of gemm.h.

#include <cstdint>

#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::cpu {

/// Multiplies `count` values in place by `inv_scale` and returns whether one of them was inf or nan before.
///
/// Numerics: the product in float32, rounded once, to nearest even. With inv_scale 1 nothing is written.
using UnscaleKernel = bool(void* values, Element element, int64_t count, float inv_scale);

namespace generic {
UnscaleKernel unscale;
}
namespace avx2 {
UnscaleKernel unscale;
}
namespace avx512 {
UnscaleKernel unscale;
}

}  // namespace mantissa::cpu
