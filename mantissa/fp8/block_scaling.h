#pragma once

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// The blocks of Float8BlockScaling: of an activation or a gradient, of a weight, and of a transposed activation or
/// gradient, whose codes stay where the values were.
enum class Fp8Block : uint8_t { k1x128, k128x128, k128x1 };

/// A matrix in 8 bits with a scale for each block.
struct QuantizedFp8Blocks {
  at::Tensor codes;      ///< Float8_e4m3fn or Float8_e5m2, in the tensor's shape
  at::Tensor scale_inv;  ///< float32, one for each block, row by row: a value is code * its block's scale_inv
  Fp8Block block;
};

/// Quantizes each block by its own largest magnitude: Float8BlockScaling.
///
/// Shapes:   [..., cols]; the leading dimensions are rows. A dimension in which blocks have 128 values is a multiple of
///           128.
/// Numerics: fp8_scale() of a block's amax gives its scale, quantize_fp8() its codes. Where the quotient is infinite,
///           the scale is the largest number of the input's dtype.
/// Errors:   those of quantize_fp8(); c10::ValueError for another shape.
QuantizedFp8Blocks quantize_fp8_blocks(const at::Tensor& x, at::ScalarType dtype, Fp8Block block,
                                       const Float8BlockScaling& recipe = {});

/// Restores code * scale_inv in float32, rounded once to `dtype`.
/// Errors: c10::ValueError for codes or scales of another shape; c10::TypeError for those of another dtype.
at::Tensor dequantize_fp8(const QuantizedFp8Blocks& quantized, at::ScalarType dtype = at::kFloat);

}  // namespace mantissa
