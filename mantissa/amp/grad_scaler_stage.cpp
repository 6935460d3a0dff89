// Where gradients stand, for a loop that does not say where an iteration ends.
#include <algorithm>

#include <ATen/TensorOperators.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/amp/gradients_internal.h"

namespace mantissa {

void GradScaler::begin_backward() {
  if (!is_enabled()) return;
  bool one_waits = false;
  for (const auto& record : records_) {
    if (!record->awaits_step()) continue;
    const GradientFingerprint now = record->gradients();
    if (record->before_backward.empty()) record->before_backward = now;
    // The loop has left out an optimizer if its gradients were written again, or are gone with its
    // parameters.
    if (record->is_dead() || !(record->before_backward == now)) record->reset_iteration();
    one_waits = one_waits || record->awaits_step();
  }
  if (update_is_due() && !one_waits) update();
}

void GradScaler::begin_step(const torch::optim::Optimizer& optimizer) {
  GradientRecord* const record = is_enabled() ? find_record(optimizer) : nullptr;
  if (!record) return;
  if (record->awaits_step() && gradient_stage(optimizer) == GradientStage::kScaled) record->reset_iteration();
  if (record->stage == GradientStage::kStepped) end_iteration();
}

GradientStage GradScaler::gradient_stage(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = find_record(optimizer);
  if (!record || (record->stepped.empty() && !record->awaits_step())) return GradientStage::kScaled;
  const GradientFingerprint now = record->gradients();
  if (record->stepped == now) return GradientStage::kStepped;
  // Other optimizers' backward passes do not change gradients that wait for their step.
  const bool are_those = record->before_backward.empty() || record->before_backward == now;
  return record->awaits_step() && are_those ? record->stage : GradientStage::kScaled;
}

at::Tensor GradScaler::clip_divisor(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = find_record(optimizer);
  return record ? record->clip_divisor : at::Tensor();
}

void GradScaler::restore_gradient_stage(const torch::optim::Optimizer& optimizer, GradientStage stage,
                                        const at::Tensor& clip_divisor) {
  if (!is_enabled()) return;
  TORCH_CHECK_VALUE(
      !clip_divisor.defined() || (stage == GradientStage::kChecked && clip_divisor.numel() == 1),
      "GradScaler::restore_gradient_stage: a clip_divisor is one number, which only gradients "
      "that were clipped while scaled (kChecked) have; pass what clip_divisor() returned");
  if (!scale_.value.defined()) create_state(device_);
  GradientRecord& record = record_of(optimizer);
  record.reset_iteration();
  // Gradients of an earlier iteration: the scale has already moved with their step.
  record.stepped = stage == GradientStage::kStepped ? record.gradients() : GradientFingerprint();
  if (stage != GradientStage::kChecked && stage != GradientStage::kUnscaled) return;
  check(optimizer, record);
  record.stage = stage;
  if (clip_divisor.defined())
    record.clip_divisor = on_device(clip_divisor.reshape({}).to(at::kFloat), scale_.value.device()).clone();
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
  if (update_is_due()) update();
}

}  // namespace mantissa
