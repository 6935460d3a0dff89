#include "mantissa/weights/replace_weight.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/core/suggest.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {

namespace {

void replace(const at::Tensor& parameter, const at::Tensor& weight, const std::string& name) {
  TORCH_CHECK_VALUE(parameter.defined() && weight.defined(), "replace_weight: the ",
                    weight.defined() ? "parameter" : "new weight", name, " is undefined");
  TORCH_CHECK_VALUE(parameter.sizes() == weight.sizes(), "replace_weight: the parameter", name, " has shape ",
                    parameter.sizes(), ", and the new weight ", weight.sizes());
  TORCH_CHECK_VALUE(parameter.is_leaf(), "replace_weight: autograd computed the parameter", name,
                    ", so it would be computed again; replace the tensors that it is computed from");
  const at::NoGradGuard no_grad;
  const packed::MayUnpack scope;
  if (is_packed(parameter)) unmark_weight(parameter);  // the mark belongs to the packed values
  at::Tensor(parameter).set_data(weight.detach());
  parameter.mutable_grad() = at::Tensor();
}

}  // namespace

void replace_weight(torch::nn::Module& module, const std::string& name, const at::Tensor& weight) {
  const auto parameters = module.named_parameters();
  const at::Tensor* const found = parameters.find(name);
  TORCH_CHECK_VALUE(found, "replace_weight: ", module.name(), " has no parameter '", name, "'",
                    did_you_mean(name, parameters.keys()));
  replace(*found, weight, " '" + name + "'");
}

void replace_weight(const at::Tensor& parameter, const at::Tensor& weight) { replace(parameter, weight, ""); }

}  // namespace mantissa
