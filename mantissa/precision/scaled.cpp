#include "mantissa/precision/scaled.h"

#include <array>
#include <string>
#include <utility>

#include <ATen/ops/ones.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/clip_grad_internal.h"
#include "mantissa/amp/gradients_internal.h"
#include "mantissa/amp/optimizer_kind.h"
#include "mantissa/precision/state_keys_internal.h"

namespace mantissa {
namespace {

/// The names of GradientStage's values in a state, in their order.
constexpr std::array kStageNames{"scaled", "checked", "unscaled", "mixed", "stepped"};
static_assert(kStageNames.size() == static_cast<size_t>(GradientStage::kStepped) + 1);

GradientStage stage_of(const StateReader& state) {
  const std::string& name = state.to_string();
  for (size_t i = 0; i < kStageNames.size(); ++i)
    if (name == kStageNames[i]) return static_cast<GradientStage>(i);
  state.fail("is '" + name + "'; scaled, checked, unscaled, mixed or stepped was expected");
}

}  // namespace

ScaledPrecision::ScaledPrecision(std::string name, PrecisionTraits traits, std::unique_ptr<GradScaler> scaler)
    : Precision(std::move(name), traits), scaler_(std::move(scaler)) {
  if (!scaler_) return;
  iterations_.emplace(*scaler_);
  scaler_->set_parameter_name([this](const at::Tensor& parameter) { return parameter_name(parameter); });
  first_state_ = scaler_->state_dict();
}

// Dividing fp16 gradients in place would flush the small values that the scale has preserved. An optimizer
// that unscales inside its step divides in float32 instead.
bool ScaledPrecision::keeps_scale(const torch::optim::Optimizer& optimizer) const {
  return as_self_unscaling(optimizer) && has_fp16_gradients(optimizer);
}

bool ScaledPrecision::are_gradients_scaled(const torch::optim::Optimizer& optimizer) const {
  if (!scales()) return false;
  const GradientStage stage = iterations_->gradient_stage(optimizer);
  return stage == GradientStage::kScaled || stage == GradientStage::kChecked;
}

void ScaledPrecision::watch(const torch::optim::Optimizer& optimizer) {
  if (scales()) iterations_->watch(optimizer);
}

void ScaledPrecision::setup_optimizer(torch::optim::Optimizer& optimizer) {
  Precision::setup_optimizer(optimizer);
  watch(optimizer);
}

void ScaledPrecision::backward(const at::Tensor& loss, const LossHook& before) {
  if (!scales()) return Precision::backward(loss, before);
  check_requires_gradient(loss);
  iterations_->begin_backward();
  const LossHook before_and_restart = [&](const at::Tensor& scaled) {
    before(scaled);
    iterations_->restart_backward();  // what the hook has written was not computed by this pass
  };
  Precision::backward(scaler_->scale(loss), before ? before_and_restart : nullptr);
  iterations_->end_backward();
}

GradientStage ScaledPrecision::usable_stage(const torch::optim::Optimizer& optimizer) {
  const GradientStage stage = iterations_->gradient_stage(optimizer);
  if (stage == GradientStage::kMixed) iterations_->begin_step(optimizer);  // throws
  return stage;
}

void ScaledPrecision::unscale_gradients(torch::optim::Optimizer& optimizer) {
  if (!scales() || !has_gradients(optimizer)) return;
  if (usable_stage(optimizer) != GradientStage::kScaled || keeps_scale(optimizer)) return;
  if (!has_warned_about_fp16_ && has_fp16_gradients(optimizer)) {
    has_warned_about_fp16_ = true;
    TORCH_WARN(
        name(),
        ": the optimizer's fp16 gradients are divided by the loss scale in fp16, where those below 6e-8 "
        "become 0 as they would without a scale; FusedAdamW, FusedAdam, FusedSGD and FusedAdagrad divide in "
        "float32, and master_weights keeps float32 gradients");
  }
  iterations_->begin_step(optimizer);
  scaler_->unscale_(optimizer);
}

at::Tensor ScaledPrecision::clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                           GradientClipAlgorithm algorithm) {
  if (clip_val <= 0 || !scales() || !has_gradients(optimizer))
    return Precision::clip_gradients(optimizer, clip_val, algorithm);
  const bool by_norm = algorithm == GradientClipAlgorithm::kNorm;
  const GradientStage stage = usable_stage(optimizer);
  if (stage == GradientStage::kStepped) return Precision::clip_gradients(optimizer, clip_val, algorithm);
  if (stage == GradientStage::kChecked || (stage == GradientStage::kScaled && keeps_scale(optimizer))) {
    iterations_->begin_step(optimizer);
    if (by_norm) return scaler_->clip_grad_norm_(optimizer, clip_val);
    scaler_->clip_grad_value_(optimizer, clip_val);
    return {};
  }
  unscale_gradients(optimizer);
  // An overflowed step is skipped anyway. Clipping its gradients would spread a nan over all of them, or hide
  // an inf.
  const at::Tensor found_inf = scaler_->found_inf(optimizer);
  const std::vector<at::Tensor> parameters = main_params(optimizer);
  if (by_norm) return clip_grad_norm_unless_(found_inf, parameters, clip_val);
  clip_grad_value_unless_(found_inf, parameters, clip_val);
  return {};
}

