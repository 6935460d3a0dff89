#include "mantissa/precision/precision.h"

#include <unordered_set>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/clip_grad.h"

namespace mantissa {

std::string_view to_string(SkipCause cause) {
  switch (cause) {
    case SkipCause::kNone:
      return "not skipped";
    case SkipCause::kNonFiniteGradients:
      return "non-finite gradients";
    case SkipCause::kNoGradients:
      return "no gradients";
  }
  return "unknown";
}

void Precision::backward(const at::Tensor& loss) { pre_backward(loss).backward(); }

at::Tensor Precision::clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                     GradientClipAlgorithm algorithm) {
  if (clip_val <= 0) return {};
  unscale_gradients(optimizer);
  const std::vector<at::Tensor> parameters = main_params(optimizer);
  if (algorithm == GradientClipAlgorithm::kNorm) return clip_grad_norm_(parameters, clip_val);
  clip_grad_value_(parameters, clip_val);
  return {};
}

StepResult Precision::optimizer_step(torch::optim::Optimizer& optimizer,
                                     const std::function<at::Tensor()>& closure) {
  if (!closure) {
    if (!has_gradients(optimizer)) return {true, SkipCause::kNoGradients};
    optimizer.step();
    return {};
  }
  at::Tensor loss;
  const bool line_search = dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr;
  optimizer.step([&] {
    loss = closure();
    TORCH_CHECK_VALUE(
        loss.defined() || !line_search,
        "optimizer_step: LBFGS compares losses, so every batch needs one; return a loss, or take another "
        "optimizer");
    return loss;
  });
  // Gradients of earlier batches of an accumulation window were applied even if this batch had no loss.
  if (!loss.defined() && !has_gradients(optimizer)) return {true, SkipCause::kNoGradients};
  return {};
}

std::vector<at::Tensor> main_params(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) all.push_back(parameter);
  return all;
}

bool has_gradients(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) return true;
  return false;
}

}  // namespace mantissa
