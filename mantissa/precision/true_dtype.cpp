#include "mantissa/precision/true_dtype.h"

#include <c10/core/DefaultDtype.h>
#include <torch/nn/module.h>

#include "mantissa/core/default_dtype.h"

namespace mantissa {
namespace {

std::string name_for(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "64-true";
    case at::kHalf:
      return "16-true";
    case at::kBFloat16:
      return "bf16-true";
    default:
      TORCH_CHECK_VALUE(false, "TrueDtype: weights can be kept in Double, Half or BFloat16, got ",
                        c10::toString(dtype), "; use the 32-true mode for Float");
  }
}

}  // namespace

TrueDtype::TrueDtype(at::ScalarType dtype) : Precision(name_for(dtype)), dtype_(dtype) {}

void TrueDtype::convert_module(torch::nn::Module& module) const {
  for (at::Tensor& parameter : module.parameters()) {
    const at::Tensor gradient = parameter.grad();
    parameter.mutable_grad() = at::Tensor();  // set_data() refuses a dtype that differs from the gradient's
    parameter.set_data(convert_input(parameter.data()));
    if (gradient.defined()) parameter.mutable_grad() = convert_input(gradient);
  }
  for (at::Tensor& buffer : module.buffers()) buffer.set_data(convert_input(buffer.data()));
}

Scope TrueDtype::tensor_init_context() const { return std::make_shared<DefaultDtypeGuard>(dtype_); }

at::Tensor TrueDtype::convert_input(const at::Tensor& x) const {
  return x.is_floating_point() ? x.to(dtype_) : x;
}

at::Tensor TrueDtype::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

at::Tensor to_default_dtype(const at::Tensor& y) {
  return y.is_floating_point() ? y.to(c10::get_default_dtype_as_scalartype()) : y;
}

}  // namespace mantissa
