#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "mantissa/quant/quantized_4bit.h"

namespace mantissa {

/// Computes x w^T + bias, what a linear layer computes, with a weight in 4-bit codes.
///
/// Shapes:   x [..., in], weight [out, in], bias [out]; returns [..., out].
/// Numerics: in the dtype of x, which is float32, bfloat16, float16 or float64, and with sums in float32
///           (float64 for float64). On the CPU the weight is dequantized in float32 and rounded to the dtype of
///           x, and bias is cast to it. Up to three rows of x are multiplied without that rounding (Product4 in
///           kernels/quantized4.h). Results do not depend on the number of threads.
/// Memory:   on the CPU the weight is never written out in a wider format. On other devices it is dequantized
///           for the call.
/// Autograd: differentiable in x and bias, twice and more; the weight has no gradient. The graph keeps the
///           weight's codes and neither x nor a dequantized weight.
/// Errors:   c10::ValueError for shapes that do not fit or tensors on other devices than the weight;
///           c10::TypeError for another dtype.
at::Tensor linear_4bit(const at::Tensor& x, const Quantized4Bit& weight,
                       const std::optional<at::Tensor>& bias = std::nullopt);

/// Computes x w. Shapes: x [..., out], weight [out, in]; returns [..., in]. Everything else is as in
/// linear_4bit(), whose gradient this is.
at::Tensor matmul_4bit(const at::Tensor& x, const Quantized4Bit& weight);

}  // namespace mantissa
