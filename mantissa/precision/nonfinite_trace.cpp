#include "mantissa/precision/nonfinite_trace.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include "mantissa/precision/nonfinite_observer_internal.h"
#include "mantissa/precision/nonfinite_values_internal.h"

namespace mantissa {
namespace {

using nonfinite_internal::look_at;
using nonfinite_internal::Observer;
using nonfinite_internal::Unobserved;
using nonfinite_internal::values_of;

/// Takes the gradients of a module's parameters away and puts them back: what runs meanwhile cannot add to
/// them.
class GradientsAside {
 public:
  explicit GradientsAside(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters()) {
      saved_.emplace_back(parameter, parameter.grad());
      parameter.mutable_grad() = at::Tensor();
    }
  }
  ~GradientsAside() {
    // Backwards: a tied parameter was seen twice, and the first time it still had its gradient.
    for (auto item = saved_.rbegin(); item != saved_.rend(); ++item)
      item->first.mutable_grad() = item->second;
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
};

class RestoreAtEnd {
 public:
  explicit RestoreAtEnd(const torch::nn::Module& module) : point_(module) {}
  ~RestoreAtEnd() { point_.restore(); }
  RestoreAtEnd(const RestoreAtEnd&) = delete;
  RestoreAtEnd& operator=(const RestoreAtEnd&) = delete;

 private:
  ReplayPoint point_;
};

/// Autocast keeps casts of weights while a region is open: those from before would hide the casting, and
/// those of the trace lead into a graph that has been used up.
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

std::optional<NonFiniteOrigin> backward_and_blame(Observer& observer, const torch::nn::Module& module,
                                                  const at::Tensor& loss) {
  if (is_bad(values_of(loss))) return observer.blame({{values_of(loss), "the loss"}});
  if (!loss.requires_grad()) return std::nullopt;

  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    const bool again = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const at::Tensor& other) { return other.is_same(item.value()); });
    if (again || !item.value().requires_grad()) continue;
    parameters.push_back(item.value());
    names.push_back(item.key());
  }
  if (parameters.empty()) return std::nullopt;
  observer.begin_backward(loss);
  const auto gradients =
      torch::autograd::grad({loss}, parameters, /*grad_outputs=*/{}, /*retain_graph=*/std::nullopt,
                            /*create_graph=*/false, /*allow_unused=*/true);
  std::vector<Observer::Bad> bad;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (const at::Tensor values = values_of(gradients[i]); is_bad(values))
      bad.push_back({values, "the gradient of '" + names[i] + "'"});
  return bad.empty() ? std::nullopt : observer.blame(bad);
}

std::optional<NonFiniteOrigin> trace(torch::nn::Module& module,
                                     const std::function<at::Tensor()>& forward_and_loss,
                                     const ReplayPoint* from) {
  const RestoreAtEnd restore(module);
  const GradientsAside gradients(module);
  const NoCachedCasts casts;
  const at::AutoGradMode with_gradients(true);
  const at::RecordFunctionGuard observed(true);
  if (from) from->restore();
  const auto observer = std::make_shared<Observer>(module);
  observer->begin();
  const at::Tensor loss = forward_and_loss();
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "trace_nonfinite: forward_and_loss returned ",
                    loss.defined() ? "more than one number" : "no tensor",
                    "; return the loss as a tensor of one element, before its backward()");
  return backward_and_blame(*observer, module, loss);
}

}  // namespace

std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss) {
  return trace(module, forward_and_loss, nullptr);
}

std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss,
                                               const ReplayPoint& from) {
  return trace(module, forward_and_loss, &from);
}

}  // namespace mantissa
