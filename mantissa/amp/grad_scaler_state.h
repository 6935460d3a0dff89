#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A scaler's state under torch's own five keys: scale, growth_factor, backoff_factor (floating point),
/// growth_interval, _growth_tracker (integers); with hysteresis also _hysteresis_tracker (integer), which
/// torch ignores. Empty for a disabled scaler.
using GradScalerState = std::map<std::string, at::Scalar>;

/// A state for a file that holds tensors only, such as safetensors.
///
/// Shapes: each 0-dim on the CPU; float64 for floating-point values, int64 for integers.
std::map<std::string, at::Tensor> scaler_state_to_tensors(const GradScalerState& state);

/// The way back, from tensors of any dtype and device, as Python may have saved them.
///
/// Sync:   reads each value from its device.
/// Errors: c10::ValueError naming the key of a tensor that is not one real number.
GradScalerState scaler_state_from_tensors(const std::map<std::string, at::Tensor>& tensors);

}  // namespace mantissa
