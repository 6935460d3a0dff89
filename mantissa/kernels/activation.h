#pragma once

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// Applied in float32, before the one rounding of a result.
///
/// Numerics: ReLU is exact and keeps NaN. GELU is x (1 + erf(x / sqrt 2)) / 2, or in tanh's form x / (1 + exp(-2
///           sqrt(2 / pi) (x + 0.044715 x^3))), within (20 + x^2) 2^-23 of its size; what is below 2^-118 may be 0.
///           GELU of -inf is NaN, as by libtorch's formula. The error of GELU's derivative is a share of the sizes of
///           its two terms, because the derivative has a zero.
enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh };

}  // namespace mantissa::kernels
