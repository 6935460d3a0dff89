#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "mantissa/quant/quantized_4bit.h"
#include "mantissa/weights/packed_data.h"

namespace mantissa {

/// Returns 4-bit codes as the data of a packed weight: make_packed_weight() (weights/packed_weight.h) makes a
/// tensor of it, with which a layer computes as it is.
///
/// Shapes:   the weight has at least one dimension. Products need [out, in]. An embedding looks up its rows in
///           the codes, and a convolution dequantizes the whole weight.
/// Numerics: a product is that of linear_4bit(). Its input is cast to `compute_dtype` (bitsandbytes's name), and
///           its result back to the input's dtype. Unset: the product is computed in the input's dtype.
/// State:    that of bitsandbytes, with its names and its JSON; see docs/quantization-files.md. A state of other
///           codes, blocks or shape is refused, and so is one with another kind of statistics.
/// Values:   plain values (PackedData::with_values()) are rounded to the dtype that the codes were made from
///           and quantized with the same options. Such a weight equals the one that pack_4bit() makes.
/// Memory:   shares the tensors of `quantized`.
/// Errors:   c10::ValueError for a weight without a dimension, or without all codes and scales; c10::TypeError for a `compute_dtype` other than
///           float32, float16, bfloat16 or float64.
/// Example:  packed_4bit_test.cpp, Packed4Bit.ALinearComputesWithIt.
PackedDataPtr make_packed_4bit(Quantized4Bit quantized,
                               std::optional<at::ScalarType> compute_dtype = std::nullopt);

/// Quantizes a weight as Lightning's BitsandbytesPrecision does: its values are first rounded to float16.
///
/// Errors: those of quantize_4bit() and make_packed_4bit(); c10::ValueError, which calls the weight `name`, for
///         a value that float16 cannot hold.
PackedDataPtr pack_4bit(const at::Tensor& weight, const Quantize4BitOptions& options, std::string_view name,
                        std::optional<at::ScalarType> compute_dtype = std::nullopt);

/// Returns the codes of data that make_packed_4bit() has made; null for another format.
/// Memory: the pointer is valid as long as `data`.
const Quantized4Bit* find_4bit(const PackedData& data);

}  // namespace mantissa
