#pragma once

#include <ATen/core/Tensor.h>

/// The kernel that registration.cpp registers for the gradient scaler, with the signature of libtorch's.
namespace mantissa::kernels::aten::unscale {

/// Replaces torch's _amp_foreach_non_finite_check_and_unscale_ on the CPU: multiplies every gradient by
/// `inv_scale` in place and sets `found_inf` to 1 if any of them held inf or nan. All tensors share one
/// parallel region, so many small ones cost little more than one large one.
///
/// Shapes:   `found_inf` and `inv_scale` are float32 with one element. No two gradients may share memory,
///           because several threads would write to it (as in torch's CUDA kernel).
/// Numerics: bit for bit libtorch's, except for NaN payloads. Nothing is written if inv_scale is 1.
/// Threads:  uses at::get_num_threads() threads.
/// Errors:   libtorch's own. Its kernel handles tensors that are not dense float32, float16 or bfloat16.
void non_finite_check_and_unscale_(at::TensorList gradients, at::Tensor& found_inf,
                                   const at::Tensor& inv_scale);

}  // namespace mantissa::kernels::aten::unscale
