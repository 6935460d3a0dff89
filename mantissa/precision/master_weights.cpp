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
#include "mantissa/fp8/fp8_weight.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/steps_16bit_weights.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa {
namespace {

bool is_16_bit(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// Whether a mode stores the parameter in FP8. One that the user has stored has a master weight of the user's own.
bool is_stored_by_mode(const at::Tensor& parameter) {
  return is_fp8_weight(parameter) && weight_rule(parameter)->belongs_to_mode();
}

/// Whether an optimizer steps a master weight in the parameter's place. Other packed weights are frozen.
bool has_master(const at::Tensor& parameter) {
  return is_packed(parameter) ? is_stored_by_mode(parameter) : is_16_bit(parameter);
}

/// Returns the most exact values of a parameter, in float32.
at::Tensor values_of(const at::Tensor& parameter) {
  if (!is_fp8_weight(parameter)) return parameter.detach().to(at::kFloat);
  const at::Tensor initial = high_precision_init_val(parameter);
  if (!initial.defined()) return packed_data(parameter)->dequantize(at::kFloat);
  clear_high_precision_init_val(parameter);
  return initial.to(parameter.device(), at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

bool has_equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.device() == b.device() &&
         a.flatten().view(at::kByte).equal(b.flatten().view(at::kByte));
}

bool have_equal_parts(const PackedDataPtr& a, const PackedDataPtr& b) {
  const auto parts = a->parts(), others = b->parts();
  return std::equal(
      parts.begin(), parts.end(), others.begin(), others.end(),
      [](const auto& x, const auto& y) { return x.first == y.first && has_equal_bytes(x.second, y.second); });
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
      if (!has_master(parameter)) continue;
      const auto [slot, is_new] = copies.try_emplace(parameter.unsafeGetTensorImpl());
      if (is_new) slot->second = add(parameter, {group, number});
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

at::Tensor MasterWeights::add(const at::Tensor& parameter, Place place) {
  model_.push_back(parameter);
  master_.push_back(values_of(parameter).set_requires_grad(parameter.requires_grad()));
  stored_.push_back(is_packed(parameter) ? packed_data(parameter) : nullptr);
  places_.push_back(place);
  return master_.back();
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
      if (has_master(parameters[number])) added.push_back({&parameters[number], {group, number}});
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
    *parameter = add(*parameter, place);
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
  const bool were_just_loaded = std::exchange(are_loaded_, false);
  for (size_t i = 0; i < model_.size(); ++i) {
    if (is_packed(model_[i])) {
      const PackedDataPtr now = packed_data(model_[i]);
      if (!were_just_loaded && now != stored_[i] && !(stored_[i] && have_equal_parts(now, stored_[i])))
        master_[i].copy_(values_of(model_[i]));
      stored_[i] = now;
      continue;
    }
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
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < model_.size(); ++i)
    if (!is_packed(model_[i])) to.push_back(model_[i]), from.push_back(master_[i]);
  if (!to.empty()) at::_foreach_copy_(to, from);
}

void MasterWeights::store_in_fp8() {
  for (size_t i = 0; i < model_.size(); ++i) {
    if (!is_fp8_weight(model_[i])) continue;
    store_fp8_weight(model_[i], master_[i]);
    stored_[i] = packed_data(model_[i]);
  }
}

void MasterWeights::restore_from_fp8() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i)
    if (is_fp8_weight(model_[i])) replace_weight(model_[i], master_[i].detach().to(model_[i].scalar_type()));
}

}  // namespace mantissa
