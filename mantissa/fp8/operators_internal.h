#pragma once

// The casts and products of this room by libtorch's operators, for devices without kernels of ours.
//
// Numerics: codes, scales and restored values have the bits of the CPU's kernels. Sums of products are float32 in
//           another order.
// Sync:     nothing reads from the device.

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/tiles_internal.h"

namespace mantissa::fp8 {

/// The largest values of NVFP4's codes (E2M1), and of the scales of its blocks (E4M3).
inline constexpr float kLargestCode = 6, kLargestScale = 448;

}  // namespace mantissa::fp8

namespace mantissa::fp8::operators {

/// Returns a number for quotients: at::reciprocal() and a division by a scalar would round differently. It is made on the
/// device of `like`, in its dtype.
at::Tensor number(double value, const at::Tensor& like);

/// Returns the largest magnitude in float32 without dimensions; NaN does not count.
at::Tensor amax_of(const at::Tensor& x);
/// Returns those of the tiles of a matrix, in float32: [rows / tile.rows, cols / tile.cols].
at::Tensor amax_of_tiles(const Rows& x, Tile tile, bool keeps_nan = false);
/// Returns fp8_scale() of each number.
at::Tensor scales_of(const at::Tensor& amax, float max, const Fp8ScaleOptions& options);
/// Returns one number for each value of a matrix of tiles, as [rows / tile.rows, tile.rows, cols / tile.cols, tile.cols].
at::Tensor by_tiles(const at::Tensor& matrix, Tile tile);
/// Returns the numbers of tiles with dimensions that expand to those of by_tiles().
at::Tensor of_tiles(const at::Tensor& numbers);

/// The functions of quantized_fp8.h, block_scaling.h, mxfp8.h and nvfp4.h, which have checked their arguments.
QuantizedFp8 quantize(const Rows& x, at::ScalarType dtype, const at::Tensor& scale, const at::Tensor& amax);
QuantizedFp8 quantize_current(const Rows& x, at::ScalarType dtype, const Fp8ScaleOptions& options);
QuantizedFp8Blocks quantize_blocks(const Rows& x, at::ScalarType dtype, Fp8Block block, Tile tile,
                                   const Fp8ScaleOptions& options);
QuantizedMXFP8 quantize_mxfp8(const Rows& x, at::ScalarType dtype, Tile tile);
QuantizedNVFP4 quantize_nvfp4(const Rows& x, Tile tile, const std::optional<NVFP4Draws>& draws);

/// Returns `count` random numbers below 2^32 on the device of `like`, int64 [count]: Philox4x32-10, whose block i has the
/// numbers 4 i to 4 i + 3 of stream `stream` under key `seed`.
at::Tensor random_words(uint64_t seed, int64_t stream, int64_t count, const at::Tensor& like);

/// Multiplies 16 adjacent values of each row, or of each column, by (1/4) S H, or by its inverse.
at::Tensor hadamard(const Rows& x, at::ArrayRef<float> signs);
at::Tensor inverse_hadamard(const Rows& x, at::ArrayRef<float> signs);
at::Tensor hadamard_columns(const Rows& x, at::ArrayRef<float> signs);

/// Returns code * the number of its block in float32, without the scale of the tensor.
at::Tensor restored(const QuantizedFp8& quantized);
at::Tensor restored(const QuantizedFp8Blocks& quantized);
at::Tensor restored(const QuantizedMXFP8& quantized);
at::Tensor restored(const QuantizedNVFP4& quantized);

/// Multiplies sums in place by two scales in float64. Where the product of the scales is no normal number of float32, the
/// larger one comes first, as on the CPU.
void scale_sums(const at::Tensor& sums, const at::Tensor& one, const at::Tensor& other);

/// Returns what the restored values are still to be multiplied by, in float64 without dimensions.
at::Tensor scale_inv_of(const QuantizedFp8& quantized);
at::Tensor scale_inv_of(const QuantizedFp8Blocks& quantized);
at::Tensor scale_inv_of(const QuantizedMXFP8& quantized);
at::Tensor scale_inv_of(const QuantizedNVFP4& quantized);

}  // namespace mantissa::fp8::operators
