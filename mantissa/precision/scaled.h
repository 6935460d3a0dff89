#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/iteration_tracker.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

/// The part that all modes with a loss scaler share. Without a scaler its hooks are those of Precision.
///
/// Scale:   the scale moves when the next iteration begins, that is, at its first backward(). Optimizers that
///          share one backward pass are therefore unscaled by the scale that scaled them, and the scale moves
///          once. If an optimizer's gradients were unscaled but never used, its next gradients count as new,
///          and the unused ones do not move the scale.
///          If the scale changes while an optimizer still accumulates, its gradients are rescaled.
/// Sync:    optimizer_step() reads one overflow flag from the device. It reads none with an optimizer that
///          divides by the scale inside its step (StepSupportsAmpScaling, such as the fused optimizers):
///          there StepResult reads the flag when it is asked.
/// Numerics: fp16 gradients of an optimizer that does not divide by the scale inside its step are divided in
///           fp16, which loses what the scale has saved. This warns once.
/// Threads: one at a time.
/// Errors:  c10::TypeError for LBFGS with a scaler; c10::Error for a second step with the same
///          gradients, and if backward() has added to gradients that were already unscaled or clipped.
/// Source:  docs/grad-scaler.md.
class ScaledPrecision : public Precision {
 public:
  at::Tensor loss_scale() const override { return scales() ? scaler_->scale_on_device() : at::Tensor(); }
  bool is_loss_scale_fixed() const override { return scales() && scaler_->is_scale_fixed(); }
  bool are_gradients_scaled(const torch::optim::Optimizer& optimizer) const override;
  void setup_optimizer(torch::optim::Optimizer& optimizer) override;
  void backward(const at::Tensor& loss, const LossHook& before = nullptr) override;
  void unscale_gradients(torch::optim::Optimizer& optimizer) override;
  at::Tensor clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                            GradientClipAlgorithm algorithm = GradientClipAlgorithm::kNorm) override;
  StateDict state_dict() const override;
  std::vector<std::string> load_state_dict(const StateReader& state) override;
  StateDict gradient_state(const torch::optim::Optimizer& optimizer) const override;
  bool can_take_gradients(const StateReader& state) const override;
  void load_gradient_state(torch::optim::Optimizer& optimizer, const StateReader& state) override;
  void teardown() override;

  /// Returns the scaler, or null if the mode does not scale. Its scale is that of the last backward pass; it
  /// moves at the next one.
  GradScaler* scaler() { return scaler_.get(); }

 protected:
  /// `scaler`: null for a mode that does not scale.
  ScaledPrecision(std::string name, PrecisionTraits traits, std::unique_ptr<GradScaler> scaler);

  StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure) override;
  void check_line_search() const override;
  /// Makes the weights that `optimizer` steps known to the scaler (see IterationTracker::watch()).
  void watch(const torch::optim::Optimizer& optimizer);

 private:
  bool scales() const { return scaler_ && scaler_->is_enabled(); }
  /// Whether the gradients of `optimizer` stay scaled until its step, which divides them (see Numerics).
  bool keeps_scale(const torch::optim::Optimizer& optimizer) const;
  /// Errors: c10::Error for gradients that no step can use (GradientStage::kMixed).
  GradientStage usable_stage(const torch::optim::Optimizer& optimizer);
  StepResult step_scaled(torch::optim::Optimizer& optimizer);

  std::unique_ptr<GradScaler> scaler_;
  std::optional<IterationTracker> iterations_;  ///< of the scaler
  GradScalerState first_state_;                 ///< the scaler's state when this object was made
  bool has_warned_about_fp16_ = false;
};

}  // namespace mantissa
