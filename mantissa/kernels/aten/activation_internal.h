#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

/// GELU with the signatures of libtorch's kernels, for registration.cpp. Dense bf16 and fp16 tensors are
/// computed here. libtorch's own kernel handles everything else, and therefore every error.
namespace mantissa::kernels::aten::activation {

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate);
at::Tensor& gelu_(at::Tensor& self, c10::string_view approximate);
at::Tensor gelu_backward(const at::Tensor& grad_output, const at::Tensor& self, c10::string_view approximate);

}  // namespace mantissa::kernels::aten::activation
