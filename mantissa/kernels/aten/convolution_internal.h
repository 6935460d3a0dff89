#pragma once

#include <array>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

/// The convolutions that registration.cpp registers, with the signatures of libtorch's. They follow the rules
/// of matmul_internal.h.
namespace mantissa::kernels::aten::convolution {

/// Replaces libtorch's `_convolution`, which is called by its `convolution` and directly by traced models. A
/// kernel for `convolution` itself would record no operation in a trace, because traces do not contain
/// `convolution`. The last four options are cuDNN's.
at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                   at::IntArrayRef output_padding, int64_t groups, bool benchmark, bool deterministic,
                   bool cudnn_enabled, bool allow_tf32);

/// Computes the gradients of input, weight and bias that `output_mask` selects; the others are undefined.
std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_output,
                                                        const at::Tensor& input, const at::Tensor& weight,
                                                        at::OptionalIntArrayRef bias_sizes,
                                                        at::IntArrayRef stride, at::IntArrayRef padding,
                                                        at::IntArrayRef dilation, bool transposed,
                                                        at::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> output_mask);

}  // namespace mantissa::kernels::aten::convolution
