#include "mantissa/amp/clip_grad.h"

#include <cmath>
#include <optional>
#include <unordered_set>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "mantissa/amp/clip_grad_internal.h"
#include "mantissa/amp/gradients_internal.h"

namespace mantissa {
namespace {

std::vector<at::Tensor> gradients_of(at::TensorList parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    // libtorch's parameters() has two entries for a weight that two modules share. It counts once here, as in
    // Python.
    if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

/// Groups gradients by device and dtype, as the _foreach_ operations require. libtorch's own function does
/// it, because Python sums the norms in the order of these groups.
std::vector<std::vector<at::Tensor>> grouped(const std::vector<at::Tensor>& gradients) {
  const std::vector<std::optional<at::Tensor>> list(gradients.begin(), gradients.end());
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& [key, group] :
       at::native::_group_tensors_by_first_tensors_device_and_dtype({list}, false)) {
    auto& out = groups.emplace_back();
    for (const auto& gradient : group.first.front()) out.push_back(*gradient);
  }
  return groups;
}

/// Returns the joint norm of all gradients as a 0-dim tensor on `device`.
at::Tensor total_norm(const std::vector<std::vector<at::Tensor>>& groups, double norm_type,
                      at::Device device) {
  std::vector<at::Tensor> norms;
  for (const auto& group : groups)
    for (const at::Tensor& norm : at::_foreach_norm(group, norm_type)) norms.push_back(norm.to(device));
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

at::Tensor clip_factor(const at::Tensor& total, double max_norm) {
  return ((total + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
}

/// Multiplies all gradients by `factor`, even if it is 1, because reading it would wait for the device.
void shrink(const std::vector<std::vector<at::Tensor>>& groups, const at::Tensor& factor) {
  for (const auto& group : groups) at::_foreach_mul_(group, factor.to(group.front().device()));
}

}  // namespace

void check_clip_norm(double max_norm, double norm_type) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm must be at least 0; got ", max_norm,
                    " (to clip nothing, do not call it)");
  TORCH_CHECK_VALUE(!std::isnan(norm_type),
                    "clip_grad_norm_: norm_type is nan; use 1, 2, inf or another number");
}

void check_clip_value(double clip_value) {
  TORCH_CHECK_VALUE(clip_value >= 0, "clip_grad_value_: clip_value must be at least 0; got ", clip_value,
                    " (to clip nothing, do not call it)");
}

void check_dense(at::TensorList parameters) {
  for (const at::Tensor& parameter : parameters) {
    TORCH_CHECK_NOT_IMPLEMENTED(!parameter.grad().defined() || !parameter.grad().is_sparse(),
                                "clip_grad: a parameter of shape ", parameter.sizes(),
                                " has a sparse gradient, which cannot be clipped; build its Embedding "
                                "with sparse(false), or clip "
                                "the other parameters only");
  }
}

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  check_clip_norm(max_norm, norm_type);
  check_dense(parameters);
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return at::zeros({});
  const auto groups = grouped(gradients);
  const at::Tensor total = total_norm(groups, norm_type, gradients.front().device());
  if (error_if_nonfinite) {
    const double value = total.item<double>();
    TORCH_CHECK(std::isfinite(value), "clip_grad_norm_: the total norm of order ", norm_type,
                " for gradients from `parameters` is ", value,
                ", non-finite, so it cannot be clipped; pass "
                "error_if_nonfinite = false and let GradScaler skip the step, or lower the learning rate");
  }
  shrink(groups, clip_factor(total, max_norm));
  return total;
}

at::Tensor clip_grad_norm_unless_(const at::Tensor& found_inf, at::TensorList parameters, double max_norm) {
  check_clip_norm(max_norm);
  check_dense(parameters);
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return at::zeros({});
  const auto groups = grouped(gradients);
  const at::Tensor total = total_norm(groups, 2.0, gradients.front().device());
  const at::Tensor overflowed = on_device(found_inf, total.device()) != 0;
  shrink(groups, clip_factor(total, max_norm).masked_fill(overflowed, 1.0));
  return total.masked_fill(overflowed, HUGE_VAL);
}

void clip_grad_value_(at::TensorList parameters, double clip_value) {
  check_clip_value(clip_value);
  check_dense(parameters);
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  for (const auto& group : grouped(gradients)) {
    at::_foreach_clamp_min_(group, -clip_value);
    at::_foreach_clamp_max_(group, clip_value);
  }
}

void clip_grad_value_unless_(const at::Tensor& found_inf, at::TensorList parameters, double clip_value) {
  check_clip_value(clip_value);
  check_dense(parameters);
  const at::NoGradGuard no_grad;
  const at::Tensor limit =
      at::full({}, clip_value, found_inf.options().dtype(at::kDouble)).masked_fill_(found_inf != 0, HUGE_VAL);
  for (const at::Tensor& gradient : gradients_of(parameters)) {
    const at::Tensor high = on_device(limit, gradient.device());
    gradient.clamp_(-high, high);
  }
}

}  // namespace mantissa
