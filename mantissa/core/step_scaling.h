#pragma once

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Mixed into an optimizer whose step() unscales gradients and drops an overflowed step by itself
/// (torch: `_step_supports_amp_scaling`, set by the fused optimizers). GradScaler::step() fills both
/// members before the optimizer's step() and clears them after it, so no value is read on the host.
class StepSupportsAmpScaling {
 public:
  virtual ~StepSupportsAmpScaling() = default;

  /// Shape: 0-dim float32; what the gradients must be divided by. Undefined: they are unscaled already.
  at::Tensor grad_scale;
  /// Shape: 0-dim float32; nonzero when a gradient is inf or nan, and then nothing may change. Undefined: no
  /// check.
  at::Tensor found_inf;
};

}  // namespace mantissa
