#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {

std::vector<torch::optim::OptimizerParamGroup> unique_parameters(
    const char* optimizer, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> result;
  result.reserve(groups.size());
  std::unordered_map<const c10::TensorImpl*, size_t> group_of;
  for (size_t group = 0; group < groups.size(); ++group) {
    result.push_back(groups[group]);
    result.back().params().clear();
    for (const at::Tensor& parameter : groups[group].params()) {
      const auto [found, first] = group_of.emplace(parameter.unsafeGetTensorImpl(), group);
      TORCH_CHECK_VALUE(found->second == group, optimizer, ": a parameter of shape ", parameter.sizes(),
                        " is in parameter groups ", found->second, " and ", group,
                        "; keep it in one of them");
      if (first) result.back().params().push_back(parameter);
    }
  }
  return result;
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode enable_grad(true);
  return closure();
}

void fit_state(at::Tensor& state, const at::Tensor& parameter, at::ScalarType dtype) {
  const bool fits = state.defined() && state.scalar_type() == dtype && state.device() == parameter.device() &&
                    (state.strides() == parameter.strides() || !parameter.is_non_overlapping_and_dense());
  if (fits) return;
  at::Tensor fitting = at::zeros_like(parameter, parameter.options().dtype(dtype));
  if (state.defined()) fitting.copy_(state);
  state = fitting;
}

at::Tensor& step_on(at::Device device, at::Tensor& step) {
  if (!step.defined()) step = at::scalar_tensor(0.0, at::kFloat);
  step = step.to(device);
  return step;
}

void read_step(torch::serialize::InputArchive& archive, at::Tensor& step) {
  c10::IValue stored;
  if (!archive.try_read("step", stored)) return;
  step = stored.isInt() ? at::scalar_tensor(stored.toInt(), at::kFloat) : stored.toTensor();
}

}  // namespace mantissa
