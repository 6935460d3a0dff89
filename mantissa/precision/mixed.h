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
/// lowers them. Sync:    optimizer_step() of "16-mixed" reads one overflow flag from the device. Errors:
/// c10::ValueError for another dtype, or a scaler given with bf16; c10::TypeError for LBFGS with a scaler.
/// Source:  spec 1.2, 2.3, ERR-6, ERR-7, ERR-9.
class MixedPrecision final : public Precision {
 public:
  /// `dtype`: kHalf or kBFloat16. `scaler`: for kHalf; by default a GradScaler with torch's defaults on
  /// `device`.
  MixedPrecision(at::ScalarType dtype, at::Device device, std::unique_ptr<GradScaler> scaler = nullptr);

  Scope forward_context() const override;
  at::Tensor convert_output(const at::Tensor& y) const override;
  at::Tensor pre_backward(const at::Tensor& loss) override;
  void unscale_gradients(torch::optim::Optimizer& optimizer) override;
  StepResult optimizer_step(torch::optim::Optimizer& optimizer,
                            const std::function<at::Tensor()>& closure = nullptr) override;
  PrecisionState state_dict() const override;
  void load_state_dict(const PrecisionState& state) override;

  /// Null for bf16.
  GradScaler* scaler() { return scaler_.get(); }

 private:
  at::ScalarType dtype_;
  at::Device device_;
  std::unique_ptr<GradScaler> scaler_;
};

}  // namespace mantissa
