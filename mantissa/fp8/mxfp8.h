#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// A matrix in 8 bits whose blocks of 32 values are scaled by powers of two: MXFP8.
struct QuantizedMXFP8 {
  at::Tensor codes;  ///< Float8_e4m3fn or Float8_e5m2, in the tensor's shape
  at::Tensor
      exponents;  ///< Float8_e8m0fnu, one for each block, row by row: a value is code * 2^(exponent - 127)
  int64_t block_rows;       ///< 1 or 32
  int64_t block_cols = 32;  ///< or 1
};

/// Returns the exponent of the smallest power of two, 2^(exponent - 127), that is at least `value`: 0 for 0 and for
/// what is at most 2^-127, 254 for inf and for what is larger than 2^127, 255 for NaN.
/// Source: Transformer Engine's float_to_e8m0(); the MX specification's E8M0.
uint8_t e8m0_up(float value);

/// Quantizes each block of 32 values of a row, or of 32 x 32 values, by a power of two: MXFP8BlockScaling.
///
/// Shapes:   [..., cols]; the leading dimensions are rows. cols, and for 32 x 32 also the rows, are multiples of 32.
///           The exponents are neither padded nor in the order that tensor cores read.
/// Numerics: the exponent e is e8m0_up(amax * (1 / max)), with a float32 product; a code is value * 2^(127 - e). No
///           value but inf is too large then. What the format rounds to 2^128 (from 3.29e38 on in E4M3, from 3.18e38 in
///           E5M2) is restored as inf. NaN stays NaN and does not count for amax.
/// Errors:   those of quantize_fp8(); c10::ValueError for another shape.
QuantizedMXFP8 quantize_mxfp8(const at::Tensor& x, at::ScalarType dtype = at::kFloat8_e4m3fn,
                              bool two_dimensional = false);

/// Quantizes each block of 32 values of a column: as quantize_mxfp8() quantizes the transposed matrix, but the codes stay
/// where the values were. The rows are a multiple of 32.
/// Errors: those of quantize_mxfp8().
QuantizedMXFP8 quantize_mxfp8_columns(const at::Tensor& x, at::ScalarType dtype = at::kFloat8_e4m3fn);

/// Restores code * 2^(exponent - 127) in float32, rounded once to `dtype`.
/// Errors: c10::ValueError for codes or scales of another shape; c10::TypeError for those of another dtype.
at::Tensor dequantize_fp8(const QuantizedMXFP8& quantized, at::ScalarType dtype = at::kFloat);

}  // namespace mantissa
