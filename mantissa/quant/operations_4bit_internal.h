#pragma once

// The same results as kernels/quantized4.h by libtorch's operations, for devices without a kernel of ours.

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

#include "mantissa/core/formats.h"
#include "mantissa/quant/quantized_4bit.h"

namespace mantissa::quant {

/// Returns the table of a format's 16 values, [16] float32.
at::Tensor table_4bit(Format format, at::Device device);

/// Returns the codes, [(n + 1) / 2] uint8, and absmax, [blocks] float32.
std::pair<at::Tensor, at::Tensor> quantize_by_operations(const at::Tensor& tensor, int64_t blocksize,
                                                         Format format);

/// Returns the `count` values of `codes`, which are bytes, in `dtype`.
at::Tensor dequantize_by_operations(const at::Tensor& codes, const at::Tensor& absmax, int64_t count,
                                    int64_t blocksize, Format format, at::ScalarType dtype);

/// Returns the rows `rows` (int64 [n]) of a weight, all of which exist: [n, values of a row] float32.
at::Tensor dequantize_rows_by_operations(const Quantized4Bit& quantized, const at::Tensor& rows);

/// Returns the codes of double quantization and their scales: see kNestedBlocksize.
std::pair<at::Tensor, at::Tensor> quantize_nested_by_operations(const at::Tensor& residual);

}  // namespace mantissa::quant
