#include "mantissa/trace/trace_nonfinite.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/trace/observer_internal.h"
#include "mantissa/trace/report_internal.h"
#include "mantissa/trace/values_internal.h"

namespace mantissa {
namespace {

using nonfinite_internal::facts_of;
using nonfinite_internal::look_at;
using nonfinite_internal::Observer;
using nonfinite_internal::Unobserved;
using nonfinite_internal::values_of;

/// Removes the gradients of a module's parameters and restores them when it is destroyed, so that a backward
/// pass in between cannot add to them.
class SavedGradients {
 public:
  explicit SavedGradients(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      saved_.emplace_back(parameter, parameter.grad());
      parameter.mutable_grad() = at::Tensor();
    }
  }
  ~SavedGradients() {
    // The order is reversed because a tied parameter has two entries, and only the first one holds its
    // gradient.
    for (auto item = saved_.rbegin(); item != saved_.rend(); ++item)
      item->first.mutable_grad() = item->second;
  }
  SavedGradients(const SavedGradients&) = delete;
  SavedGradients& operator=(const SavedGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
};

class RestoreStateAtEnd {
 public:
  explicit RestoreStateAtEnd(const torch::nn::Module& module) : point_(module) {}
  ~RestoreStateAtEnd() { point_.restore(); }
  RestoreStateAtEnd(const RestoreStateAtEnd&) = delete;
  RestoreStateAtEnd& operator=(const RestoreStateAtEnd&) = delete;

 private:
  ReplayPoint point_;
};

class RestoreParametersAtEnd {
 public:
  explicit RestoreParametersAtEnd(const Observer& observer) : observer_(observer) {}
  ~RestoreParametersAtEnd() { observer_.restore_parameters(); }
  RestoreParametersAtEnd(const RestoreParametersAtEnd&) = delete;
  RestoreParametersAtEnd& operator=(const RestoreParametersAtEnd&) = delete;

