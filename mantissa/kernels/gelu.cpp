#include <optional>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>

#include "mantissa/kernels/activation.h"
#include "mantissa/kernels/choice_internal.h"
#include "mantissa/kernels/gelu_internal.h"
#include "mantissa/kernels/tensors_internal.h"

namespace mantissa::gelus {
namespace {

/// Null for what is no name: libtorch says so.
std::optional<cpu::Activation> form(c10::string_view approximate) {
  if (approximate == "none") return cpu::Activation::kGelu;
  if (approximate == "tanh") return cpu::Activation::kGeluTanh;
  return std::nullopt;
}

/// Whether it is computed here.
bool is_ours(const at::Tensor& x, KernelFamily family) {
  return (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf) && is_plain(x) &&
         x.is_non_overlapping_and_dense() && kernel_for(family, element_of(x.scalar_type())).tier.has_value();
}

}  // namespace

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate) {
  const auto activation = form(approximate);
  if (!activation || !is_ours(self, KernelFamily::kGelu)) return at::cpu::gelu(self, approximate);
  at::Tensor out = at::empty_like(self);
  activate(*activation, element_of(self.scalar_type()), self.const_data_ptr(), out.mutable_data_ptr(),
           self.numel());
  return out;
}

at::Tensor& gelu_(at::Tensor& self, c10::string_view approximate) {
  const auto activation = form(approximate);
  if (!activation || !is_ours(self, KernelFamily::kGelu)) return at::cpu::gelu_(self, approximate);
  void* const data = self.mutable_data_ptr();
  activate(*activation, element_of(self.scalar_type()), data, data, self.numel());
  return self;
}

at::Tensor gelu_backward(const at::Tensor& grad_output, const at::Tensor& self,
                         c10::string_view approximate) {
  const auto activation = form(approximate);
  if (!activation || !is_ours(self, KernelFamily::kGeluBackward) ||
      !is_ours(grad_output, KernelFamily::kGeluBackward) || grad_output.scalar_type() != self.scalar_type() ||
      grad_output.sizes() != self.sizes() || grad_output.strides() != self.strides())
    return at::cpu::gelu_backward(grad_output, self, approximate);
  at::Tensor out = at::empty_like(self);
  activate_backward(*activation, element_of(self.scalar_type()), grad_output.const_data_ptr(),
                    self.const_data_ptr(), out.mutable_data_ptr(), self.numel());
  return out;
}

}  // namespace mantissa::gelus
