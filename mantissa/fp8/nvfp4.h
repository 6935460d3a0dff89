#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A matrix in 4 bits (E2M1) with scales on two levels: NVFP4.
///
/// Memory: 4.5 bits per value.
struct QuantizedNVFP4 {
  at::Tensor codes;         ///< bytes [..., cols / 2]; the first of two codes is in the low half
  at::Tensor block_scale;   ///< Float8_e4m3fn, one for each block, row by row
  at::Tensor scale;         ///< float32, without dimensions: a value is code * block_scale / scale
  int64_t block_rows;       ///< 1 or 16
  int64_t block_cols = 16;  ///< or 1
};

/// The random numbers of stochastic rounding: value i takes draw `offset` + i of stream `stream` under key `seed`. Two
/// tensors must share no draw.
struct NVFP4Draws {
  uint64_t seed = 0;
  int64_t stream = 0;   ///< such as the step
  uint64_t offset = 0;  ///< a multiple of 16
};

struct QuantizeNVFP4Options {
  bool two_dimensional = false;  ///< blocks of 16 x 16, for weights: the same codes for the transposed matrix
  std::optional<NVFP4Draws> stochastic_rounding = {};  ///< for gradients; unset: to nearest
  /// Blocks of 16 values of a column, as the transposed matrix has them; the codes stay where the values were.
  bool by_columns = false;
};

/// Quantizes in blocks of 16 values of a row, or of 16 x 16 values: NVFP4BlockScaling.
///
/// Shapes:   [..., cols]; the leading dimensions are rows. cols, and unless blocks are parts of a row also the rows, are
///           multiples of 16.
///           The scales are neither padded nor in the order that tensor cores read.
/// Numerics: scale is 448 * 6 / amax of the tensor, at most float32's largest number; 1 if that is 0 or amax is 0.
///           block_scale is the block's amax * (scale / 6), cast to Float8_e4m3fn with saturation. A code is value *
///           (scale / block_scale) in E2M1, to nearest, ties to even; with a block_scale of 0 all codes are 0. All
///           quotients and products are float32. A block with NaN, which E2M1 lacks, has the block_scale NaN, so
///           that all its values are restored as NaN. On the CPU the bits depend neither on its instructions nor
///           on the number of threads.
/// Errors:   c10::TypeError for another input than float32, float16 or bfloat16; c10::ValueError for another shape, for
///           an offset of draws that is no multiple of 16, and for both two_dimensional and by_columns;
///           c10::NotImplementedError for a tensor that is not dense.
QuantizedNVFP4 quantize_nvfp4(const at::Tensor& x, const QuantizeNVFP4Options& options = {});

/// Restores (code * block_scale) / scale in float32, rounded once to `dtype`.
/// Errors: c10::ValueError for codes or scales of another shape; c10::TypeError for those of another dtype.
at::Tensor dequantize_fp8(const QuantizedNVFP4& quantized, at::ScalarType dtype = at::kFloat);

}  // namespace mantissa
