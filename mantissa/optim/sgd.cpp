#include "mantissa/optim/sgd.h"

#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/optim/serialize.h>

#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {
namespace {

constexpr const char* kSGD = "SGD";

}  // namespace

/// Every comparison is false for NaN, so NaN is refused too.
void validate(const char* optimizer, const SGDOptions& options) {
  TORCH_CHECK_VALUE(options.lr() >= 0, optimizer, ": learning rate ", options.lr(),
                    " is invalid; lr must be 0 or more");
  TORCH_CHECK_VALUE(options.momentum() >= 0, optimizer, ": momentum ", options.momentum(),
                    " is invalid; momentum must be 0 or more");
  TORCH_CHECK_VALUE(options.weight_decay() >= 0, optimizer, ": weight_decay ", options.weight_decay(),
                    " is invalid; weight_decay must be 0 or more");
  TORCH_CHECK_VALUE(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0), optimizer,
                    ": nesterov with momentum ", options.momentum(), " and dampening ", options.dampening(),
                    " is invalid; give it a momentum above 0 and no dampening");
}

std::vector<StateFormat> sgd_state_formats(const at::Tensor& parameter) {
  // There is no buffer before the first step that was taken.
  return {StateFormat::like(parameter, "momentum_buffer", /*is_required=*/false)};
}

void SGDOptions::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("lr", c10::IValue(lr_));
  archive.write("momentum", c10::IValue(momentum_));
  archive.write("dampening", c10::IValue(dampening_));
  archive.write("weight_decay", c10::IValue(weight_decay_));
  archive.write("nesterov", c10::IValue(nesterov_));
  archive.write("maximize", c10::IValue(maximize_));
}

void SGDOptions::serialize(torch::serialize::InputArchive& archive) {
  read_if_present(archive, "lr", lr_);
  read_if_present(archive, "momentum", momentum_);
  read_if_present(archive, "dampening", dampening_);
  read_if_present(archive, "weight_decay", weight_decay_);
  read_if_present(archive, "nesterov", nesterov_);
  read_if_present(archive, "maximize", maximize_);  // libtorch's own SGD has no such option
}

void SGDParamState::serialize(torch::serialize::OutputArchive& archive) const {
  // Every step so far was skipped, so the next one must find no buffer.
  if (is_buffer_empty_.defined() && is_buffer_empty_.item<float>() != 0) return;
  write_if_defined(archive, "momentum_buffer", momentum_buffer_);
}

void SGDParamState::serialize(torch::serialize::InputArchive& archive) {
  read_if_present(archive, "momentum_buffer", momentum_buffer_);
}

SGD::SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SGDOptions& defaults)
    : Optimizer(unique_parameters(kSGD, groups), validated(kSGD, defaults)) {
  keep_options(groups, param_groups_);
  validate_groups<SGDOptions>(kSGD, param_groups());
}

void SGD::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  add_validated_group<SGDOptions>(kSGD, group, param_groups_,
                                  [this](const auto& added) { Optimizer::add_param_group(added); });
}

at::Tensor SGD::step(LossClosure closure) {
  const at::Tensor loss = loss_of(closure);
  at::NoGradGuard no_grad;
  keep_each_parameter_once(kSGD, param_groups_);
  for (const auto& group : param_groups_) {
    const bool decays = options_of<SGDOptions>(kSGD, group).weight_decay() != 0;
    for (const at::Tensor& parameter : group.params()) {
      TORCH_CHECK(!decays || !parameter.grad().defined() || !parameter.grad().is_sparse(),
                  "SGD: a parameter of shape ", parameter.sizes(),
                  " has a sparse gradient and weight decay; put it in a group with weight_decay(0)");
    }
  }
  for (const auto& group : param_groups_) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) update(parameter, options_of<SGDOptions>(kSGD, group));
    }
  }
  return loss;
}

/// Adds `grad` to the sum of past gradients and returns the direction of the step.
at::Tensor SGD::with_momentum(const at::Tensor& parameter, const at::Tensor& grad,
                              const SGDOptions& options) {
  at::Tensor& sum = state_in<SGDParamState>(state_[parameter.unsafeGetTensorImpl()]).momentum_buffer();
  if (!sum.defined()) {
    sum = grad.detach().clone();
  } else {
    if (!sum.is_sparse()) fit_state(sum, parameter, parameter.scalar_type());
    // mul_(Scalar) would first round the momentum to a 16-bit tensor's dtype; a wrapped number, which Python
    // passes, is not rounded.
    sum.mul_(at::native::wrapped_scalar_tensor(options.momentum())).add_(grad, 1 - options.dampening());
  }
  return options.nesterov() ? grad.add(sum, options.momentum()) : sum;
}

// The operations and their order are Python's, because each one rounds.
void SGD::update(const at::Tensor& parameter, const SGDOptions& options) {
  at::Tensor grad = options.maximize() ? parameter.grad().neg() : parameter.grad();
  if (options.weight_decay() != 0) grad = grad.add(parameter, options.weight_decay());
  if (options.momentum() != 0) grad = with_momentum(parameter, grad, options);
  parameter.add_(grad, -options.lr());
}

void SGD::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<SGDParamState, SGDOptions>(archive, *this);
}

void SGD::load(torch::serialize::InputArchive& archive) {
  load_optimizer<SGDParamState, SGDOptions>(kSGD, "nesterov", archive, *this);
}

std::vector<StateFormat> SGD::state_formats(const at::Tensor& parameter) const {
  return sgd_state_formats(parameter);
}

}  // namespace mantissa
