#pragma once

// The interface of each tier's activation kernels. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/activation.h"

namespace mantissa::kernels::cpu {

/// Computes out[i] = activation(x[i]) for `count` values of one type. `out` may be `x`. Activation defines
/// the numerics.
using ActivateKernel = void(Activation, Element, const void* x, void* out, int64_t count);

/// Computes out[i] = gradient[i] * activation'(x[i]). `out` may be either operand.
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

}  // namespace mantissa::kernels::cpu
