#include "mantissa/precision/precision.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/matmul_precision.h"
#include "mantissa/precision/layers_internal.h"
#include "mantissa/precision/state_keys_internal.h"
#include "mantissa/weights/attention.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa {

std::string Precision::parameter_name(const at::Tensor& parameter) const {
  const std::string* name = names_.find(model_parameter(parameter));
  return name ? *name : "";
}

Scope Precision::run_context() const {
  if (!float32_matmul_precision_) return {};
  return std::make_shared<Float32MatmulPrecisionGuard>(*float32_matmul_precision_);
}

void Precision::set_float32_matmul_precision(std::optional<std::string> precision) {
  if (precision) check_float32_matmul_precision(*precision);
  float32_matmul_precision_ = std::move(precision);
}

void Precision::convert_module(torch::nn::Module& module) {
  std::unordered_set<const at::TensorImpl*> named;
  for (const auto& parameter : module.named_parameters()) {
    // libtorch lists a tied weight under each of its names. Its first name counts, as in Python.
    if (named.insert(parameter.value().unsafeGetTensorImpl()).second)
      names_.insert_or_assign(parameter.value(), parameter.key());
    // An earlier mode of this module ends here. A mode with a rule of its own marks the weights after this.
    const at::Tensor weight = base_weight(parameter.value());
    const WeightRulePtr rule = weight_rule(weight);
    if (!rule || !rule->belongs_to_mode()) continue;
    if (is_packed(weight)) {
      replace_weight(weight, mantissa::dequantize(weight.detach()));
    } else {
      unmark_weight(weight);
    }
  }
  for (const Attention& attention : attentions_of(module)) {
    const auto& rule = attention.module->attention_rule();
    if (rule && rule->belongs_to_mode()) attention.module->set_attention_rule(nullptr);
  }
}

void Precision::setup_optimizer(torch::optim::Optimizer& optimizer) {
  if (has_line_search(optimizer)) check_line_search();
}

Scope Precision::backward_context() const { return std::make_shared<AutocastOff>(); }

void Precision::backward(const at::Tensor& loss, const LossHook& before) {
  check_requires_gradient(loss);
  if (before) before(loss);
  loss.backward();
  has_run_backward_ = true;
}

void Precision::check_requires_gradient(const at::Tensor& loss) const {
  TORCH_CHECK_VALUE(loss.defined() && loss.requires_grad(), "backward: precision '", name_, "' got ",
                    loss.defined()
                        ? "a loss that requires no gradient, because no parameter that it was computed from "
                          "requires one, or it was computed without autograd"
                        : "no loss",
                    "; give a loss of a model that trains");
}

void Precision::warn_of_no_gradients(const torch::optim::Optimizer& optimizer) {
  has_warned_of_no_gradients_ = true;
  TORCH_WARN("optimizer_step: precision '", name_, "': backward() has run, and none of the ",
             main_params(optimizer).size(),
             " parameters of the optimizer got a gradient, so this step changes nothing; the loss must come "
             "from the model whose parameters the optimizer was given");
}

at::Tensor Precision::clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                     GradientClipAlgorithm algorithm) {
  if (clip_val <= 0) return {};
  const std::vector<at::Tensor> parameters = main_params(optimizer);
  if (algorithm == GradientClipAlgorithm::kNorm) return clip_grad_norm_(parameters, clip_val);
  clip_grad_value_(parameters, clip_val);
  return {};
}

StepResult Precision::optimizer_step(torch::optim::Optimizer& optimizer) {
  StepResult result = step(optimizer, nullptr);
  const bool has_run_backward = std::exchange(has_run_backward_, false);
  if (has_run_backward && !has_warned_of_no_gradients_ && result.is_known() &&
      result.cause() == SkipCause::kNoGradients)
    warn_of_no_gradients(optimizer);
  at::autocast::clear_cache();  // it may hold casts of the weights from before the step
  return result;
}

StepResult Precision::optimizer_step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  if (!has_line_search(optimizer)) {
    closure();
    return optimizer_step(optimizer);
  }
  check_line_search();
  StepResult result = step(optimizer, [&] {
    at::autocast::clear_cache();  // LBFGS changes the weights between evaluations
    at::Tensor loss = closure();
    TORCH_CHECK_VALUE(
        loss.defined(),
        "optimizer_step: LBFGS compares losses, so every batch needs one; return a loss, or choose another "
        "optimizer");
    return loss;
  });
  at::autocast::clear_cache();
  return result;
}

StepResult Precision::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  if (!closure && !has_gradients(optimizer)) return StepResult(SkipCause::kNoGradients);
  optimizer.step(closure);
  return {};
}

std::vector<std::string> Precision::load_state_dict(const StateReader& state) {
  std::vector<std::string> differences;
  const StateDict own = state_dict();
  for (const auto& [key, value] : state.to_dict()) {
    // Master weights are not lost: the model's weights were loaded from them.
    if (key == kMasterWeightsKey || own.contains(key)) continue;
    std::string words = key;
    std::replace(words.begin(), words.end(), '_', ' ');
    differences.push_back("its " + words + " is dropped");
  }
  return differences;
}

bool Precision::can_take_gradients(const StateReader& state) const { return !state.find(kStageKey); }

std::vector<at::Tensor> main_params(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) all.push_back(parameter);
  return all;
}

bool has_gradients(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) return true;
  return false;
}

std::map<std::string, at::Tensor> master_weights_of(const StateReader& precision_state) {
  std::map<std::string, at::Tensor> weights;
  const auto saved = precision_state.find(kMasterWeightsKey);
  if (!saved) return weights;
  for (const auto& [name, value] : saved->to_dict()) weights.emplace(name, saved->at(name).to_tensor());
  return weights;
}

}  // namespace mantissa
