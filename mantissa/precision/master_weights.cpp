#include "mantissa/precision/master_weights.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/state_dict.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/steps_16bit_weights.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

bool is_16_bit(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// Adds the parameter's gradient to that of its master weight, and makes the parameter's gradient undefined.
void move_gradient(const at::Tensor& parameter, const at::Tensor& master) {
  if (!parameter.grad().defined()) return;
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

bool are_laid_out_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

/// Whether `model`, in the host's memory, holds exactly what `master` is when it is rounded.
bool is_rounded_from(const at::Tensor& model, const at::Tensor& master) {
  if (!are_laid_out_alike(model, master)) return model.equal(master.to(model.scalar_type()));
  // The rounded values stay in the processor's cache, and no memory for a whole weight is mapped at each step.
  constexpr int64_t kPiece = 1 << 18;
  const int64_t count = model.numel();
  const auto* bytes = static_cast<const char*>(model.const_data_ptr());
  const at::Tensor values = master.detach().as_strided({count}, {1});
  const at::Tensor rounded = at::empty({std::min(count, kPiece)}, model.options().requires_grad(false));
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = std::min(kPiece, count - begin);
    const at::Tensor piece = rounded.narrow(0, 0, size).copy_(values.narrow(0, begin, size));
    if (std::memcmp(piece.const_data_ptr(), bytes, piece.nbytes()) != 0) return false;
    bytes += piece.nbytes();
  }
  return true;
}

/// Whether a parameter's state is still the one that an optimizer's constructor makes, as Adagrad's does.
bool is_initial_state(const StateDict& state) {
  const auto step = state.find("step");
  if (step == state.end()) return false;
  const auto* const count = step->second.get_if<int64_t>();
  const auto* const counter = step->second.get_if<at::Tensor>();
  return (count && *count == 0) || (counter && counter->numel() == 1 && counter->item<double>() == 0);
}

/// Returns the state that `optimizer` keeps of parameters it has not stepped yet, with 16-bit tensors in
/// float32; empty if it keeps none.
/// Errors: c10::ValueError if it has stepped.
StateDict first_state(const torch::optim::Optimizer& optimizer) {
  if (optimizer.state().empty()) return {};
  StateDict state = optimizer_state(optimizer);
  StateDict& states = *state.at("state").get_if<StateDict>();
  for (auto& [number, entry] : states) {
    TORCH_CHECK_VALUE(
        is_initial_state(*entry.get_if<StateDict>()),
        "setup_optimizer: the optimizer has stepped, or its state was loaded, before it got master weights; "
        "call setup_optimizer() before its first step and before its state is loaded");
    for (auto& [name, value] : *entry.get_if<StateDict>())
      if (const auto* tensor = value.get_if<at::Tensor>(); tensor && is_16_bit(*tensor))
        value = tensor->to(at::kFloat);
  }
  return state;
}

}  // namespace

MasterWeights::MasterWeights(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {
  const StateDict initial_state = first_state(optimizer);
  const at::NoGradGuard no_grad;
  std::unordered_map<const at::TensorImpl*, at::Tensor> copies;  // libtorch lists a tied weight twice
  std::vector<std::pair<at::Tensor*, at::Tensor>> replaced;
  auto* const observer = dynamic_cast<Steps16BitWeights*>(&optimizer);
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    std::vector<at::Tensor>& parameters = optimizer.param_groups()[group].params();
    for (size_t number = 0; number < parameters.size(); ++number) {
      at::Tensor& parameter = parameters[number];
      if (!is_16_bit(parameter) || is_packed(parameter)) continue;  // a packed weight is frozen
      const auto [slot, is_new] = copies.try_emplace(parameter.unsafeGetTensorImpl());
      if (is_new) {
        slot->second = parameter.detach().to(at::kFloat).set_requires_grad(parameter.requires_grad());
        model_.push_back(parameter);
        master_.push_back(slot->second);
        places_.push_back({group, number});
      }
      replaced.emplace_back(&parameter, parameter);
      parameter = slot->second;
      if (observer) observer->replaced_parameter(replaced.back().second, parameter);
    }
  }
  if (!initial_state.empty()) {
    try {
      load_optimizer_state(optimizer, StateReader(initial_state, "the optimizer's first state"));
    } catch (...) {
      for (const auto& [place, parameter] : replaced) {
        if (observer) observer->replaced_parameter(*place, parameter);
        *place = parameter;
      }
      throw;
    }
  }
  move_gradients_from(0);
}

