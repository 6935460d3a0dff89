#pragma once

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Multiplies each 16 adjacent values of a row by (1/4) S H, where S is a fixed diagonal of signs and H the Hadamard
/// matrix of Sylvester's form: the random Hadamard transform of NVFP4BlockScaling. The matrix is orthogonal, so
/// the product of two transformed operands is that of the operands, and an outlier is spread over 16 values.
///
/// Shapes:   [..., cols]; cols is a multiple of 16.
/// Numerics: float32 sums in a fixed order: the bits depend neither on the CPU nor on the number of threads.
/// Errors:   c10::ValueError for another shape; c10::TypeError for another input than float32, float16 or bfloat16;
///           c10::NotImplementedError for a tensor that is not dense.
/// Source:   Transformer Engine, whose signs these are; NVIDIA 2025, arXiv:2509.25149.
at::Tensor hadamard_transform(const at::Tensor& x);

/// Transforms each 16 values of a column: what hadamard_transform() makes of the transposed matrix, transposed back. The
/// rows are a multiple of 16.
/// Errors: those of hadamard_transform().
at::Tensor hadamard_transform_columns(const at::Tensor& x);

/// Multiplies by the transposed matrix: restores what was transformed, within float32's rounding.
at::Tensor inverse_hadamard_transform(const at::Tensor& x);

}  // namespace mantissa
