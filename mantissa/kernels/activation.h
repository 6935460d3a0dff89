#pragma once

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// The activation of a result, applied in float32 before the result's one rounding.
///
/// Numerics: ReLU is exact and keeps NaN. GELU is x (1 + erf(x / sqrt 2)) / 2; its tanh form is x / (1 +
///           exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))). Both are within (20 + x^2) 2^-23 of the exact value,
///           relative to it; values below 2^-118 may become 0. GELU of -inf is NaN, as with libtorch's
///           formula. The derivative of GELU has a zero, so its error is relative to the sizes of its two
///           terms.
enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh };

}  // namespace mantissa::kernels
