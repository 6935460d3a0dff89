// Where gradients stand, for a loop that does not say where an iteration ends.
#include <algorithm>
#include <unordered_set>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/amp/gradients_internal.h"

namespace mantissa {

void GradScaler::watch(const torch::optim::Optimizer& optimizer) {
  if (is_enabled()) record_of(optimizer);
}

void GradScaler::begin_backward() {
  if (!is_enabled()) return;
  bool one_waits = false;
  for (const auto& record : records_) {
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
  if (!one_waits) end_steps();
  for (const auto& record : records_) record->may_accumulate = true;
}

void GradScaler::restart_backward() {
  for (const auto& record : records_)
    if (record->awaits_step()) record->restart_backward();
}

void GradScaler::end_backward() {
  for (const auto& record : records_) record->end_backward();
}

void GradScaler::begin_step(const torch::optim::Optimizer& optimizer) {
  GradientRecord* const record = is_enabled() ? find_record(optimizer) : nullptr;
  if (!record) return;
  check_not_mixed("begin_step", *record);
  if (record->awaits_step() && record->stage_now() == GradientStage::kScaled) record->reset_iteration();
  if (record->stage == GradientStage::kStepped) end_steps();
}

void GradScaler::check_not_mixed(const char* function, const GradientRecord& record) {
  TORCH_CHECK(
      !record.awaits_step() || record.stage_now() != GradientStage::kMixed, "GradScaler::", function,
      ": a backward pass has added scaled gradients to gradients that were already unscaled or "
      "clipped, so no step can use the sum; run all backward passes of a step before its gradients "
      "are unscaled or clipped, or drop them with optimizer.zero_grad() before the next backward pass");
}

GradientStage GradScaler::gradient_stage(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = find_record(optimizer);
  if (!record) return GradientStage::kScaled;
  if (record->awaits_step()) return record->stage_now();
  return record->has_gradients(record->stepped) ? GradientStage::kStepped : GradientStage::kScaled;
}

at::Tensor GradScaler::clip_divisor(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = find_record(optimizer);
  return record ? record->clip_divisor : at::Tensor();
}

void GradScaler::restore_gradient_stage(const torch::optim::Optimizer& optimizer, GradientStage stage,
                                        const at::Tensor& clip_divisor, const at::Tensor& scale) {
  if (!is_enabled()) return;
  TORCH_CHECK_VALUE(!scale.defined() || scale.numel() == 1,
                    "GradScaler::restore_gradient_stage: the scale of the gradients is one number; got ",
                    scale.numel(), "; pass what scale_on_device() returned");
  TORCH_CHECK_VALUE(
      !clip_divisor.defined() || (stage == GradientStage::kChecked && clip_divisor.numel() == 1),
      "GradScaler::restore_gradient_stage: a clip_divisor is one number, which only gradients "
      "that were clipped while scaled (kChecked) have; pass what clip_divisor() returned");
  if (!scale_.value.defined()) create_state(device_);
  GradientRecord& record = record_of(optimizer);
  record.reset_iteration();
  record.may_accumulate = true;
  // Gradients of an earlier iteration: the scale has already moved with their step.
  record.stepped = stage == GradientStage::kStepped ? record.gradients() : GradientFingerprint();
  const auto as_scale = [&](const at::Tensor& number) {
    return on_device(number.reshape({}).to(at::kFloat), scale_.value.device()).clone();
  };
  if (stage == GradientStage::kScaled && scale.defined()) {
    std::vector<at::Tensor> gradients = record.defined_gradients();
    // Another optimizer that shares them may have been restored before.
    std::erase_if(gradients, [&](const at::Tensor& g) { return !restored_.try_emplace(g, true).second; });
    follow_scale(gradients, as_scale(scale));
  }
  if (stage == GradientStage::kScaled || stage == GradientStage::kStepped) return;
  check(optimizer, record);
  record.stage = stage == GradientStage::kMixed ? GradientStage::kUnscaled : stage;
  if (stage == GradientStage::kMixed) record.mark_as_mixed();
  if (clip_divisor.defined()) record.clip_divisor = as_scale(clip_divisor);
  if (stage == GradientStage::kChecked && scale.defined()) follow_scale(record, as_scale(scale));
}

bool GradScaler::update_is_due() const {
  return std::any_of(records_.begin(), records_.end(),
                     [](const auto& record) { return record->stage == GradientStage::kStepped; });
}

void GradScaler::abandon_iteration() {
  for (const auto& record : records_) record->reset_iteration();
}

void GradScaler::end_iteration() {
  if (!is_enabled()) return;
  for (const auto& record : records_)
    if (record->awaits_step()) record->reset_iteration();
  end_steps();
}

at::Tensor GradScaler::found_inf_of_steps() const {
  PerDevice flags;
  for (const auto& record : records_)
    if (record->stage == GradientStage::kStepped)
      flags.insert(flags.end(), record->found_inf.begin(), record->found_inf.end());
  return sum_on_scale_device(flags);
}

// Two optimizers may share a parameter, and one of them may be gone.
std::vector<at::Tensor> GradScaler::scaled_gradients() const {
  const auto accumulates = [](const auto& record) {
    return record->may_accumulate && !record->awaits_step();
  };
  if (std::none_of(records_.begin(), records_.end(), accumulates)) return {};
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& record : records_) {
    if (!record->awaits_step() && !record->has_gradients(record->stepped)) continue;
    for (const at::Tensor& gradient : record->defined_gradients())
      seen.insert(gradient.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> scaled;
  for (const auto& record : records_) {
    if (!accumulates(record)) continue;
    for (const at::Tensor& gradient : record->defined_gradients())
      if (seen.insert(gradient.unsafeGetTensorImpl()).second) scaled.push_back(gradient);
  }
  return scaled;
}

void GradScaler::end_steps() {
  if (!update_is_due()) return;
  // A single optimizer, or several that step together, leave nothing that accumulates.
  const std::vector<at::Tensor> accumulating =
      is_scale_fixed() ? std::vector<at::Tensor>() : scaled_gradients();
  const bool one_stays_scaled =
      !accumulating.empty() || std::any_of(records_.begin(), records_.end(), [](const auto& record) {
        return record->stage == GradientStage::kChecked;
      });
  const at::Tensor before = one_stays_scaled ? scale_.value.clone() : at::Tensor();
  const at::Tensor found_inf = found_inf_of_steps();
  if (found_inf.defined()) move(scale_, found_inf);
  if (!accumulating.empty() && !is_known_to_be(before)) follow_scale(accumulating, before);
  for (const auto& record : records_) {
    if (record->stage == GradientStage::kStepped) record->reset_iteration();
    if (record->stage == GradientStage::kChecked) follow_scale(*record, before);
  }
}

// Most steps leave the scale as it is.
bool GradScaler::is_known_to_be(const at::Tensor& scale) const {
  const auto is_known = [](const auto& record) {
    return record->stage != GradientStage::kStepped || record->is_step_known;
  };
  return scale_.value.is_cpu() && std::all_of(records_.begin(), records_.end(), is_known) &&
         scale_.value.item<float>() == scale.item<float>();
}

void GradScaler::follow_scale(const std::vector<at::Tensor>& gradients, const at::Tensor& before) const {
  const at::NoGradGuard no_grad;
  const at::Tensor ratio = scale_.value / before;
  for (const at::Tensor& gradient : gradients) gradient.mul_(on_device(ratio, gradient.device()));
}

// Other optimizers may share checked gradients, so the divisor changes and they do not.
void GradScaler::follow_scale(GradientRecord& record, const at::Tensor& before) const {
  const at::Tensor ratio = before / scale_.value;
  record.clip_divisor = record.clip_divisor.defined() ? record.clip_divisor * ratio : ratio;
}

}  // namespace mantissa