 private:
  const Observer& observer_;
};

/// Clears autocast's cast cache before and after the trace. Casts of weights that were cached before would
/// not be observed. Casts that the trace makes belong to a graph that does not outlive it.
struct NoCachedCasts {
  NoCachedCasts() { at::autocast::clear_cache(); }
  ~NoCachedCasts() { at::autocast::clear_cache(); }
  NoCachedCasts(const NoCachedCasts&) = delete;
  NoCachedCasts& operator=(const NoCachedCasts&) = delete;
};

bool is_bad(const at::Tensor& values) {
  const Unobserved guard;
  return values.defined() && !look_at(values).finite();
}

/// The gradient of one parameter in one batch, with the parameter's name.
struct Gradient {
  std::string name;
  at::Tensor value;
};

/// Returns the gradients of `loss`, and those that a backward pass inside the forward pass has accumulated.
std::vector<Gradient> gradients_of(const torch::nn::Module& module, const at::Tensor& loss,
                                   Observer& observer) {
  std::vector<at::Tensor> parameters;
  std::vector<Gradient> gradients;
  for (const auto& item : module.named_parameters()) {
    const bool is_tied = std::any_of(parameters.begin(), parameters.end(),
                                     [&](const at::Tensor& other) { return other.is_same(item.value()); });
    if (is_tied || !item.value().requires_grad()) continue;
    parameters.push_back(item.value());
    gradients.push_back({item.key(), {}});
  }
  if (parameters.empty()) return {};
  observer.begin_backward(loss);
  const auto values = torch::autograd::grad({loss}, parameters, /*grad_outputs=*/{},
                                            /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                            /*allow_unused=*/true);
  for (size_t i = 0; i < values.size(); ++i) {
    gradients[i].value = values[i];
    if (parameters[i].grad().defined()) gradients.push_back({gradients[i].name, parameters[i].grad()});
  }
  return gradients;
}

/// `gradients` is empty if the loss or a gradient is not finite, or if the loss has no gradients.
struct Traced {
  std::optional<NonFiniteOrigin> origin;
  std::vector<Gradient> gradients;
};

Traced trace(torch::nn::Module& module, const std::function<at::Tensor()>& forward_and_loss,
             const ReplayPoint* from) {
  const RestoreStateAtEnd restored_state(module);
  const SavedGradients saved_gradients(module);
  const NoCachedCasts no_cached_casts;
  const SeparateCasts separate_casts;  // so that a cast can be told apart from its product
  const at::AutoGradMode with_gradients(true);
  const at::RecordFunctionGuard observed(true);
  if (from) from->restore();
  const auto observer = std::make_shared<Observer>(module);
  const RestoreParametersAtEnd restored_parameters(*observer);
  observer->begin();
  const at::Tensor loss = forward_and_loss();
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "trace_nonfinite: forward_and_loss returned ",
                    loss.defined() ? c10::str("a tensor of ", loss.numel(), " elements") : "no tensor",
                    "; return the loss as a tensor of one element, before its backward()");
  if (is_bad(values_of(loss))) return {observer->blame({{values_of(loss), "the loss"}}), {}};
  if (!loss.requires_grad()) return {};
  Traced traced{std::nullopt, gradients_of(module, loss, *observer)};
  std::vector<Observer::Bad> bad;
  for (const auto& [name, value] : traced.gradients)
    if (const at::Tensor values = values_of(value); is_bad(values))
      bad.push_back({values, "the gradient of '" + name + "'"});
  if (!bad.empty()) traced = {observer->blame(bad), {}};
  return traced;
}

/// Adds a gradient to the accumulated one, with the operands in the order that libtorch uses.
at::Tensor accumulate(const at::Tensor& sum, const at::Tensor& gradient) {
  return sum.is_sparse() && !gradient.is_sparse() ? gradient + sum : sum + gradient;
}

NonFiniteOrigin sum_origin(const std::string& name, const at::Tensor& before, const at::Tensor& gradient,
                           const at::Tensor& sum) {
  NonFiniteOrigin origin;
  origin.backward = true;
  origin.op = "aten::add";
  origin.called_by = "torch::autograd::AccumulateGrad";
  const size_t dot = name.rfind('.');
  origin.module = dot == std::string::npos ? "" : name.substr(0, dot);
  origin.inside_module = true;
  origin.tensor = "the sum of the window's gradients of '" + name + "'";
  origin.result = facts_of(values_of(sum));
  origin.inputs = {facts_of(values_of(before)), facts_of(values_of(gradient))};
  origin.finite_in_float32 = !is_bad(values_of(accumulate(before.to(at::kFloat), gradient.to(at::kFloat))));
  origin.cause = NonFiniteCause::kAccumulation;
  origin.cure = nonfinite_internal::cure_for(origin);
  return origin;
}

}  // namespace

std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss) {
  return trace(module, forward_and_loss, nullptr).origin;
}

std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss,
                                               const ReplayPoint& from) {
  return trace(module, forward_and_loss, &from).origin;
}

std::optional<WindowOrigin> trace_nonfinite_window(torch::nn::Module& module,
                                                   const std::vector<WindowBatch>& batches) {
  std::map<std::string, at::Tensor> sums;
  std::optional<WindowOrigin> origin_of_sum;
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    const Traced traced = trace(module, batches[batch].forward_and_loss, batches[batch].from);
    if (traced.origin) return WindowOrigin{batch, *traced.origin};
    if (origin_of_sum) continue;  // later batches are still traced: a fault inside one of them says more
    const at::NoGradGuard no_grad;
    for (const auto& [name, gradient] : traced.gradients) {
      if (!gradient.defined()) continue;
      at::Tensor& sum = sums[name];
      const at::Tensor before = sum;
      sum = before.defined() ? accumulate(before, gradient) : gradient;
      if (!is_bad(values_of(sum))) continue;
      origin_of_sum = {batch, sum_origin(name, before, gradient, sum)};
      break;
    }
  }
  return origin_of_sum;
}

}  // namespace mantissa
