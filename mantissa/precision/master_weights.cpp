#include "mantissa/precision/master_weights.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/state_dict.h"
#include "mantissa/optim/optimizer_state.h"

namespace mantissa {
namespace {

bool is_16_bit(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// Runs after a gradient was accumulated into a parameter, on the thread that did it.
struct MoveGradient final : torch::autograd::PostAccumulateGradHook {
  explicit MoveGradient(at::Tensor to) : master(std::move(to)) {}
  void operator()(const at::Tensor& parameter) override {
    const at::NoGradGuard no_grad;
    const at::Tensor gradient = parameter.grad().to(at::kFloat);
    at::Tensor& sum = master.mutable_grad();
    if (!sum.defined()) {
      sum = gradient;
    } else if (sum.is_sparse() && !gradient.is_sparse()) {
      sum = gradient.add(sum);
    } else {
      sum.add_(gradient);
    }
    parameter.mutable_grad() = at::Tensor();
  }
  at::Tensor master;
};

/// Whether a parameter's state is the one that an optimizer's constructor makes, as Adagrad's does.
bool is_unstepped(const StateDict& state) {
  const auto step = state.find("step");
  if (step == state.end()) return false;
  const auto* const count = step->second.get_if<int64_t>();
  const auto* const counter = step->second.get_if<at::Tensor>();
  return (count && *count == 0) || (counter && counter->numel() == 1 && counter->item<double>() == 0);
}

/// What `optimizer` keeps of parameters that it has not stepped yet, in float32 where they are 16-bit; empty
/// if it keeps nothing.
/// Errors: c10::ValueError if it has stepped.
StateDict first_state(const torch::optim::Optimizer& optimizer) {
  if (optimizer.state().empty()) return {};
  StateDict state = optimizer_state(optimizer);
  StateDict& states = *state.at("state").get_if<StateDict>();
  for (auto& [number, entry] : states) {
    TORCH_CHECK_VALUE(
        is_unstepped(*entry.get_if<StateDict>()),
        "setup_optimizer: the optimizer has stepped, or its state was loaded, before it got float32 copies "
        "of "
        "its 16-bit weights; call setup_optimizer() before its first step and before its state is loaded");
    for (auto& [name, value] : *entry.get_if<StateDict>())
      if (const auto* tensor = value.get_if<at::Tensor>(); tensor && is_16_bit(*tensor))
        value = tensor->to(at::kFloat);
  }
  return state;
}

}  // namespace

MasterWeights::MasterWeights(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {
  const StateDict made_before = first_state(optimizer);
  const at::NoGradGuard no_grad;
  std::unordered_map<const at::TensorImpl*, at::Tensor> copies;  // libtorch lists a tied weight twice
  std::vector<std::pair<at::Tensor*, at::Tensor>> replaced;
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      if (!is_16_bit(parameter)) continue;
      const auto [slot, is_new] = copies.try_emplace(parameter.unsafeGetTensorImpl());
      if (is_new) {
        slot->second = parameter.detach().to(at::kFloat).set_requires_grad(parameter.requires_grad());
        model_.push_back(parameter);
        master_.push_back(slot->second);
      }
      replaced.emplace_back(&parameter, parameter);
      parameter = slot->second;
    }
  }
  if (!made_before.empty()) {
    try {
      load_optimizer_state(optimizer, StateReader(made_before, "the optimizer's first state"));
    } catch (...) {
      for (const auto& [place, parameter] : replaced) *place = parameter;
      throw;
    }
  }
  for (size_t i = 0; i < model_.size(); ++i) {
    auto hook = std::make_unique<MoveGradient>(master_[i]);
    if (model_[i].grad().defined()) (*hook)(model_[i]);
    torch::autograd::impl::set_post_acc_grad_hooks(model_[i], std::move(hook));
    versions_.push_back(model_[i]._version());
  }
}

MasterWeights::~MasterWeights() {
  for (size_t i = 0; i < model_.size(); ++i) {
    const auto& hook = torch::autograd::impl::post_acc_grad_hooks(model_[i]);
    const auto* moves = dynamic_cast<const MoveGradient*>(hook.get());
    // Another MasterWeights may have taken the parameter over since.
    if (moves && moves->master.is_same(master_[i]))
      torch::autograd::impl::set_post_acc_grad_hooks(model_[i], nullptr);
  }
}

bool MasterWeights::are_stepped_by(const torch::optim::Optimizer& optimizer) const {
  if (!belongs_to(optimizer)) return false;
  std::unordered_set<const at::TensorImpl*> stepped;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) stepped.insert(parameter.unsafeGetTensorImpl());
  return std::all_of(master_.begin(), master_.end(), [&](const at::Tensor& master) {
    return stepped.contains(master.unsafeGetTensorImpl());
  });
}

bool MasterWeights::share_a_parameter_with(const MasterWeights& other) const {
  std::unordered_set<const at::TensorImpl*> mine;
  for (const at::Tensor& parameter : model_) mine.insert(parameter.unsafeGetTensorImpl());
  return std::any_of(other.model_.begin(), other.model_.end(), [&](const at::Tensor& parameter) {
    return mine.contains(parameter.unsafeGetTensorImpl());
  });
}

void MasterWeights::take_over_changes() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i) {
    if (model_[i]._version() == versions_[i]) continue;
    // An average that was swapped in and out again has written the old values: their low bits are in the copy
    // only.
    const at::Tensor is_as_it_was = master_[i].to(model_[i].scalar_type()) == model_[i];
    master_[i].copy_(at::where(is_as_it_was, master_[i], model_[i]));
  }
}

void MasterWeights::copy_to_model() {
  const at::NoGradGuard no_grad;
  if (!model_.empty()) at::_foreach_copy_(model_, master_);
  for (size_t i = 0; i < model_.size(); ++i) versions_[i] = model_[i]._version();
}

}  // namespace mantissa
