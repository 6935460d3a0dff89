#include "mantissa/amp/iteration_tracker.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/amp/gradients_internal.h"
#include "mantissa/amp/scaler_data_internal.h"

namespace mantissa {
namespace {

/// Whether a step was taken in this iteration and the iteration has not ended.
bool update_is_due(const ScalerData& data) {
  return std::any_of(data.records.begin(), data.records.end(),
                     [](const auto& record) { return record->stage == GradientStage::kStepped; });
}

/// Whether a gradient of a step in this iteration overflowed; undefined if none was checked.
at::Tensor found_inf_of_steps(const ScalerData& data) {
  PerDevice flags;
  for (const auto& record : data.records)
    if (record->stage == GradientStage::kStepped)
      flags.insert(flags.end(), record->found_inf.begin(), record->found_inf.end());
  return data.sum_on_scale_device(flags);
}

/// Returns the gradients that no step has used and that carry the present scale. Two optimizers may share a
/// parameter, and one of them may be gone.
std::vector<at::Tensor> scaled_gradients(const ScalerData& data) {
  const auto accumulates = [](const auto& record) {
    return record->may_accumulate && !record->awaits_step();
  };
  if (std::none_of(data.records.begin(), data.records.end(), accumulates)) return {};
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& record : data.records) {
    if (!record->awaits_step() && !record->has_gradients(record->stepped)) continue;
    for (const at::Tensor& gradient : record->defined_gradients())
      seen.insert(gradient.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> scaled;
  for (const auto& record : data.records) {
    if (!accumulates(record)) continue;
    for (const at::Tensor& gradient : record->defined_gradients())
      if (seen.insert(gradient.unsafeGetTensorImpl()).second) scaled.push_back(gradient);
  }
  return scaled;
}

/// Whether the present scale is `scale`. Asks only if that waits for no device, and if the steps of this
/// iteration have read their flags on the host anyway; otherwise the answer is no. Most steps leave the scale as it is.
bool is_known_to_be(const ScalerData& data, const at::Tensor& scale) {
  const auto is_known = [](const auto& record) {
    return record->stage != GradientStage::kStepped || record->is_step_known;
  };
  return data.scale.value.is_cpu() && std::all_of(data.records.begin(), data.records.end(), is_known) &&
         data.scale.value.item<float>() == scale.item<float>();
}

/// For gradients that carry the scale `before`: makes their step divide by the present scale.
void follow_scale(const ScalerData& data, const std::vector<at::Tensor>& gradients,
                  const at::Tensor& before) {
  const at::NoGradGuard no_grad;
  const at::Tensor ratio = data.scale.value / before;
  for (const at::Tensor& gradient : gradients) gradient.mul_(on_device(ratio, gradient.device()));
}

/// The same for checked gradients: other optimizers may share them, so the divisor changes and they do not.
void follow_scale(const ScalerData& data, GradientRecord& record, const at::Tensor& before) {
  const at::Tensor ratio = before / data.scale.value;
  record.clip_divisor = record.clip_divisor.defined() ? record.clip_divisor * ratio : ratio;
}

/// If an update is due, ends the iteration of the optimizers that have stepped. Gradients that wait for
/// their step keep waiting.
void end_steps(ScalerData& data) {
  if (!update_is_due(data)) return;
  // A single optimizer, or several that step together, leave nothing that accumulates.
  const std::vector<at::Tensor> accumulating =
      data.is_scale_fixed() ? std::vector<at::Tensor>() : scaled_gradients(data);
  const bool one_stays_scaled =
      !accumulating.empty() || std::any_of(data.records.begin(), data.records.end(), [](const auto& record) {
        return record->stage == GradientStage::kChecked;
      });
  const at::Tensor before = one_stays_scaled ? data.scale.value.clone() : at::Tensor();
  const at::Tensor found_inf = found_inf_of_steps(data);
  if (found_inf.defined()) data.move(data.scale, found_inf);
  if (!accumulating.empty() && !is_known_to_be(data, before)) follow_scale(data, accumulating, before);
  for (const auto& record : data.records) {
    if (record->stage == GradientStage::kStepped) record->reset_iteration();
    if (record->stage == GradientStage::kChecked) follow_scale(data, *record, before);
  }
}

}  // namespace

IterationTracker::IterationTracker(GradScaler& scaler) : data_(*scaler.data_) {}

void IterationTracker::watch(const torch::optim::Optimizer& optimizer) {
  if (data_.options.enabled) data_.record_of(optimizer);
}

void IterationTracker::begin_backward() {
  if (!data_.options.enabled) return;
  bool one_waits = false;
  for (const auto& record : data_.records) {
    if (!record->awaits_step()) continue;
    const GradientStage stage = record->stage_now();
    // The loop has left out an optimizer that has new gradients, or whose parameters are gone.
    if (record->is_dead() || stage == GradientStage::kScaled) {
      record->reset_iteration();
    } else {
      record->begin_backward();
      one_waits = one_waits || stage != GradientStage::kMixed;  // a mixture is never stepped
    }
  }
  if (!one_waits) end_steps(data_);
  for (const auto& record : data_.records) record->may_accumulate = true;
}

void IterationTracker::restart_backward() {
  for (const auto& record : data_.records)
    if (record->awaits_step()) record->restart_backward();
}

void IterationTracker::end_backward() {
  for (const auto& record : data_.records) record->end_backward();
}

void IterationTracker::begin_step(const torch::optim::Optimizer& optimizer) {
  GradientRecord* const record = data_.options.enabled ? data_.find_record(optimizer) : nullptr;
  if (!record) return;
  check_not_mixed("IterationTracker::begin_step", *record);
  if (record->awaits_step() && record->stage_now() == GradientStage::kScaled) record->reset_iteration();
  if (record->stage == GradientStage::kStepped) end_steps(data_);
}

GradientStage IterationTracker::gradient_stage(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = data_.find_record(optimizer);
  if (!record) return GradientStage::kScaled;
  if (record->awaits_step()) return record->stage_now();
  return record->has_gradients(record->stepped) ? GradientStage::kStepped : GradientStage::kScaled;
}

at::Tensor IterationTracker::clip_divisor(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = data_.find_record(optimizer);
  return record ? record->clip_divisor : at::Tensor();
}

void IterationTracker::restore_gradient_stage(const torch::optim::Optimizer& optimizer, GradientStage stage,
                                              const at::Tensor& clip_divisor, const at::Tensor& scale) {
  if (!data_.options.enabled) return;
  TORCH_CHECK_VALUE(
      !scale.defined() || scale.numel() == 1,
      "IterationTracker::restore_gradient_stage: the scale of the gradients is one number; got ",
      scale.numel(), "; pass what scale_on_device() returned");
  TORCH_CHECK_VALUE(
      !clip_divisor.defined() || (stage == GradientStage::kChecked && clip_divisor.numel() == 1),
      "IterationTracker::restore_gradient_stage: a clip_divisor is one number, which only gradients "
      "that were clipped while scaled (kChecked) have; pass what clip_divisor() returned");
  if (!data_.scale.value.defined()) data_.create_scale(data_.device);
  GradientRecord& record = data_.record_of(optimizer);
  record.reset_iteration();
  record.may_accumulate = true;
  // Gradients of an earlier iteration: the scale has already moved with their step.
  record.stepped = stage == GradientStage::kStepped ? record.gradients() : GradientFingerprint();
  const auto as_scale = [&](const at::Tensor& number) {
    return on_device(number.reshape({}).to(at::kFloat), data_.scale.value.device()).clone();
  };
  if (stage == GradientStage::kScaled && scale.defined()) {
    std::vector<at::Tensor> gradients = record.defined_gradients();
    // Another optimizer that shares them may have been restored before.
    std::erase_if(gradients,
                  [&](const at::Tensor& g) { return !data_.restored.try_emplace(g, true).second; });
    follow_scale(data_, gradients, as_scale(scale));
  }
  if (stage == GradientStage::kScaled || stage == GradientStage::kStepped) return;
  data_.check(optimizer, record);
  record.stage = stage == GradientStage::kMixed ? GradientStage::kUnscaled : stage;
  if (stage == GradientStage::kMixed) record.mark_as_mixed();
  if (clip_divisor.defined()) record.clip_divisor = as_scale(clip_divisor);
  if (stage == GradientStage::kChecked && scale.defined()) follow_scale(data_, record, as_scale(scale));
}

void IterationTracker::abandon_iteration() { data_.forget_iteration(); }

void IterationTracker::end_iteration() {
  if (!data_.options.enabled) return;
  for (const auto& record : data_.records)
    if (record->awaits_step()) record->reset_iteration();
  end_steps(data_);
}

GradScalerState IterationTracker::next_state_dict() const {
  if (!data_.options.enabled) return {};
  ScalerData::Scale next = data_.scale;
  if (!update_is_due(data_)) return data_.state_dict_of(next);
  for (at::Tensor* tensor : {&next.value, &next.growth_tracker, &next.hysteresis_tracker})
    if (tensor->defined()) *tensor = tensor->clone();
  if (const at::Tensor found_inf = found_inf_of_steps(data_); found_inf.defined())
    data_.move(next, found_inf);
  return data_.state_dict_of(next);
}

}  // namespace mantissa
