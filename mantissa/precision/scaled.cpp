#include "mantissa/precision/scaled.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/full_like.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/nonfinite_gradients.h"
#include "mantissa/core/step_scaling.h"

namespace mantissa {
namespace {

bool unscales_itself(torch::optim::Optimizer& optimizer) {
  return dynamic_cast<StepSupportsAmpScaling*>(&optimizer) != nullptr;
}

bool has_fp16_gradients(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined() && parameter.grad().scalar_type() == at::kHalf) return true;
  return false;
}

}  // namespace

ScaledPrecision::ScaledPrecision(std::string name, std::unique_ptr<GradScaler> scaler)
    : Precision(std::move(name)), scaler_(std::move(scaler)) {
  if (scaler_)
    scaler_->set_parameter_name([this](const at::Tensor& parameter) { return parameter_name(parameter); });
}

void ScaledPrecision::convert_module(torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters())
    set_parameter_name(parameter.value(), parameter.key());
}

void ScaledPrecision::set_parameter_name(const at::Tensor& parameter, const std::string& name) {
  // A tied weight keeps its first name, as in Python.
  names_.try_emplace(parameter.unsafeGetTensorImpl(), WeakTensor(parameter.getIntrusivePtr()), name);
}

// In fp16 the division by the scale would flush what the scale has saved; a step that unscales by itself
// divides in float32.
bool ScaledPrecision::keeps_scale(torch::optim::Optimizer& optimizer) const {
  return scales() && unscales_itself(optimizer) && has_fp16_gradients(optimizer);
}

std::string ScaledPrecision::parameter_name(const at::Tensor& parameter) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found == names_.end() ? "" : found->second.second;
}

at::Tensor ScaledPrecision::pre_backward(const at::Tensor& loss) {
  if (!scales()) return loss;
  for (size_t i = waiting_.size(); i-- > 0;) {
    Waiting& entry = waiting_[i];
    const Fingerprint now = fingerprint(entry.parameters);
    if (!entry.backward_since) {
      entry.backward_since = true;
      entry.gradients = now;
    } else if (!same(entry.gradients, now)) {
      forget(*entry.optimizer);  // dropped by the loop, and written anew since
    }
  }
  end_iteration();
  return scale_loss(loss);
}

ScaledPrecision::Fingerprint ScaledPrecision::fingerprint(const std::vector<at::Tensor>& parameters) {
  Fingerprint gradients;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    gradients.emplace_back(WeakTensor(gradient.getIntrusivePtr()),
                           gradient.defined() ? gradient._version() : 0);
  }
  return gradients;
}

ScaledPrecision::Waiting& ScaledPrecision::wait(torch::optim::Optimizer& optimizer) {
  return waiting_.emplace_back(Waiting{&optimizer, main_params(optimizer)});
}

bool ScaledPrecision::same(const Fingerprint& a, const Fingerprint& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && x.second == y.second; });
}

bool ScaledPrecision::are_used_up(torch::optim::Optimizer& optimizer) const {
  const auto last = used_up_.find(&optimizer);
  return last != used_up_.end() && same(last->second, fingerprint(main_params(optimizer)));
}

