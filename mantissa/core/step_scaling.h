#pragma once

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A mixin for an optimizer whose step() unscales gradients and skips an overflowed step by itself (torch:
/// `_step_supports_amp_scaling`, which the fused optimizers set). GradScaler::step() sets both members before
/// the optimizer's step() and clears them after it, so the host reads no value.
class StepSupportsAmpScaling {
 public:
  virtual ~StepSupportsAmpScaling() = default;

  /// Shape: 0-dim float32. The gradients must be divided by it. Undefined: they are already unscaled.
  at::Tensor grad_scale;
  /// Shape: 0-dim float32. If it is nonzero, a gradient is inf or nan, and the step must change nothing.
  ///        Undefined: no check.
  at::Tensor found_inf;
};

}  // namespace mantissa