void MasterWeights::move_gradients_from(size_t first) {
  for (size_t i = first; i < model_.size(); ++i) {
    move_gradient(model_[i], master_[i]);
    hooks_.emplace_back(model_[i], GradientHookOrder::kMove, [master = master_[i]](at::Tensor& holder) {
      move_gradient(holder, master);
      holder = master;
    });
  }
}

bool MasterWeights::add_parameters(torch::optim::Optimizer& optimizer) {
  std::vector<std::pair<at::Tensor*, Place>> added;
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    std::vector<at::Tensor>& parameters = optimizer.param_groups()[group].params();
    for (size_t number = 0; number < parameters.size(); ++number)
      if (is_16_bit(parameters[number]) && !is_packed(parameters[number]))
        added.push_back({&parameters[number], {group, number}});
  }
  if (added.empty()) return false;
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& parameter : model_) known.insert(parameter.unsafeGetTensorImpl());
  for (const auto& [parameter, place] : added) {
    TORCH_CHECK_VALUE(known.insert(parameter->unsafeGetTensorImpl()).second, "optimizer_step: parameter ",
                      place.number, " of group ", place.group,
                      " was added to an optimizer that has a master weight for it already; add it once");
    TORCH_CHECK_VALUE(optimizer.state().count(parameter->unsafeGetTensorImpl()) == 0,
                      "optimizer_step: parameter ", place.number, " of group ", place.group,
                      " was added to the optimizer and stepped without a master weight; step with the "
                      "precision's optimizer_step()");
  }
  const at::NoGradGuard no_grad;
  const size_t first = model_.size();
  auto* const observer = dynamic_cast<Steps16BitWeights*>(&optimizer);
  for (const auto& [parameter, place] : added) {
    model_.push_back(*parameter);
    master_.push_back(parameter->detach().to(at::kFloat).set_requires_grad(parameter->requires_grad()));
    places_.push_back(place);
    *parameter = master_.back();
    if (observer) observer->replaced_parameter(model_.back(), master_.back());
  }
  move_gradients_from(first);
  return true;
}

bool MasterWeights::are_stepped_by(const torch::optim::Optimizer& optimizer) const {
  if (!belongs_to(optimizer)) return false;
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < master_.size(); ++i) {
    const auto [group, number] = places_[i];
    if (group >= groups.size() || number >= groups[group].params().size() ||
        !groups[group].params()[number].is_same(master_[i]))
      return false;
  }
  return true;
}

bool MasterWeights::share_a_parameter_with(const MasterWeights& other) const {
  std::unordered_set<const at::TensorImpl*> mine;
  for (const at::Tensor& parameter : model_) mine.insert(parameter.unsafeGetTensorImpl());
  return std::any_of(other.model_.begin(), other.model_.end(), [&](const at::Tensor& parameter) {
    return mine.contains(parameter.unsafeGetTensorImpl());
  });
}

void MasterWeights::copy_changes_from_model() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i) {
    // Versions would not show a write through data(). The host must not wait for a device to compare values.
    if (model_[i].is_cpu() && is_rounded_from(model_[i], master_[i])) continue;
    // An average that was swapped in and out again has written the old values back. Only the master weight
    // still has their low bits.
    const at::Tensor is_unchanged = master_[i].to(model_[i].scalar_type()) == model_[i];
    at::where_out(master_[i], is_unchanged, master_[i], model_[i]);
  }
}

void MasterWeights::copy_to_model() {
  const at::NoGradGuard no_grad;
  if (!model_.empty()) at::_foreach_copy_(model_, master_);
}

}  // namespace mantissa
