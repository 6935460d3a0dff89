#pragma once

#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "mantissa/precision/scaled.h"

namespace mantissa {

/// "16-mixed" and "bf16-mixed": float32 weights and, through autocast, 16-bit products; fp16 has a loss
/// scaler.
///
/// Memory:  weights, gradients and optimizer state as in float32; activations in 16 bits where autocast casts
///          them.
/// Errors:  c10::ValueError for another dtype, or for a scaler with bf16.
/// Source:  docs/modes.md.
class MixedPrecision final : public ScaledPrecision {
 public:
  /// `dtype`: kHalf or kBFloat16. `scaler`: for kHalf; by default a GradScaler with torch's defaults on
  /// `device`. `name`: the registry's name, if it is not the dtype's own.
  MixedPrecision(at::ScalarType dtype, at::Device device, std::unique_ptr<GradScaler> scaler = nullptr,
                 const std::string& name = "");

  std::optional<at::DeviceType> device_type() const override { return device_.type(); }
  Scope forward_context() const override;
  at::Tensor convert_output(const at::Tensor& y) const override;

 private:
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace mantissa
