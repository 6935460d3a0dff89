#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A scaler's state under torch's own five keys: scale, growth_factor and backoff_factor (floating point),
/// growth_interval and _growth_tracker (integers). With hysteresis it also has _hysteresis_tracker (integer),
/// which torch ignores. It is empty for a disabled scaler.
using GradScalerState = std::map<std::string, at::Scalar>;

/// Converts a state to tensors, for a file format that holds only tensors, such as safetensors.
///
/// Shapes: each 0-dim on the CPU; float64 for floating-point values, int64 for integers.
std::map<std::string, at::Tensor> scaler_state_to_tensors(const GradScalerState& state);

/// Converts tensors of any dtype and device, as Python may have saved them, back to a state.
///
/// Sync:   reads each value from its device.
/// Errors: c10::ValueError naming the key of a tensor that is not one real number.
GradScalerState scaler_state_from_tensors(const std::map<std::string, at::Tensor>& tensors);

}  // namespace mantissa
