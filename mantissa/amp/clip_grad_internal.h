#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

// The checks that clipping makes before it touches a gradient, for whoever changes gradients before it.
namespace mantissa {

void check_clip_norm(double max_norm, double norm_type);
void check_clip_value(double clip_value);
void check_dense(at::TensorList parameters);

}  // namespace mantissa
