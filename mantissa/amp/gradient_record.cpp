#include <algorithm>
#include <utility>

#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/gradient_record_internal.h"

namespace mantissa {
namespace {

size_t count_parameters(const torch::optim::Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

}  // namespace

GradientRecord::GradientRecord(const torch::optim::Optimizer& of) : optimizer(&of) { add_parameters(of); }

void GradientRecord::add_parameters(const torch::optim::Optimizer& of) {
  const auto is_known = [&](size_t group, size_t number) {
    return std::any_of(parameters_.begin(), parameters_.end(), [&](const Parameter& parameter) {
      return parameter.group == group && parameter.number == number;
    });
  };
  const bool is_new = parameters_.empty();
  for (size_t group = 0; group < of.param_groups().size(); ++group) {
    const auto& parameters = of.param_groups()[group].params();
    for (size_t number = 0; number < parameters.size(); ++number) {
      if (!is_new && is_known(group, number)) continue;
      parameters_.push_back({WeakKey<at::Tensor>::weak(parameters[number]), group, number});
    }
  }
  const at::Tensor none;  // the last step used no gradient of theirs
  if (!stepped.empty())
    stepped.resize(parameters_.size(), {WeakKey<at::Tensor>::weak(none), version_of(none)});
  if (watch_) restart_backward();
}

bool GradientRecord::belongs_to(const torch::optim::Optimizer& other) const {
  if (optimizer != &other || count_parameters(other) < parameters_.size()) return false;
  // Groups may have been added since the record was made.
  return std::all_of(parameters_.begin(), parameters_.end(), [&](const Parameter& parameter) {
    const auto& groups = other.param_groups();
    return parameter.group < groups.size() && parameter.number < groups[parameter.group].params().size() &&
           groups[parameter.group].params()[parameter.number].unsafeGetTensorImpl() ==
               parameter.tensor._unsafe_get_target();
  });
}

bool GradientRecord::is_complete(const torch::optim::Optimizer& other) const {
  return count_parameters(other) == parameters_.size();
}

bool GradientRecord::is_dead() const {
  return std::all_of(parameters_.begin(), parameters_.end(),
                     [](const Parameter& parameter) { return parameter.tensor.expired(); });
}

std::vector<at::Tensor> GradientRecord::parameters() const {
  std::vector<at::Tensor> alive;
  alive.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) alive.emplace_back(parameter.tensor.lock());
  return alive;
}

GradientFingerprint GradientRecord::gradients() const {
  GradientFingerprint all;
  all.reserve(parameters_.size());
  for (const at::Tensor& gradient : current_gradients())
    all.emplace_back(gradient.getIntrusivePtr(), version_of(gradient));
  return all;
}

std::vector<at::Tensor> GradientRecord::current_gradients() const {
  std::vector<at::Tensor> all = parameters();
  for (at::Tensor& tensor : all) tensor = gradient_of(tensor);
  return all;
}

std::vector<at::Tensor> GradientRecord::defined_gradients() const {
  std::vector<at::Tensor> defined = current_gradients();
  std::erase_if(defined, [](const at::Tensor& gradient) { return !gradient.defined(); });
  return defined;
}

// Most questions are answered by the first parameter, whose gradient is a new tensor in each iteration.
bool GradientRecord::has_gradients(const GradientFingerprint& fingerprint) const {
  if (fingerprint.empty()) return false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor gradient = gradient_of(at::Tensor(parameters_[i].tensor.lock()));
    if (fingerprint[i].first._unsafe_get_target() != gradient.unsafeGetTensorImpl() ||
        fingerprint[i].second != version_of(gradient))
      return false;
  }
  return true;
}

GradientStage GradientRecord::stage_now() const {
  if (!watch_ && origins_.empty()) return stage;
  const std::vector<at::Tensor> now = current_gradients();
  const std::vector<GradientOrigin> from = origins(now);
  bool any_checked = false, any_new = false;
  for (size_t i = 0; i < now.size(); ++i) {
    if (!now[i].defined()) continue;
    if (from[i] == GradientOrigin::kMixed) return GradientStage::kMixed;
    any_checked = any_checked || from[i] == GradientOrigin::kChecked;
    any_new = any_new || from[i] == GradientOrigin::kNew;
  }
  if (any_checked && any_new) return GradientStage::kMixed;
  return any_new ? GradientStage::kScaled : stage;
}

std::vector<GradientOrigin> GradientRecord::origins(const std::vector<at::Tensor>& gradients) const {
  std::vector<GradientOrigin> from = origins_;
  from.resize(gradients.size(), GradientOrigin::kChecked);
  return watch_ ? watch_->origins(gradients, std::move(from)) : from;
}

void GradientRecord::begin_backward() {
  end_backward();
  restart_backward();
}

void GradientRecord::restart_backward() { watch_.emplace(parameters()); }

void GradientRecord::end_backward() {
  if (!watch_) return;
  origins_ = origins(current_gradients());
  watch_.reset();
}

void GradientRecord::mark_as_mixed() { origins_.assign(parameters_.size(), GradientOrigin::kMixed); }

std::vector<std::pair<std::string, at::Tensor>> GradientRecord::named_parameters(
    const std::function<std::string(const at::Tensor&)>& name) const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const Parameter& parameter : parameters_) {
    const at::Tensor alive(parameter.tensor.lock());
    if (!alive.defined()) continue;
    std::string own = name ? name(alive) : "";
    if (own.empty()) own = c10::str("group ", parameter.group, ", parameter ", parameter.number);
    named.emplace_back(std::move(own), alive);
  }
  return named;
}

void GradientRecord::reset_iteration() {
  stage = GradientStage::kScaled;
  found_inf.clear();
  clip_divisor.reset();
  nonfinite.clear();
  origins_.clear();
  watch_.reset();
}

}  // namespace mantissa
