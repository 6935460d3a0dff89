#pragma once

#include "mantissa/kernels/blockwise.h"

namespace mantissa::kernels {

/// The settings of an optimizer with block-wise states, under the names of bitsandbytes.
struct UpdateSettings {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

/// Returns the factors of step number `step`, which is counted from 1. `decouples_decay`: weight decay shrinks the parameter
/// by lr * weight_decay; if not, it is added to the gradient.
UpdateFactors update_factors(UpdateRule rule, bool decouples_decay, const UpdateSettings& settings,
                             double step);

}  // namespace mantissa::kernels
