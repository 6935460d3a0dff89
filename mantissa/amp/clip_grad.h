#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace mantissa {

/// Shrinks all gradients of `parameters` in place by one factor, so that their joint `norm_type`-norm is at
/// most `max_norm`; returns the norm before clipping. Call GradScaler::unscale_() first if the loss was
/// scaled.
///
/// Shapes:   the result is 0-dim, on the first gradient's device; 0 if no parameter has a gradient.
/// Numerics: every gradient is multiplied by min(1, max_norm / (norm + 1e-6)). The result is bit-equal to
///           Python's torch.nn.utils.clip_grad_norm_; libtorch's own function divides where Python multiplies
///           by the reciprocal. If the norm is inf or nan, gradients become 0 or nan. With
///           GradScaler::unscale_() called before, step() still skips such a step.
/// Sync:     none, unlike libtorch's; with `error_if_nonfinite` one value is read from the device.
/// Errors:   c10::ValueError if `max_norm` is negative or nan or `norm_type` is nan; c10::NotImplementedError
///           for a sparse gradient; c10::Error with `error_if_nonfinite` if the norm is not finite. Gradients
///           are then untouched.
at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type = 2.0,
                           bool error_if_nonfinite = false);

/// Clamps each element of each gradient of `parameters` in place to [-clip_value, clip_value]; nan stays nan.
///
/// Sync:   none.
/// Errors: c10::ValueError if `clip_value` is negative or nan; c10::NotImplementedError for a sparse
///         gradient. Gradients are then untouched.
void clip_grad_value_(at::TensorList parameters, double clip_value);

}  // namespace mantissa
