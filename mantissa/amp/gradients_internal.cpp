#include "mantissa/amp/gradients_internal.h"

#include <unordered_set>

#include <torch/optim/optimizer.h>

namespace mantissa {

std::vector<GradientGroup> gradient_groups(const torch::optim::Optimizer& optimizer) {
  std::vector<GradientGroup> groups;
  std::unordered_set<const at::TensorImpl*> seen;  // libtorch lists a weight that two modules share twice
  for (const auto& param_group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : param_group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      // The optimizer sums duplicate indices when it coalesces; in fp16 that sum can overflow.
      if (gradient.is_sparse() && gradient.scalar_type() == at::kHalf) gradient = gradient.coalesce();
      const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
      auto group = groups.begin();
      while (group != groups.end() &&
             !(group->device == values.device() && group->dtype == values.scalar_type())) {
        ++group;
      }
      if (group == groups.end()) group = groups.insert(group, {values.device(), values.scalar_type(), {}});
      group->gradients.push_back(values);
    }
  }
  return groups;
}

bool has_fp16_gradients(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined() && parameter.grad().scalar_type() == at::kHalf) return true;
    }
  }
  return false;
}

}  // namespace mantissa
