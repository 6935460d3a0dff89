#include <algorithm>

#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/gradient_record_internal.h"

namespace mantissa {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;

size_t count_parameters(const torch::optim::Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) count += group.params().size();
  return count;
}

}  // namespace

GradientFingerprint::GradientFingerprint(const std::vector<at::Tensor>& parameters) {
  gradients_.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor gradient = parameter.defined() ? parameter.grad() : at::Tensor();
    gradients_.emplace_back(WeakTensor(gradient.getIntrusivePtr()),
                            gradient.defined() ? static_cast<uint32_t>(gradient._version()) : 0);
  }
}

GradientRecord::GradientRecord(const torch::optim::Optimizer& of) : optimizer(&of) {
  for (size_t group = 0; group < of.param_groups().size(); ++group) {
    const auto& parameters = of.param_groups()[group].params();
    for (size_t number = 0; number < parameters.size(); ++number)
      parameters_.push_back({WeakTensor(parameters[number].getIntrusivePtr()), group, number});
  }
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

bool GradientRecord::is_dead() const {
  return std::all_of(parameters_.begin(), parameters_.end(),
                     [](const Parameter& parameter) { return parameter.tensor.expired(); });
}

GradientFingerprint GradientRecord::gradients() const {
  std::vector<at::Tensor> alive;
  alive.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) alive.emplace_back(parameter.tensor.lock());
  return GradientFingerprint(alive);
}

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
  before_backward = {};
}

}  // namespace mantissa
