#pragma once

#include <ATen/core/Tensor.h>

namespace mantissa::packed {

/// Returns x M + bias: x [..., k] of a floating-point dtype, packed matrix M [k, n], bias [n] or undefined;
/// the result is [..., n] in x's dtype. Gradients flow to x and to the bias.
/// Errors: c10::ValueError and c10::TypeError that begin with `operation`, for shapes, dtypes and devices that
///         do not fit.
at::Tensor multiply(const char* operation, const at::Tensor& x, const at::Tensor& matrix,
                    const at::Tensor& bias = {});

/// Whether autograd records what this thread computes for one of `tensors`.
bool is_recorded(std::initializer_list<at::Tensor> tensors);

/// Throws unless a packed `weight` can be used with an input `x` by `operation`.
void check_input(const char* operation, const at::Tensor& x, const at::Tensor& weight);

}  // namespace mantissa::packed
