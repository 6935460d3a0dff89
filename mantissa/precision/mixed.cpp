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
  return scaler_ ? scaler_->scale(loss) : loss;
}

void MixedPrecision::unscale_gradients(torch::optim::Optimizer& optimizer) {
  // The scaler has flags of this optimizer from the unscaling to the end of the step: then it is done
  // already.
  if (scaler_ && scaler_->is_enabled() && !scaler_->found_inf(optimizer).defined() &&
      has_gradients(optimizer))
    scaler_->unscale_(optimizer);
}

StepResult MixedPrecision::optimizer_step(torch::optim::Optimizer& optimizer,
                                          const std::function<at::Tensor()>& closure) {
  if (!scaler_ || !scaler_->is_enabled()) return Precision::optimizer_step(optimizer, closure);
  TORCH_CHECK_TYPE(
      !dynamic_cast<torch::optim::LBFGS*>(&optimizer),
      "optimizer_step: LBFGS evaluates its loss several times a step, which a gradient scaler cannot "
      "follow; use bf16-mixed, 32-true or another optimizer");
  if (closure) {
    try {
      closure();
    } catch (...) {
      // A batch that failed between unscaling and step must not make the next one believe it is unscaled.
      if (scaler_->found_inf(optimizer).defined()) scaler_->update(scaler_->get_scale());
      throw;
    }
  }
  // No loss in the whole window: the scale has nothing to learn from it.
  if (!has_gradients(optimizer)) return {true, SkipCause::kNoGradients};
  bool stepped = scaler_->step(optimizer);
  if (dynamic_cast<StepSupportsAmpScaling*>(&optimizer))
    stepped = scaler_->found_inf(optimizer).item<float>() == 0;
  scaler_->update();
  if (stepped) return {};
  return {true, SkipCause::kNonFiniteGradients};
}

PrecisionState MixedPrecision::state_dict() const {
  return scaler_ ? scaler_->state_dict() : PrecisionState();
}

void MixedPrecision::load_state_dict(const PrecisionState& state) {
  if (scaler_) scaler_->load_state_dict(state);
}

}  // namespace mantissa
