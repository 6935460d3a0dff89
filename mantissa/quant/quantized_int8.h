#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A matrix whose rows are in 8-bit codes: a weight [out, in] (bitsandbytes's CB and SCB), or the rows of an
/// input (CA and SCA).
///
/// Memory: 1 byte per value and 4 per row. A copy shares the tensors.
struct QuantizedInt8 {
  at::Tensor codes;   ///< [rows, cols] int8, from -127 to 127
  at::Tensor scales;  ///< [rows] float32: the largest magnitude of a row; a value is code * scale / 127
  at::Tensor
      outlier_cols;  ///< [outliers] int64, ascending: the columns whose codes are 0; undefined for none

  int64_t nbytes() const;
  at::Device device() const { return codes.device(); }
  /// Returns the same matrix on another device.
  QuantizedInt8 to(at::Device device) const;
};

/// Quantizes each row of a matrix: bitsandbytes's int8_vectorwise_quant().
///
/// Shapes:   [rows, cols], also empty.
/// Numerics: float32, float16 or bfloat16. A code is value * (127 / scale), rounded to nearest, ties to even.
///           If `threshold` is positive, a column with a magnitude of at least `threshold` is an outlier
///           column: its codes are 0, and its values do not count for the scales. If a row has an inf or a
///           NaN, its scale is inf or NaN, too. On the CPU the bits depend neither on its instructions nor on the number of threads.
/// Sync:     with a threshold, waits for the device.
/// Errors:   c10::ValueError for another shape or a negative threshold; c10::TypeError for another dtype.
/// Source:   Dettmers et al. 2022, arXiv:2208.07339, section 3.
QuantizedInt8 int8_vectorwise_quant(const at::Tensor& matrix, double threshold = 0);

/// Quantizes a weight as bitsandbytes does: its values are first rounded to float16.
///
/// Shapes: [out, in].
/// Sync:   waits for the device, to check that every value is finite.
/// Errors: those of int8_vectorwise_quant(); c10::ValueError, which calls the weight `name`, if it has inf, NaN
///         or a value that float16 cannot hold.
QuantizedInt8 quantize_int8(const at::Tensor& weight, std::string_view name = "the weight");

/// Restores the matrix: code * scale / 127 in float32, each rounded, then rounded to the dtype.
/// Errors: c10::ValueError unless there is a float32 scale for each row.
at::Tensor dequantize_int8(const QuantizedInt8& quantized, at::ScalarType dtype = at::kFloat);

/// Returns the int32 sums a b^T of two matrices of codes: bitsandbytes's int8_linear_matmul().
///
/// Shapes: a [m, k] and b [n, k], int8, also empty; returns [m, n].
/// Errors: c10::ValueError for shapes that do not fit, tensors on two devices, or a k above 131,071, where sums
///         of codes of -128 may overflow; c10::TypeError for another dtype.
at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b);

/// Returns a b^T of two quantized matrices: the sums times the scales of rows and columns, divided by 127^2,
/// plus `bias` [n], if it is defined. The sums are converted to float32; the result is rounded once to `dtype`,
/// which is float32, float16 or bfloat16.
/// Errors: those of int8_matmul() and dequantize_int8(); c10::ValueError for a bias of another shape.
at::Tensor int8_scaled_matmul(const QuantizedInt8& a, const QuantizedInt8& b, const at::Tensor& bias,
                              at::ScalarType dtype);

}  // namespace mantissa
