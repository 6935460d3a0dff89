#pragma once

#include "mantissa/kernels/cpu/convolution.h"

namespace mantissa::convolutions {

/// Whether a convolution of 16-bit tensors and its gradients are faster here than in libtorch, on this CPU.
bool is_faster_here(cpu::Element element);

}  // namespace mantissa::convolutions
