#include "mantissa/precision/mixed.h"

#include <utility>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/core/step_scaling.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa {
namespace {

std::string name_for(at::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || dtype == at::kBFloat16,
                    "MixedPrecision: products can run in Half or BFloat16, got ", c10::toString(dtype),
                    "; the 32-true and 64-true modes use no autocast");
  return dtype == at::kHalf ? "16-mixed" : "bf16-mixed";
}

at::Tensor first_gradient(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) return parameter.grad();
  return {};
}

}  // namespace

MixedPrecision::MixedPrecision(at::ScalarType dtype, at::Device device, std::unique_ptr<GradScaler> scaler)
    : Precision(name_for(dtype)), dtype_(dtype), device_(device), scaler_(std::move(scaler)) {
  TORCH_CHECK_VALUE(!scaler_ || dtype == at::kHalf,
                    "MixedPrecision: bf16-mixed uses no scaler, its range is float32's; leave the scaler "
                    "out, or use 16-mixed");
  if (dtype == at::kHalf && !scaler_) scaler_ = std::make_unique<GradScaler>(device);
}

Scope MixedPrecision::forward_context() const {
  return std::make_shared<Autocast>(device_.type(), AutocastOptions{.dtype = dtype_});
}

at::Tensor MixedPrecision::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

at::Tensor MixedPrecision::pre_backward(const at::Tensor& loss) {
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
  return scaler_->scale(loss);
}

bool MixedPrecision::is_unscaled(torch::optim::Optimizer& optimizer) {
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

void MixedPrecision::forget(torch::optim::Optimizer& optimizer) {
  // Only what waits for its step: the flags of one that has stepped are what the due update learns from.
  if (std::erase_if(unscaled_, [&](const Unscaled& waiting) { return waiting.optimizer == &optimizer; }) >
      0) {
    scaler_->forget(optimizer);
  }
}

void MixedPrecision::end_iteration() const {
  if (!update_is_due_ || !unscaled_.empty()) return;
  scaler_->update();
  update_is_due_ = false;
}

void MixedPrecision::unscale_gradients(torch::optim::Optimizer& optimizer) {
  if (!scales() || is_unscaled(optimizer) || !has_gradients(optimizer)) return;
  scaler_->unscale_(optimizer);
  unscaled_.push_back({&optimizer, false, {}, 0});
}

StepResult MixedPrecision::optimizer_step(torch::optim::Optimizer& optimizer,
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
    const bool unscaled = is_unscaled(optimizer);
    if (!unscaled && !dynamic_cast<StepSupportsAmpScaling*>(&optimizer)) unscale_gradients(optimizer);
    stepped = scaler_->step(optimizer);
  } catch (...) {
    // A step that failed half-way must not make the next one believe that its gradients are unscaled.
    forget(optimizer);
    throw;
  }
  if (dynamic_cast<StepSupportsAmpScaling*>(&optimizer))
    stepped = scaler_->found_inf(optimizer).item<float>() == 0;
  std::erase_if(unscaled_, [&](const Unscaled& waiting) { return waiting.optimizer == &optimizer; });
  update_is_due_ = true;
  if (stepped) return {};
  return {true, SkipCause::kNonFiniteGradients};
}

PrecisionState MixedPrecision::state_dict() const {
  end_iteration();
  return scaler_ ? scaler_->state_dict() : PrecisionState();
}

void MixedPrecision::load_state_dict(const PrecisionState& state) {
  end_iteration();
  if (scaler_) scaler_->load_state_dict(state);
}

}  // namespace mantissa
