#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/quant/quantized_int8.h"

namespace mantissa {

/// Returns the tensors under which bitsandbytes saves an 8-bit weight, so that it reads them. `name` is the
/// parameter's full name, such as "layer.weight".
///
/// Shapes: NAME int8 [out, in]; beside it, with SCB and weight_format in place of the name's last part, the
///         scales, float32 [out], and a 0-dim uint8 that is 0, which means row by row. A parameter whose last
///         part is not "weight" has them as NAME.SCB and NAME.weight_format, because bitsandbytes has no such
///         parameters.
/// Memory: shares the tensors of `quantized`.
std::map<std::string, at::Tensor> pack_state(const QuantizedInt8& quantized, const std::string& name);

/// Whether `tensors` has the scales of an 8-bit weight of this name.
bool has_state_int8(const std::map<std::string, at::Tensor>& tensors, const std::string& name);

/// Returns the 8-bit weight that pack_state() or bitsandbytes has saved under `name`. Codes of more dimensions,
/// as those of a convolution, become a matrix with the same rows. Other names in `tensors` are not looked at. A file without weight_format is one of the oldest, and is read as format 0.
///
/// Memory: shares the tensors.
/// Errors: c10::ValueError that names the tensor at fault and the cure: if one is missing or has another dtype
///         or shape, a scale is not finite or is negative, or the format is not 0.
QuantizedInt8 unpack_state_int8(const std::map<std::string, at::Tensor>& tensors, const std::string& name);

}  // namespace mantissa
