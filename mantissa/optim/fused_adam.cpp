#include "mantissa/optim/fused_adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/optim/serialize.h>

#include "mantissa/optim/fused_optimizer_internal.h"
#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {
namespace {

const char* name_of(bool decoupled) { return decoupled ? "FusedAdamW" : "FusedAdam"; }

}  // namespace

FusedAdam::FusedAdam(const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const AdamOptions& defaults, const FusedOptions& options, bool decoupled)
    : FusedOptimizer(name, groups, validated(name, defaults), options), decoupled_(decoupled) {
  validate_groups<AdamOptions>(name, param_groups());
}

const torch::optim::OptimizerOptions& FusedAdam::checked_options(
    const torch::optim::OptimizerParamGroup& group) const {
  return options_of<AdamOptions>(name_of(decoupled_), group);
}

void FusedAdam::add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) {
  const bool amsgrad = static_cast<const AdamOptions&>(options).amsgrad();
  AdamParamState& state =
      adam_state(state_[slot.parameter.unsafeGetTensorImpl()], slot.parameter, amsgrad, dtype);
  slot.step = step_on(slot.parameter.device(), state.step());
  slot.states = {state.exp_avg(), state.exp_avg_sq()};
  if (amsgrad) slot.states.push_back(state.max_exp_avg_sq());
}

void FusedAdam::call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const {
  const auto& adam = static_cast<const AdamOptions&>(options);
  const auto [beta1, beta2] = adam.betas();
  const std::vector<at::Tensor> largest = adam.amsgrad() ? batch.states[2] : std::vector<at::Tensor>();
  const auto call = [&, beta1 = beta1, beta2 = beta2](auto kernel) {
    kernel(batch.parameters, batch.gradients, batch.states[0], batch.states[1], largest, batch.steps,
           adam.lr(), beta1, beta2, adam.weight_decay(), adam.eps(), adam.amsgrad(), adam.maximize(),
           batch.grad_scale, batch.found_inf);
  };
  if (decoupled_) {
    call([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    call([](const auto&... arguments) { at::_fused_adam_(arguments...); });
  }
}

void FusedAdam::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamParamState, AdamOptions>(archive, *this);
  save_draws(archive);
}

void FusedAdam::load(torch::serialize::InputArchive& archive) {
  load_optimizer<AdamParamState, AdamOptions>(name_of(decoupled_), "betas", archive, *this);
  load_draws(archive);
}

std::vector<StateFormat> FusedAdam::state_formats(const at::Tensor& parameter) const {
  return adam_state_formats(parameter);
}

}  // namespace mantissa
