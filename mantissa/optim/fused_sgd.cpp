#include "mantissa/optim/fused_sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/maximum.h>
#include <torch/optim/serialize.h>

#include "mantissa/optim/fused_optimizer_internal.h"
#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {
namespace {

constexpr const char* kFusedSGD = "FusedSGD";

}  // namespace

FusedSGD::FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SGDOptions& defaults,
                   const FusedOptions& options)
    : FusedOptimizer(kFusedSGD, groups, validated(kFusedSGD, defaults), options) {
  validate_groups<SGDOptions>(kFusedSGD, param_groups());
}

const torch::optim::OptimizerOptions& FusedSGD::checked_options(
    const torch::optim::OptimizerParamGroup& group) const {
  return options_of<SGDOptions>(kFusedSGD, group);
}

bool FusedSGD::needs_float32(const at::Tensor& parameter) const {
  return parameter.is_cpu() && parameter.element_size() == 2;
}

void FusedSGD::add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) {
  const auto& sgd = static_cast<const SGDOptions&>(options);
  if (sgd.momentum() == 0) return;
  auto& state = state_in<SGDParamState>(state_[slot.parameter.unsafeGetTensorImpl()]);
  slot.first = !state.momentum_buffer().defined();
  if (sgd.dampening() == 0) state.is_buffer_empty({});  // a buffer of zeros is then as good as none
  slot.is_buffer_empty = state.is_buffer_empty();
  fit_state(state.momentum_buffer(), slot.parameter, dtype);
  slot.states = {state.momentum_buffer()};
}

void FusedSGD::call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const {
  const auto& sgd = static_cast<const SGDOptions&>(options);
  const auto call = [&](bool first, const std::optional<at::Tensor>& dropped) {
    at::_fused_sgd_(batch.parameters, batch.gradients,
                    sgd.momentum() == 0 ? std::vector<at::Tensor>() : batch.states[0], sgd.weight_decay(),
                    sgd.momentum(), sgd.lr(), sgd.dampening(), sgd.nesterov(), sgd.maximize(), first,
                    batch.grad_scale, dropped);
  };
  if (!batch.is_buffer_empty.defined()) {
    call(batch.first, batch.found_inf);
    return;
  }
  // Only the device knows whether this is the first step. It skips one of these two calls, or both.
  const auto dropped_or = [&](const at::Tensor& flag) {
    return batch.found_inf ? at::maximum(*batch.found_inf, flag) : flag;
  };
  call(/*first=*/true, dropped_or(1 - batch.is_buffer_empty));
  call(/*first=*/false, dropped_or(batch.is_buffer_empty));
}

void FusedSGD::finish(const std::vector<Slot>& slots, const Batch& batch) {
  if (!batch.first && !batch.is_buffer_empty.defined()) return;
  at::Tensor is_buffer_empty;
  if (batch.found_inf)
    is_buffer_empty = batch.first ? *batch.found_inf : batch.is_buffer_empty * *batch.found_inf;
  for (const Slot& slot : slots) {
    state_in<SGDParamState>(state_[slot.parameter.unsafeGetTensorImpl()]).is_buffer_empty(is_buffer_empty);
  }
}

void FusedSGD::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<SGDParamState, SGDOptions>(archive, *this);
  save_draws(archive);
}

void FusedSGD::load(torch::serialize::InputArchive& archive) {
  load_optimizer<SGDParamState, SGDOptions>(kFusedSGD, "nesterov", archive, *this);
  load_draws(archive);
}

std::vector<StateFormat> FusedSGD::state_formats(const at::Tensor& parameter) const {
  return sgd_state_formats(parameter);
}

}  // namespace mantissa
