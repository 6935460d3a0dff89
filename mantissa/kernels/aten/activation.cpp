#include "mantissa/kernels/cpu/activation.h"

#include <optional>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>

#include "mantissa/kernels/aten/activation_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"

namespace mantissa::kernels::aten::activation {
namespace {

/// Returns nothing for an unknown name, which libtorch then refuses.
std::optional<Activation> form(c10::string_view approximate) {
  if (approximate == "none") return Activation::kGelu;
  if (approximate == "tanh") return Activation::kGeluTanh;
  return std::nullopt;
}

bool has_no_gaps(const at::Tensor& x) {
  return (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf) && is_plain(x) &&
         x.is_non_overlapping_and_dense();
}

/// Returns the build that computes `x`, or nullptr if libtorch's kernel does.
const cpu::ActivationBuild* build_for(const at::Tensor& x, KernelFamily family) {
  if (!has_no_gaps(x)) return nullptr;
  return chosen_build(cpu::activation_builds(), family, element_of(x.scalar_type()));
}

}  // namespace

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate) {
  const auto activation = form(approximate);
  const auto* const build = activation ? build_for(self, KernelFamily::kGelu) : nullptr;
  if (build == nullptr) return at::cpu::gelu(self, approximate);
  at::Tensor out = at::empty_like(self);
  cpu::activate(*activation, element_of(self.scalar_type()), self.const_data_ptr(), out.mutable_data_ptr(),
                self.numel(), *build);
  return out;
}

at::Tensor& gelu_(at::Tensor& self, c10::string_view approximate) {
  const auto activation = form(approximate);
  const auto* const build = activation ? build_for(self, KernelFamily::kGelu) : nullptr;
  if (build == nullptr) return at::cpu::gelu_(self, approximate);
  void* const data = self.mutable_data_ptr();
  cpu::activate(*activation, element_of(self.scalar_type()), data, data, self.numel(), *build);
  return self;
}

at::Tensor gelu_backward(const at::Tensor& grad_output, const at::Tensor& self,
                         c10::string_view approximate) {
  const auto activation = form(approximate);
  const auto* const build = activation ? build_for(self, KernelFamily::kGeluBackward) : nullptr;
  if (build == nullptr || !has_no_gaps(grad_output) || grad_output.scalar_type() != self.scalar_type() ||
      grad_output.sizes() != self.sizes() || grad_output.strides() != self.strides())
    return at::cpu::gelu_backward(grad_output, self, approximate);
  at::Tensor out = at::empty_like(self);
  cpu::activate_backward(*activation, element_of(self.scalar_type()), grad_output.const_data_ptr(),
                         self.const_data_ptr(), out.mutable_data_ptr(), self.numel(), *build);
  return out;
}

}  // namespace mantissa::kernels::aten::activation
