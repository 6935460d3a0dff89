#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/quant/quantized_int8.h"
#include "mantissa/weights/packed_data.h"

namespace mantissa {

/// Returns 8-bit codes as the data of a packed weight: make_packed_weight() (weights/packed_weight.h) makes a
/// tensor of it, with which a layer computes in 8-bit integers (LLM.int8).
///
/// Shapes:   the weight has the sizes `shape` (empty: those of the codes), and the codes are that weight as a
///           matrix [shape[0], the rest]. Products need [out, in]. An embedding looks up its rows in the codes,
///           and a convolution dequantizes the whole weight.
/// Numerics: a product is that of linear_int8() with `threshold`, and its gradient goes through the restored
///           weight. An input in float64 is rounded to float32.
/// State:    that of bitsandbytes, with SCB and weight_format; see docs/quantization-files.md. The codes have the
///           sizes of the weight.
/// Values:   plain values (PackedData::with_values()) are quantized by quantize_int8().
/// Memory:   shares the tensors of `quantized`. A gradient restores the weight in float32 for its call.
/// Errors:   c10::ValueError for a shape that the codes do not fill, for rows without a scale, for outlier columns, or for a negative
///           threshold.
/// Example:  packed_int8_test.cpp, PackedInt8.ALinearComputesWithIt.
PackedDataPtr make_packed_int8(QuantizedInt8 quantized, double threshold = 0,
                               std::vector<int64_t> shape = {});

/// Quantizes a weight of two or more dimensions by quantize_int8(), with one scale for each index of the first.
/// Errors: those of quantize_int8() and make_packed_int8().
PackedDataPtr pack_int8(const at::Tensor& weight, double threshold, std::string_view name);

/// Returns the codes of data that make_packed_int8() has made; null for another format.
/// Memory: the pointer is valid as long as `data`.
const QuantizedInt8* find_int8(const PackedData& data);

}  // namespace mantissa
