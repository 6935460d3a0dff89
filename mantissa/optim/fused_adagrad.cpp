#include "mantissa/optim/fused_adagrad.h"

#include <ATen/ops/_fused_adagrad.h>
#include <torch/optim/serialize.h>

#include "mantissa/optim/fused_optimizer_internal.h"
#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {
namespace {

constexpr const char* kFusedAdagrad = "FusedAdagrad";

}  // namespace

/// Every comparison is false for NaN, so NaN is refused too, as in Python.
void validate(const char* optimizer, const AdagradOptions& options) {
  const auto check = [&](const char* name, double value) {
    TORCH_CHECK_VALUE(value >= 0, optimizer, ": ", name, " ", value, " is invalid; it must be 0 or more");
  };
  check("lr", options.lr());
  check("lr_decay", options.lr_decay());
  check("weight_decay", options.weight_decay());
  check("initial_accumulator_value", options.initial_accumulator_value());
  check("eps", options.eps());
}

void AdagradOptions::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("lr", c10::IValue(lr_));
  archive.write("lr_decay", c10::IValue(lr_decay_));
  archive.write("weight_decay", c10::IValue(weight_decay_));
  archive.write("initial_accumulator_value", c10::IValue(initial_accumulator_value_));
  archive.write("eps", c10::IValue(eps_));
  archive.write("maximize", c10::IValue(maximize_));
}

void AdagradOptions::serialize(torch::serialize::InputArchive& archive) {
  read_if_present(archive, "lr", lr_);
  read_if_present(archive, "lr_decay", lr_decay_);
  read_if_present(archive, "weight_decay", weight_decay_);
  read_if_present(archive, "initial_accumulator_value", initial_accumulator_value_);
  read_if_present(archive, "eps", eps_);
  read_if_present(archive, "maximize", maximize_);  // libtorch's own Adagrad has no such option
}

void AdagradParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_if_defined(archive, "step", step_);
  write_if_defined(archive, "sum", sum_);
}

void AdagradParamState::serialize(torch::serialize::InputArchive& archive) {
  read_step(archive, step_);
  read_if_present(archive, "sum", sum_);
}

FusedAdagrad::FusedAdagrad(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                           const AdagradOptions& defaults, const FusedOptions& options)
    : FusedOptimizer(kFusedAdagrad, groups, validated(kFusedAdagrad, defaults), options) {
  validate_groups<AdagradOptions>(kFusedAdagrad, param_groups());
}

const torch::optim::OptimizerOptions& FusedAdagrad::checked_options(
    const torch::optim::OptimizerParamGroup& group) const {
  return options_of<AdagradOptions>(kFusedAdagrad, group);
}

void FusedAdagrad::add_state(Slot& slot, const torch::optim::OptimizerOptions& options,
                             at::ScalarType dtype) {
  auto& state = state_in<AdagradParamState>(state_[slot.parameter.unsafeGetTensorImpl()]);
  const bool fresh = !state.sum().defined();
  fit_state(state.sum(), slot.parameter, dtype);
  if (fresh) state.sum().fill_(static_cast<const AdagradOptions&>(options).initial_accumulator_value());
  slot.step = step_on(slot.parameter.device(), state.step());
  slot.states = {state.sum()};
}

void FusedAdagrad::call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const {
  const auto& adagrad = static_cast<const AdagradOptions&>(options);
  at::_fused_adagrad_(batch.parameters, batch.gradients, batch.states[0], batch.steps, adagrad.lr(),
                      adagrad.lr_decay(), adagrad.weight_decay(), adagrad.eps(), adagrad.maximize(),
                      batch.grad_scale, batch.found_inf);
}

void FusedAdagrad::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdagradParamState, AdagradOptions>(archive, *this);
  save_draws(archive);
}

void FusedAdagrad::load(torch::serialize::InputArchive& archive) {
  load_optimizer<AdagradParamState, AdagradOptions>(kFusedAdagrad, "lr_decay", archive, *this);
  load_draws(archive);
}

std::vector<StateFormat> FusedAdagrad::state_formats(const at::Tensor& parameter) const {
  return {StateFormat::step(), StateFormat::like(parameter, "sum")};
}

}  // namespace mantissa
