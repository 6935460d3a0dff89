#include "mantissa/optim/adam.h"

#include <cmath>
#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <torch/optim/serialize.h>

#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {
namespace {

using at::native::wrapped_scalar_tensor;

constexpr const char* kAdam = "Adam";

}  // namespace

/// Every comparison is false for NaN, so NaN is refused too, as in Python.
void validate(const char* optimizer, const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(options.lr() >= 0, optimizer, ": learning rate ", options.lr(),
                    " is invalid; lr must be 0 or more");
  TORCH_CHECK_VALUE(options.eps() >= 0, optimizer, ": eps ", options.eps(),
                    " is invalid; eps must be 0 or more");
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1, optimizer, ": first beta ", beta1,
                    " is invalid; betas lie in [0, 1)");
  TORCH_CHECK_VALUE(beta2 >= 0 && beta2 < 1, optimizer, ": second beta ", beta2,
                    " is invalid; betas lie in [0, 1)");
  TORCH_CHECK_VALUE(options.weight_decay() >= 0, optimizer, ": weight_decay ", options.weight_decay(),
                    " is invalid; weight_decay must be 0 or more");
}

AdamParamState& adam_state(ParamStateSlot& slot, const at::Tensor& parameter, bool amsgrad,
                           at::ScalarType dtype) {
  auto& state = state_in<AdamParamState>(slot);
  if (!state.step().defined()) step_on(at::kCPU, state.step());
  fit_state(state.exp_avg(), parameter, dtype);
  fit_state(state.exp_avg_sq(), parameter, dtype);
  if (amsgrad) fit_state(state.max_exp_avg_sq(), parameter, dtype);
  return state;
}

std::vector<StateFormat> adam_state_formats(const at::Tensor& parameter) {
  return {StateFormat::step(), StateFormat::like(parameter, "exp_avg"),
          StateFormat::like(parameter, "exp_avg_sq"),
          StateFormat::like(parameter, "max_exp_avg_sq", /*is_required=*/false)};
}

void AdamOptions::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("lr", c10::IValue(lr_));
  archive.write("betas", c10::IValue(betas_));
  archive.write("eps", c10::IValue(eps_));
  archive.write("weight_decay", c10::IValue(weight_decay_));
  archive.write("amsgrad", c10::IValue(amsgrad_));
  archive.write("maximize", c10::IValue(maximize_));
}

void AdamOptions::serialize(torch::serialize::InputArchive& archive) {
  read_if_present(archive, "lr", lr_);
  read_if_present(archive, "betas", betas_);
  read_if_present(archive, "eps", eps_);
  read_if_present(archive, "weight_decay", weight_decay_);
  read_if_present(archive, "amsgrad", amsgrad_);
  read_if_present(archive, "maximize", maximize_);  // libtorch's own Adam has no such option
}

void AdamParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_if_defined(archive, "step", step_);
  write_if_defined(archive, "exp_avg", exp_avg_);
  write_if_defined(archive, "exp_avg_sq", exp_avg_sq_);
  write_if_defined(archive, "max_exp_avg_sq", max_exp_avg_sq_);
}

void AdamParamState::serialize(torch::serialize::InputArchive& archive) {
  read_step(archive, step_);
  read_if_present(archive, "exp_avg", exp_avg_);
  read_if_present(archive, "exp_avg_sq", exp_avg_sq_);
  read_if_present(archive, "max_exp_avg_sq", max_exp_avg_sq_);
}

Adam::Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups, const AdamOptions& defaults,
           WeightDecay weight_decay)
    : Optimizer(unique_parameters(kAdam, groups), validated(kAdam, defaults)), weight_decay_(weight_decay) {
  keep_options(groups, param_groups_);
  validate_groups<AdamOptions>(kAdam, param_groups());
}

void Adam::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  add_validated_group<AdamOptions>(kAdam, group, param_groups_,
                                   [this](const auto& added) { Optimizer::add_param_group(added); });
}

at::Tensor Adam::step(LossClosure closure) {
  const at::Tensor loss = loss_of(closure);
  at::NoGradGuard no_grad;
  keep_each_parameter_once(kAdam, param_groups_);
  for (const auto& group : param_groups_) {
    options_of<AdamOptions>(kAdam, group);
    for (const at::Tensor& parameter : group.params()) {
      TORCH_CHECK(!parameter.grad().defined() || !parameter.grad().is_sparse(), "Adam: a parameter of shape ",
                  parameter.sizes(),
                  " has a sparse gradient; build its Embedding with sparse(false) or use SGD");
    }
  }
  for (const auto& group : param_groups_) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) update(parameter, options_of<AdamOptions>(kAdam, group));
    }
  }
  return loss;
}

// The operations and their order are Python's, because each one rounds. In-place mul_(Scalar) would first
// round the scalar to a 16-bit tensor's dtype; a wrapped number, which Python passes, is not rounded.
void Adam::update(at::Tensor parameter, const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas();
  AdamParamState& state = adam_state(state_[parameter.unsafeGetTensorImpl()], parameter, options.amsgrad(),
                                     parameter.scalar_type());
  at::Tensor grad = options.maximize() ? parameter.grad().neg() : parameter.grad();
  at::Tensor exp_avg = state.exp_avg(), exp_avg_sq = state.exp_avg_sq(),
             max_exp_avg_sq = state.max_exp_avg_sq();

  state.step().add_(1);
  const double step = state.step().item<float>();

  if (options.weight_decay() != 0) {
    if (weight_decay_ == WeightDecay::kDecoupled) {
      parameter.mul_(wrapped_scalar_tensor(1 - options.lr() * options.weight_decay()));
    } else {
      grad = grad.add(parameter, options.weight_decay());
    }
  }
  if (parameter.is_complex()) {
    for (at::Tensor* tensor : {&parameter, &grad, &exp_avg, &exp_avg_sq, &max_exp_avg_sq}) {
      if (tensor->defined()) *tensor = at::view_as_real(*tensor);
    }
  }

  exp_avg.lerp_(grad, 1 - beta1);
  exp_avg_sq.mul_(wrapped_scalar_tensor(beta2)).addcmul_(grad, grad, 1 - beta2);
  if (options.amsgrad()) at::maximum_out(max_exp_avg_sq, max_exp_avg_sq, exp_avg_sq);

  const double step_size = options.lr() / (1 - std::pow(beta1, step));
  const double root_of_correction = std::pow(1 - std::pow(beta2, step), 0.5);
  const at::Tensor& squared = options.amsgrad() ? max_exp_avg_sq : exp_avg_sq;
  at::Tensor denominator = squared.sqrt().div(wrapped_scalar_tensor(root_of_correction));
  denominator.add_(wrapped_scalar_tensor(options.eps()));
  parameter.addcdiv_(exp_avg, denominator, -step_size);
}

void Adam::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamParamState, AdamOptions>(archive, *this);
}

void Adam::load(torch::serialize::InputArchive& archive) {
  load_optimizer<AdamParamState, AdamOptions>(kAdam, "betas", archive, *this);
}

std::vector<StateFormat> Adam::state_formats(const at::Tensor& parameter) const {
  return adam_state_formats(parameter);
}

}  // namespace mantissa
