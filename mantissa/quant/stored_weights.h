#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/ScalarType.h>
#include <ATen/core/Tensor.h>

namespace mantissa {

/// Returns the names of the weights that a file has in 4 or 8 bits. `names` are those of all its tensors.
std::vector<std::string> quantized_weights_of(const std::vector<std::string>& names);

/// Returns the tensors of a file with each 4- and 8-bit weight replaced by its values in `dtype`, under the
/// weight's name: what a model in float can load. Other tensors are returned as they are.
///
/// Memory: the values of all such weights.
/// Errors: those of unpack_state_4bit() and unpack_state_int8().
std::map<std::string, at::Tensor> dequantize_stored(std::map<std::string, at::Tensor> tensors,
                                                    at::ScalarType dtype = at::kFloat);

/// Returns the shapes of the weights in a file. That of a 4- or 8-bit weight is the shape of its values; its other
/// tensors are left out.
/// Errors: those of dequantize_stored().
std::map<std::string, std::vector<int64_t>> stored_shapes(const std::map<std::string, at::Tensor>& tensors);

}  // namespace mantissa
