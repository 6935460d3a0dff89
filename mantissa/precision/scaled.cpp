#include "mantissa/precision/scaled.h"

#include <cmath>
#include <utility>

#include <ATen/ops/full.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/nonfinite_gradients.h"
#include "mantissa/core/step_scaling.h"

namespace mantissa {
namespace {

at::Tensor first_gradient(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) return parameter.grad();
  return {};
}

bool unscales_itself(torch::optim::Optimizer& optimizer) {
  return dynamic_cast<StepSupportsAmpScaling*>(&optimizer) != nullptr;
}

/// In fp16 the division by the scale would flush what the scale has saved; a step that unscales by itself divides in
/// float32.
bool keeps_scale(torch::optim::Optimizer& optimizer) {
  const at::Tensor gradient = first_gradient(optimizer);
  return unscales_itself(optimizer) && gradient.defined() && gradient.scalar_type() == at::kHalf;
}

}  // namespace

ScaledPrecision::ScaledPrecision(std::string name, std::unique_ptr<GradScaler> scaler)
    : Precision(std::move(name)), scaler_(std::move(scaler)) {}

void ScaledPrecision::convert_module(torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters())
    set_parameter_name(parameter.value(), parameter.key());
}

void ScaledPrecision::set_parameter_name(const at::Tensor& parameter, const std::string& name) {
  names_[parameter.unsafeGetTensorImpl()] = name;
}

std::string ScaledPrecision::parameter_name(const at::Tensor& parameter) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found == names_.end() ? "" : found->second;
}

at::Tensor ScaledPrecision::pre_backward(const at::Tensor& loss) {
  if (!scales()) return loss;
  // One that waited through a whole further backward pass was dropped by the loop.
  for (size_t i = unscaled_.size(); i-- > 0;) {
    if (unscaled_[i].backward_since) forget(*unscaled_[i].optimizer);
  }
  end_iteration();
  for (Unscaled& waiting : unscaled_) {
    waiting.backward_since = true;
    waiting.gradient = first_gradient(*waiting.optimizer);
    waiting.version = waiting.gradient.defined() ? waiting.gradient._version() : 0;
  }
  return scale_loss(loss);
}

bool ScaledPrecision::is_unscaled(torch::optim::Optimizer& optimizer) {
  for (const Unscaled& waiting : unscaled_) {
    if (waiting.optimizer != &optimizer) continue;
    if (!waiting.backward_since) return true;
    // Other optimizers' backward passes leave these gradients alone; new ones are another tensor or version.
    const at::Tensor now = first_gradient(optimizer);
    if (now.defined() && now.is_same(waiting.gradient) && now._version() == waiting.version) return true;
    forget(optimizer);
    return false;
  }
  return false;
}

void ScaledPrecision::forget(torch::optim::Optimizer& optimizer) {
  // Only what waits for its step: the flags of one that has stepped are what the due update learns from.
  if (std::erase_if(unscaled_, [&](const Unscaled& waiting) { return waiting.optimizer == &optimizer; }) >
      0) {
    scaler_->forget(optimizer);
  }
}

void ScaledPrecision::end_iteration() const {
  if (!update_is_due_ || !unscaled_.empty()) return;
  scaler_->update();
  update_is_due_ = false;
}

void ScaledPrecision::unscale_gradients(torch::optim::Optimizer& optimizer) {
  if (!scales() || is_unscaled(optimizer) || !has_gradients(optimizer) || keeps_scale(optimizer)) return;
  scaler_->unscale_(optimizer);
  unscaled_.push_back({&optimizer, false, {}, 0});
}

at::Tensor ScaledPrecision::clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                           GradientClipAlgorithm algorithm) {
  if (clip_val <= 0 || !scales() || !has_gradients(optimizer))
    return Precision::clip_gradients(optimizer, clip_val, algorithm);
  const bool by_norm = algorithm == GradientClipAlgorithm::kNorm;
  if (keeps_scale(optimizer) && !is_unscaled(optimizer)) {
    if (by_norm) return scaler_->clip_grad_norm_(optimizer, clip_val);
    scaler_->clip_grad_value_(optimizer, clip_val);
    return {};
  }
  unscale_gradients(optimizer);
  // Clipping would spread a nan over all gradients and hide an inf, and this step is dropped anyway.
  if (has_overflowed(optimizer)) return by_norm ? at::full({}, HUGE_VAL) : at::Tensor();
  return Precision::clip_gradients(optimizer, clip_val, algorithm);
}

bool ScaledPrecision::has_overflowed(torch::optim::Optimizer& optimizer) const {
  return scaler_->found_inf(optimizer).item<float>() != 0;
}

std::string ScaledPrecision::first_nonfinite_parameter(torch::optim::Optimizer& optimizer) const {
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (find_nonfinite_gradients({{"", parameters[i]}}).empty()) continue;
      const std::string name = parameter_name(parameters[i]);
      return name.empty() ? "group " + std::to_string(group) + ", parameter " + std::to_string(i) : name;
    }
  }
  return "";
}

StepResult ScaledPrecision::optimizer_step(torch::optim::Optimizer& optimizer,
                                           const std::function<at::Tensor()>& closure) {
  if (!scales()) return Precision::optimizer_step(optimizer, closure);
  TORCH_CHECK_TYPE(
      !dynamic_cast<torch::optim::LBFGS*>(&optimizer),
      "optimizer_step: LBFGS evaluates its loss several times a step, which a gradient scaler cannot "
      "follow; use bf16-mixed, 32-true or another optimizer");
  bool stepped = false;
  try {
    if (closure) closure();
    // No loss in the whole window: the scale has nothing to learn from it.
    if (!has_gradients(optimizer)) {
      forget(optimizer);
      return {true, SkipCause::kNoGradients};
    }
    // One that unscales by itself is left to do so, unless its gradients were looked at.
    if (!is_unscaled(optimizer) && !unscales_itself(optimizer)) unscale_gradients(optimizer);
    stepped = scaler_->step(optimizer);
  } catch (...) {
    // A step that failed half-way must not make the next one believe that its gradients are unscaled.
    forget(optimizer);
    throw;
  }
  if (unscales_itself(optimizer)) stepped = !has_overflowed(optimizer);
  std::erase_if(unscaled_, [&](const Unscaled& waiting) { return waiting.optimizer == &optimizer; });
  update_is_due_ = true;
  if (stepped) return {};
  return {true, SkipCause::kNonFiniteGradients, first_nonfinite_parameter(optimizer)};
}

PrecisionState ScaledPrecision::state_dict() const {
  end_iteration();
  return scaler_ ? scaler_->state_dict() : PrecisionState();
}

void ScaledPrecision::load_state_dict(const PrecisionState& state) {
  end_iteration();
  if (scaler_) scaler_->load_state_dict(state);
}

}  // namespace mantissa
