#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace mantissa {

/// Run clip_grad_norm_() with the 2-norm, and clip_grad_value_(), unless an overflow was found. After an
/// overflow the gradients stay as they are, so that they can be inspected, and the norm is inf.
///
/// `found_inf`: 0-dim float32, nonzero after an overflow. The host does not read it.
at::Tensor clip_grad_norm_unless_(const at::Tensor& found_inf, at::TensorList parameters, double max_norm);
void clip_grad_value_unless_(const at::Tensor& found_inf, at::TensorList parameters, double clip_value);

// The checks that clipping makes before it touches a gradient, for code that changes gradients before
// clipping.

void check_clip_norm(double max_norm, double norm_type = 2);
void check_clip_value(double clip_value);
void check_dense(at::TensorList parameters);

}  // namespace mantissa
