#pragma once

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// A tensor in 8 bits with one scale.
///
/// Memory: 1 byte per value. A copy shares the tensors.
struct QuantizedFp8 {
  at::Tensor codes;      ///< Float8_e4m3fn or Float8_e5m2, in the tensor's shape
  at::Tensor scale_inv;  ///< float32, without dimensions: a value is code * scale_inv
};

/// Quantizes by a scale that is given: a code is value * scale.
///
/// Shapes:   `scale` has one element, in float32; so has `amax`, if it is defined.
/// Numerics: the product is float32. It is rounded to nearest, ties to even; subnormal results are kept. What is
///           too large, and inf, becomes the format's largest finite value, where torch's own cast gives NaN or inf.
///           NaN stays NaN. scale_inv is 1 / scale. On the CPU the bits depend neither on its instructions nor on the
///           number of threads.
/// amax:     becomes the larger one of itself and the tensor's largest magnitude before the scale. NaN does not count.
/// Speed:    one pass over the tensor, with and without amax.
/// Errors:   c10::TypeError for a dtype that is no FP8 format, and for another input than float32, float16 or
///           bfloat16; c10::ValueError for a scale or amax of another shape; c10::NotImplementedError for a tensor that
///           is not dense.
QuantizedFp8 quantize_fp8(const at::Tensor& x, at::ScalarType dtype, const at::Tensor& scale,
                          const at::Tensor& amax = {});

/// Quantizes by the tensor's own largest magnitude: Float8CurrentScaling.
/// Numerics: fp8_scale() gives the scale, and quantize_fp8() the codes.
QuantizedFp8 quantize_fp8_current(const at::Tensor& x, at::ScalarType dtype,
                                  const Fp8ScaleOptions& options = {});

/// Casts with scale 1 and saturation.
at::Tensor cast_to_fp8(const at::Tensor& x, at::ScalarType dtype);

/// Restores code * scale_inv in float32, rounded once to `dtype`.
/// Errors: c10::ValueError for codes or scales of another shape; c10::TypeError for those of another dtype.
at::Tensor dequantize_fp8(const QuantizedFp8& quantized, at::ScalarType dtype = at::kFloat);

}  // namespace mantissa
