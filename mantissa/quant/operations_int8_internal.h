#pragma once

// The same results as kernels/int8.h by libtorch's operations, for devices without a kernel of ours.

#include <optional>

#include <ATen/core/Tensor.h>

#include "mantissa/quant/quantized_int8.h"

namespace mantissa::quant {

/// See int8_vectorwise_quant(); the codes of outlier columns are 0 already.
QuantizedInt8 quantize_int8_by_operations(const at::Tensor& matrix, double threshold);

/// Returns the rows `rows` (int64 [n]) of a weight, all of which exist, or all rows: see dequantize_int8().
at::Tensor dequantize_rows_int8_by_operations(const QuantizedInt8& quantized,
                                              const std::optional<at::Tensor>& rows, at::ScalarType dtype);

/// See int8_matmul(). Products of floats are exact while sums stay below 2^24, so that the sums of 1,024 steps
/// of k are converted to int32 and then added.
at::Tensor int8_matmul_by_operations(const at::Tensor& a, const at::Tensor& b);

/// See int8_scaled_matmul().
at::Tensor scaled_by_operations(const at::Tensor& sums, const at::Tensor& a_scales,
                                const at::Tensor& b_scales, const at::Tensor& bias, at::ScalarType dtype);

}  // namespace mantissa::quant
