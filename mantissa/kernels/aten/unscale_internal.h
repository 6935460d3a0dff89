#pragma once

#include <ATen/core/Tensor.h>

/// The kernel that registration.cpp registers for the scaler, in the form of libtorch's.
namespace mantissa::kernels::aten::unscale {

/// torch's _amp_foreach_non_finite_check_and_unscale_ on the CPU: multiplies every gradient by `inv_scale` in
/// place and sets `found_inf` to 1 if one of them held inf or nan. All tensors together are one parallel
/// region, so that many small ones cost little more than one large one.
///
/// Shapes:   `found_inf` and `inv_scale` of one element, float32; no two gradients share memory, which
///           threads would change at once (as by torch's CUDA kernel).
/// Numerics: bit for bit libtorch's, NaN payloads aside. With inv_scale 1 nothing is written.
/// Threads:  at::get_num_threads() of them.
/// Errors:   libtorch's own, whose kernel runs where a tensor is not float32, float16 or bfloat16 in memory
///           without gaps.
void non_finite_check_and_unscale_(at::TensorList gradients, at::Tensor& found_inf,
                                   const at::Tensor& inv_scale);

}  // namespace mantissa::kernels::aten::unscale