const ScaledPrecision::Waiting* ScaledPrecision::waiting(torch::optim::Optimizer& optimizer) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& entry) { return entry.optimizer == &optimizer; });
  if (found == waiting_.end()) return nullptr;
  const std::vector<at::Tensor> parameters = main_params(optimizer);
  const bool is_it =
      std::equal(parameters.begin(), parameters.end(), found->parameters.begin(), found->parameters.end(),
                 [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  // Other optimizers' backward passes leave these gradients alone.
  if (is_it && (!found->backward_since || same(found->gradients, fingerprint(parameters)))) return &*found;
  forget(optimizer);
  return nullptr;
}

void ScaledPrecision::forget(const torch::optim::Optimizer& optimizer) {
  // Only what waits for its step: the flags of one that has stepped are what the due update learns from.
  if (std::erase_if(waiting_, [&](const Waiting& entry) { return entry.optimizer == &optimizer; }) > 0)
    scaler_->forget(optimizer);
}

void ScaledPrecision::end_iteration() const {
  if (!update_is_due_ || !waiting_.empty()) return;
  scaler_->update();
  update_is_due_ = false;
  stepped_.clear();
}

void ScaledPrecision::begin_iteration_of(torch::optim::Optimizer& optimizer) {
  if (std::find(stepped_.begin(), stepped_.end(), &optimizer) == stepped_.end()) return;
  // Its second step while others wait for their first: those were left out by the loop, and the scale moves
  // now.
  while (!waiting_.empty()) forget(*waiting_.back().optimizer);
  end_iteration();
}

void ScaledPrecision::unscale_gradients(torch::optim::Optimizer& optimizer) {
  if (!scales() || !has_gradients(optimizer) || keeps_scale(optimizer) || are_used_up(optimizer)) return;
  begin_iteration_of(optimizer);
  if (waiting(optimizer)) return;
  if (!warned_of_fp16_ && has_fp16_gradients(optimizer)) {
    warned_of_fp16_ = true;
    TORCH_WARN(
        name(),
        ": the optimizer's fp16 gradients are divided by the loss scale in fp16, where those below 6e-8 "
        "become 0 as they would without a scale; FusedAdamW, FusedAdam, FusedSGD and FusedAdagrad divide in "
        "float32, and master_weights keeps float32 gradients");
  }
  scaler_->unscale_(optimizer);
  wait(optimizer);
}

at::Tensor ScaledPrecision::clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                           GradientClipAlgorithm algorithm) {
  if (clip_val <= 0 || !scales() || !has_gradients(optimizer) || are_used_up(optimizer))
    return Precision::clip_gradients(optimizer, clip_val, algorithm);
  const bool by_norm = algorithm == GradientClipAlgorithm::kNorm;
  begin_iteration_of(optimizer);
  const Waiting* entry = waiting(optimizer);
  if (entry ? entry->still_scaled : keeps_scale(optimizer)) {
    if (!entry) wait(optimizer).still_scaled = true;
    if (by_norm) return scaler_->clip_grad_norm_(optimizer, clip_val);
    scaler_->clip_grad_value_(optimizer, clip_val);
    return {};
  }
  unscale_gradients(optimizer);
  // Clipping would spread a nan over all gradients and hide an inf, and this step is dropped anyway.
  if (has_overflowed(optimizer)) {
    return by_norm ? at::full_like(scaler_->found_inf(optimizer), HUGE_VAL) : at::Tensor();
  }
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
    TORCH_CHECK(!are_used_up(optimizer),
                "optimizer_step: step() has already been called with these gradients, which "
                "are unscaled since; call backward() before each step");
    // One that unscales by itself is left to do so, unless its gradients were looked at.
    begin_iteration_of(optimizer);
    if (!waiting(optimizer) && !unscales_itself(optimizer)) unscale_gradients(optimizer);
    stepped = scaler_->step(optimizer);
  } catch (...) {
    // A step that failed half-way must not make the next one believe that its gradients are unscaled, nor
    // move the scale by what it saw.
    forget(optimizer);
    if (std::find(stepped_.begin(), stepped_.end(), &optimizer) == stepped_.end()) scaler_->forget(optimizer);
    throw;
  }
  if (unscales_itself(optimizer)) stepped = !has_overflowed(optimizer);
  std::erase_if(waiting_, [&](const Waiting& entry) { return entry.optimizer == &optimizer; });
  stepped_.push_back(&optimizer);
  used_up_.insert_or_assign(&optimizer, fingerprint(main_params(optimizer)));
  update_is_due_ = true;
  if (unscales_itself(optimizer)) scaler_->note_step(optimizer, stepped);
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
