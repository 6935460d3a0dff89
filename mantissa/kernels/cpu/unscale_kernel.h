#pragma once

// The interface of each tier's unscaling kernel. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels::cpu {

/// Multiplies `count` values in place by `inv_scale`. Returns true if any of them was inf or nan before.
///
/// Numerics: the product is float32, rounded once, to nearest even. Nothing is written if inv_scale is 1.
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
