#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "mantissa/quant/quantized_int8.h"

namespace mantissa {

/// Computes x w^T + bias in 8-bit integers (LLM.int8): the rows of x are quantized for the call, the products
/// are added in int32, and the sums are scaled back.
///
/// Shapes:   x [..., in], weight [out, in], bias [out]; returns [..., out].
/// Numerics: x is float32, float16 or bfloat16, and is quantized as it is (bitsandbytes first casts it to
///           float16, which loses what is beyond 65504). With a positive `threshold`, the columns of x that
///           have a magnitude of at least `threshold` are not quantized: they multiply the restored columns of
///           the weight, in float32. The result is rounded once, to the dtype of x. Results do not depend on
///           the number of threads.
/// Memory:   8-bit codes of x during the call. The gradient needs the weight in float32 during its call.
/// Autograd: differentiable in x and bias; the gradient of x is that of a layer with the restored weight. The
///           weight has no gradient.
/// Errors:   c10::ValueError for shapes that do not fit, tensors on other devices than the weight, or a
///           negative threshold; c10::TypeError for another dtype.
/// Source:   Dettmers et al. 2022, arXiv:2208.07339.
at::Tensor linear_int8(const at::Tensor& x, const QuantizedInt8& weight,
                       const std::optional<at::Tensor>& bias = std::nullopt, double threshold = 0);

/// The same for a weight that is trained: `weight` is the parameter, and `codes` are those that quantize_int8()
/// made of it, which the caller may keep until the weight changes. Without `codes` they are made for the call.
///
/// Numerics: the result is that of linear_int8(). The gradient of x goes through the codes. The gradient of the
///           weight is a product of 8-bit integers, too: the columns of the result's gradient and those of x
///           are quantized over all rows. Outlier columns of x (see linear_int8()) give their part in float32.
/// Memory:   the graph keeps x and the codes.
/// Autograd: differentiable once in x, weight and bias. The gradient of the weight has its dtype.
/// Errors:   those of linear_int8() and quantize_int8().
at::Tensor linear_int8_training(const at::Tensor& x, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias = std::nullopt, double threshold = 0,
                                const std::optional<QuantizedInt8>& codes = std::nullopt);

}  // namespace mantissa
