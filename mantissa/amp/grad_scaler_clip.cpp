// Clipping with a scaler: of unscaled gradients, or of scaled ones whose optimizer divides inside its step.
#include <cmath>
#include <optional>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/clip_grad_internal.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/amp/gradients_internal.h"
#include "mantissa/amp/optimizer_kind.h"
#include "mantissa/amp/scaler_data_internal.h"
#include "mantissa/core/step_scaling.h"

namespace mantissa {
namespace {

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

/// Returns the joint norm of the gradients divided by `divisor`, on the first gradient's device. It is
/// computed in float32 or wider, whatever the gradients' dtype.
at::Tensor total_norm(const std::vector<GradientGroup>& groups, double norm_type, const at::Tensor& divisor) {
  // For orders up to 2, sums of powers of scaled fp16 values fit in float32. For other orders the values are
  // divided before they are summed; order 0 counts them, whatever the scale.
  const bool fits = (norm_type >= 1 && norm_type <= 2) || norm_type == HUGE_VAL;
  std::vector<at::Tensor> norms;
  for (const auto& group : groups) {
    const auto dtype = group.dtype == at::kDouble ? at::kDouble : at::kFloat;
    std::vector<at::Tensor> of_group;
    if (fits) {
      of_group = at::_foreach_norm(group.gradients, norm_type, dtype);
    } else {
      for (const at::Tensor& gradient : group.gradients) {
        const at::Tensor unscaled = gradient.to(dtype) / on_device(divisor, group.device);
        of_group.push_back(at::linalg_vector_norm(unscaled, norm_type));
      }
    }
    for (const at::Tensor& norm : of_group) norms.push_back(on_device(norm, groups.front().device));
  }
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms), norm_type);
  return fits ? total / on_device(divisor, total.device()) : total;
}

/// If gradients have to be clipped while scaled, checks them and returns the optimizer as
/// StepSupportsAmpScaling. Otherwise unscales them, if that was not done yet, and returns null.
StepSupportsAmpScaling* unscale_or_check(GradScaler& scaler, ScalerData& data,
                                         torch::optim::Optimizer& optimizer) {
  if (!scaler.is_enabled()) return nullptr;
  data.check_usable("clip_grad", optimizer);
  GradientRecord& record = data.record_of(optimizer);
  check_not_mixed("GradScaler::clip_grad", record);
  if (record.stage == GradientStage::kUnscaled) return nullptr;
  auto* scaling = as_self_unscaling(optimizer);
  if (record.stage == GradientStage::kScaled && scaling != nullptr && has_fp16_gradients(optimizer)) {
    // Check now: clipping may hide an inf, because a clamp makes it finite.
    data.check(optimizer, record);
    record.stage = GradientStage::kChecked;
  }
  if (record.stage == GradientStage::kChecked) return scaling;
  check_dense(parameters_of(optimizer));
  scaler.unscale_(optimizer);
  return nullptr;
}

}  // namespace

at::Tensor GradScaler::clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm,
                                       double norm_type) {
  check_clip_norm(max_norm, norm_type);
  const auto* scaling = unscale_or_check(*this, *data_, optimizer);
  if (scaling == nullptr) return mantissa::clip_grad_norm_(parameters_of(optimizer), max_norm, norm_type);
  const at::NoGradGuard no_grad;
  GradientRecord& record = data_->record_of(optimizer);
  const at::Tensor norm = total_norm(gradient_groups(optimizer), norm_type, data_->divisor(*scaling, record));
  const at::Tensor shrink =
      on_device(((norm + 1e-6) / max_norm).clamp_min(1.0).to(at::kFloat), data_->scale.value.device());
  record.clip_divisor = record.clip_divisor.defined() ? record.clip_divisor * shrink : shrink;
  return norm;
}

void GradScaler::clip_grad_value_(torch::optim::Optimizer& optimizer, double clip_value) {
  check_clip_value(clip_value);
  const auto* scaling = unscale_or_check(*this, *data_, optimizer);
  if (scaling == nullptr) {
    mantissa::clip_grad_value_(parameters_of(optimizer), clip_value);
    return;
  }
  const at::NoGradGuard no_grad;
  GradientRecord& record = data_->record_of(optimizer);
  // After clipping to the norm 0 the divisor is inf; multiplied by a value of 0 it gives nan.
  const at::Tensor limit = (data_->divisor(*scaling, record) * clip_value).nan_to_num_();
  // Overflowed gradients keep their infinities, so that they can be inspected; this step is skipped anyway.
  if (!record.found_inf.empty())
    limit.masked_fill_(data_->sum_on_scale_device(record.found_inf) != 0, HUGE_VAL);
  for (const auto& group : gradient_groups(optimizer)) {
    const at::Tensor high = on_device(limit, group.device), low = -high;
    for (const at::Tensor& gradient : group.gradients) gradient.clamp_(low, high);
  }
}

}  // namespace mantissa
