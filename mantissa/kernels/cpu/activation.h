#pragma once

// What a tier's activation kernels take; seen by every tier, on the terms of gemm.h.

#include <cstdint>

#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::cpu {

/// out[i] = activation(x[i]) for `count` values of one type; `out` may be `x`.
///
/// Numerics: computed in float32 and rounded once, to nearest even. ReLU is exact and keeps NaN. GELU is
///           x (1 + erf(x / sqrt 2)) / 2, or in tanh's form x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715
///           x^3))), within (20 + x^2) 2^-23 of its size; what is below 2^-118 may be 0. Of -inf it is NaN,
///           as by libtorch's formula.
using ActivateKernel = void(Activation, Element, const void* x, void* out, int64_t count);

/// out[i] = gradient[i] * activation'(x[i]); `out` may be either.
///
/// Numerics: likewise; GELU's derivative has a zero, so that the error is a share of its two terms' sizes.
using ActivateBackwardKernel = void(Activation, Element, const void* gradient, const void* x, void* out,
                                    int64_t count);

namespace generic {
ActivateKernel activate;
ActivateBackwardKernel activate_backward;
}  // namespace generic
namespace avx2 {
ActivateKernel activate;
ActivateBackwardKernel activate_backward;
}  // namespace avx2
namespace avx512 {
ActivateKernel activate;
ActivateBackwardKernel activate_backward;
}  // namespace avx512

}  // namespace mantissa::cpu
