#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

/// "16-mixed" and "bf16-mixed": float32 weights, products in 16 bits through autocast; fp16 with a loss
/// scaler.
///
/// Memory:  weights, gradients and optimizer state as in float32; activations in 16 bits where autocast
/// lowers them.
/// Sync:    optimizer_step() of "16-mixed" reads one overflow flag from the device.
/// Scale:   it moves when the next iteration begins (its first backward()), so that several optimizers with one
///          backward pass are all unscaled by the scale that scaled them, and it moves once. An optimizer whose
///          gradients were unscaled but never stepped starts afresh with its next gradients; what the old ones
///          held does not move the scale.
/// Errors:
/// c10::ValueError for another dtype, or a scaler given with bf16; c10::TypeError for LBFGS with a scaler.
/// Source:  spec 1.2, 2.3, ERR-6, ERR-7, ERR-9.
class MixedPrecision final : public Precision {
 public:
  /// `dtype`: kHalf or kBFloat16. `scaler`: for kHalf; by default a GradScaler with torch's defaults on
  /// `device`.
  MixedPrecision(at::ScalarType dtype, at::Device device, std::unique_ptr<GradScaler> scaler = nullptr);

  std::optional<at::DeviceType> device_type() const override { return device_.type(); }
  Scope forward_context() const override;
  at::Tensor convert_output(const at::Tensor& y) const override;
  at::Tensor pre_backward(const at::Tensor& loss) override;
  void unscale_gradients(torch::optim::Optimizer& optimizer) override;
  StepResult optimizer_step(torch::optim::Optimizer& optimizer,
                            const std::function<at::Tensor()>& closure = nullptr) override;
  PrecisionState state_dict() const override;
  void load_state_dict(const PrecisionState& state) override;

  /// Null for bf16. Its scale is the one that the next backward() will use.
  GradScaler* scaler() {
    end_iteration();
    return scaler_.get();
  }

 private:
  /// An optimizer whose gradients are unscaled and wait for their step.
  struct Unscaled {
    torch::optim::Optimizer* optimizer;
    bool backward_since = false;
    at::Tensor gradient;  ///< its first one, and that one's version, when the backward pass after it began
    uint32_t version = 0;
  };

  bool scales() const { return scaler_ && scaler_->is_enabled(); }
  bool is_unscaled(torch::optim::Optimizer& optimizer);
  void forget(torch::optim::Optimizer& optimizer);
  void end_iteration() const;

  at::ScalarType dtype_;
  at::Device device_;
  std::unique_ptr<GradScaler> scaler_;
  std::vector<Unscaled> unscaled_;
  mutable bool update_is_due_ =
      false;  ///< a step was taken or skipped, and the scale has not learned from it yet
};

}  // namespace mantissa
