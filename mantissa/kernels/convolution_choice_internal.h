#pragma once

#include "mantissa/kernels/cpu/convolution.h"

namespace mantissa::convolutions {

/// What matters for the choice, beside the dtype.
struct Kind {
  bool backward = false;
  bool depthwise = false;  ///< groups of one channel
  bool strided = false;    ///< along any axis
};

/// Whether a convolution of 16-bit tensors, or its gradients, are faster here than in libtorch, on this CPU.
bool is_faster_here(cpu::Element element, const Kind& kind);

}  // namespace mantissa::convolutions
