#pragma once

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Numbers in 8 bits: the code of each one, and a scale for each 256 numbers.
///
/// Shapes: codes has the numbers' shape and is uint8; absmax is float32, [blocks]. Blocks are of consecutive
///         elements in row-major order, and cross the ends of rows; the last one may be shorter.
struct BlockwiseCodes {
  at::Tensor codes, absmax;
};

/// Quantizes numbers as the states of 8-bit optimizers are quantized. absmax is each block's largest
/// magnitude, and a code stands for one of the 256 values between -1 and 1 of the dynamic map that
/// core/code_tables.h lists. With is_signed false, for numbers of which none is negative, it stands for one of
/// the 256 values between 0 and 1.
///
/// Shapes:   any.
/// Numerics: the code is the nearest one, and a tie goes to the lower code. Near the largest number of a block
///           the error is up to 0.7 %, and for smaller ones it shrinks with them, down to 1e-6 of the largest.
///           The signed map has no -1: the most negative number becomes 0.99297 times itself. An infinite
///           number counts as the largest finite one, and NaN as 0.
/// Errors:   c10::TypeError for dtypes other than float32, bfloat16 and float16.
/// Source:   Dettmers et al. 2022, arXiv:2110.02861; bitsandbytes's quantize_blockwise().
/// Example:  blockwise_test.cpp, Blockwise.OperationsGiveTheKernelsBits
BlockwiseCodes quantize_blockwise(const at::Tensor& values, bool is_signed = true);
/// The inverse: float32, each absmax times the value of the code.
/// Errors: c10::TypeError for other dtypes; c10::ValueError for an absmax of another length.
at::Tensor dequantize_blockwise(const BlockwiseCodes& quantized, bool is_signed = true);

}  // namespace mantissa
