#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/ScalarType.h>
#include <ATen/core/Tensor.h>

#include "mantissa/core/formats.h"

namespace mantissa {

/// A weight that a file has in 4 or 8 bits.
struct StoredWeight {
  bool is_int8 = false, is_fp8 = false;
  std::vector<std::string> tensors;  ///< the names of everything that it consists of, its own first
  std::string json;                  ///< the name of its quant_state; empty for 8 bits, and if it is missing
};

/// Returns the weights that a file has in 4 or 8 bits, by their names. `dtypes` are those of all its tensors. A weight
/// in 4 bits is listed even if some of its tensors are missing.
/// Errors: c10::ValueError that names the weight for codes in int8 without their scales.
std::map<std::string, StoredWeight> find_stored_weights(const std::map<std::string, at::ScalarType>& dtypes);

/// Returns the format of the codes; NF4 for a weight in 4 bits whose quant_state is missing.
Format format_of(const StoredWeight& weight);

/// Returns the names of these weights, without ones in 4 bits whose quant_state is missing. Names alone do not decide:
/// a float `fc.weight` beside a parameter `fc.SCB` is a float weight.
/// Errors: those of find_stored_weights().
std::vector<std::string> quantized_weights_of(const std::map<std::string, at::ScalarType>& dtypes);
/// The same for tensors that have been read.
std::vector<std::string> quantized_weights_of(const std::map<std::string, at::Tensor>& tensors);

/// Returns the tensors of a file with each 4- and 8-bit weight replaced by its values in `dtype`, under the
/// weight's name: what a model in float can load. Other tensors are returned as they are.
///
/// Memory: the values of all such weights.
/// Errors: those of find_stored_weights(), unpack_state_4bit(), unpack_state_int8() and dequantize_stored_fp8().
std::map<std::string, at::Tensor> dequantize_stored(std::map<std::string, at::Tensor> tensors,
                                                    at::ScalarType dtype = at::kFloat);

/// Whether the tensors have the packed weight `own` in the form that the model would be saved in: each of its parts in its
/// dtype. In FP8, whose recipes differ in the scales, these are exactly the parts, in their shapes.
bool is_stored_as(const at::Tensor& own, const std::string& name,
                  const std::map<std::string, at::Tensor>& tensors);

/// As dequantize_stored(), but leaves those weights as they are stored that the model itself has packed. `own` has the
/// model's weights by name. Where a weight has an adapter, the weight under the adapter counts. A weight that both have in FP8,
/// by recipes with other scales, is dequantized: the model quantizes it again.
std::map<std::string, at::Tensor> dequantize_plain(std::map<std::string, at::Tensor> tensors,
                                                   const std::map<std::string, at::Tensor>& own,
                                                   at::ScalarType dtype = at::kFloat);

/// Returns the shapes of the weights in a file. That of a 4- or 8-bit weight is the shape of its values; its other
/// tensors are left out.
/// Errors: those of dequantize_stored().
std::map<std::string, std::vector<int64_t>> stored_shapes(const std::map<std::string, at::Tensor>& tensors);

}  // namespace mantissa
