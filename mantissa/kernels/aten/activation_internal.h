#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

/// GELU in the form of libtorch's kernels, for registration.cpp: bf16 and fp16 without gaps in memory are
/// computed here, everything else, and with it every error, by libtorch's own kernel.
namespace mantissa::kernels::aten::activation {

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate);
at::Tensor& gelu_(at::Tensor& self, c10::string_view approximate);
at::Tensor gelu_backward(const at::Tensor& grad_output, const at::Tensor& self, c10::string_view approximate);

}  // namespace mantissa::kernels::aten::activation