void ScaledPrecision::check_line_search() const {
  TORCH_CHECK_TYPE(
      !scales(), name(),
      ": LBFGS evaluates its loss several times a step, which a gradient scaler cannot follow; use "
      "bf16-mixed, 32-true or another optimizer");
}

StepResult ScaledPrecision::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  if (!scales()) return Precision::step(optimizer, closure);
  if (has_line_search(optimizer)) check_line_search();
  // Without gradients there is nothing to check for overflow, so this step must not move the scale.
  if (!has_gradients(optimizer)) {
    const GradientStage stage = iterations_->gradient_stage(optimizer);
    if (stage == GradientStage::kChecked || stage == GradientStage::kUnscaled) scaler_->forget(optimizer);
    return StepResult(SkipCause::kNoGradients);
  }
  TORCH_CHECK(iterations_->gradient_stage(optimizer) != GradientStage::kStepped,
              "optimizer_step: a step has already used these gradients; call backward() before each step");
  iterations_->begin_step(optimizer);
  try {
    return step_scaled(optimizer);
  } catch (...) {
    // Otherwise the next step would treat its gradients as unscaled, and this failed step would move the
    // scale.
    scaler_->forget(optimizer);
    throw;
  }
}

StepResult ScaledPrecision::step_scaled(torch::optim::Optimizer& optimizer) {
  // An optimizer that can unscale inside its step does it there, unless unscale_gradients() was called
  // before.
  if (!as_self_unscaling(optimizer)) unscale_gradients(optimizer);
  scaler_->step(optimizer);
  const StepResult result = scaler_->last_step(optimizer);
  if (as_self_unscaling(optimizer) && result.is_known()) scaler_->note_step(optimizer, !result.skipped());
  return result;
}

StateDict ScaledPrecision::state_dict() const {
  if (!scales()) return {};
  return {{kLossScaleKey, scalars_to_state(iterations_->next_state_dict())}};
}

std::vector<std::string> ScaledPrecision::load_state_dict(const StateReader& state) {
  std::vector<std::string> differences = Precision::load_state_dict(state);
  if (!scales()) return differences;
  const auto saved = state.find(kLossScaleKey);
  // The scale of an earlier run was found for other weights.
  scaler_->load_state_dict(saved ? scalars_from_state(*saved) : first_state_);
  iterations_->abandon_iteration();
  if (!saved) differences.emplace_back("it has no loss scale, so the scale starts at its initial value");
  return differences;
}

StateDict ScaledPrecision::gradient_state(const torch::optim::Optimizer& optimizer) const {
  if (!scales()) return {};
  const GradientStage stage = iterations_->gradient_stage(optimizer);
  StateDict state{{kStageKey, kStageNames.at(static_cast<size_t>(stage))}};
  const bool are_scaled = stage == GradientStage::kScaled || stage == GradientStage::kChecked;
  if (are_scaled) state.emplace(kScaleKey, scaler_->scale_on_device());  // state_dict() has the next scale
  if (stage != GradientStage::kChecked) return state;
  if (const at::Tensor divisor = iterations_->clip_divisor(optimizer); divisor.defined())
    state.emplace(kClipDivisorKey, divisor);
  return state;
}

bool ScaledPrecision::can_take_gradients(const StateReader& state) const {
  return scales() || Precision::can_take_gradients(state);
}

void ScaledPrecision::load_gradient_state(torch::optim::Optimizer& optimizer, const StateReader& state) {
  if (!scales()) return;
  if (!state.find(kStageKey)) {  // they are in the loss's own units, so they carry a scale of 1
    iterations_->restore_gradient_stage(optimizer, GradientStage::kScaled, {}, at::ones({}));
    return;
  }
  const auto tensor = [&](const char* key) {
    const auto saved = state.find(key);
    return saved ? saved->to_tensor() : at::Tensor();
  };
  iterations_->restore_gradient_stage(optimizer, stage_of(state.at(kStageKey)), tensor(kClipDivisorKey),
                                      tensor(kScaleKey));
}

void ScaledPrecision::teardown() {
  if (scales()) iterations_->end_iteration();
}

}  // namespace mantissa
