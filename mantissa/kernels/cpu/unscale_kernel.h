#pragma once

// What each tier's unscaling kernel implements; on the terms of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels::cpu {

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

}  // namespace mantissa::kernels::cpu
