#pragma once

#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/precision/registry.h"

// The table of the modes' options: how each one reads in an error, its limits, and which modes have a use for it.
// A new option is a member of PrecisionOptions, a row of this table, and the place that uses it.
namespace mantissa {

/// Throws c10::ValueError for a value that no mode can use: it is the user's mistake, whatever the mode.
void check_values(const PrecisionOptions& options);

/// Throws c10::ValueError for an option that the mode has no use for on this device.
void check_uses(const Mode& mode, at::Device device, const PrecisionOptions& options);

/// The dtype of the products of a mode with these options. Quantized modes choose one by the device.
/// Errors: c10::NotImplementedError if libtorch has no dtype for the format.
at::ScalarType compute_dtype(const Mode& mode, at::Device device, const PrecisionOptions& options);

/// Returns a scaler for `loss_scale`: "dynamic", a number or "none", for which it returns null. The other numbers are
/// those of `given`.
/// Errors: c10::ValueError for a number in `given` that this loss scale does not use.
std::unique_ptr<GradScaler> make_scaler(const Mode& mode, at::Device device, const PrecisionOptions& given,
                                        const std::string& loss_scale, bool fp16_gradients);

}  // namespace mantissa
