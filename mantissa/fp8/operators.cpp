#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "mantissa/fp8/operators_internal.h"

namespace mantissa::fp8::operators {

at::Tensor number(double value, const at::Tensor& like) { return at::scalar_tensor(value, like.options()); }

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns the values with NaN as 0.
at::Tensor without_nan(const at::Tensor& x) { return at::nan_to_num(x, 0.0, kInfinity, -kInfinity); }

/// Returns values * scale in the format, saturated. `scale` has a dimension, so that the product of 16-bit values is float32.
at::Tensor codes_of(const at::Tensor& values, const at::Tensor& scale, at::ScalarType dtype) {
  const at::Tensor scaled = values * scale;
  const at::Tensor max = number(fp8_max(dtype), scaled);
  at::Tensor codes = at::empty(scaled.sizes(), scaled.options().dtype(dtype));
  // With numbers in tensors as limits, libtorch casts the result in the same pass.
  return at::clamp_out(codes, scaled, max.neg(), max);
}

/// Returns the float32 numbers with these bits.
at::Tensor as_float(const at::Tensor& bits) { return bits.to(at::kInt).view(at::kFloat); }

/// Returns 2^(exponent - 127) for exponents from 0 to 255, as int32.
at::Tensor power_of_two(const at::Tensor& exponent) {
  constexpr int64_t kBitsOfTwoToMinus127 = 0x400000, kBitsOfNaN = 0x7fc00000;
  const at::Tensor bits = exponent.bitwise_left_shift(23);
  return as_float(at::where(exponent == 0, kBitsOfTwoToMinus127,
                            at::where(exponent == 255, kBitsOfNaN, bits.to(at::kLong))));
}

/// Returns e8m0_up() of each number, as int32.
at::Tensor exponents_up(const at::Tensor& values) {
  const at::Tensor bits = values.view(at::kInt).bitwise_and(0x7fffffff);
  const at::Tensor exponent = bits.bitwise_right_shift(23), mantissa = bits.bitwise_and(0x7fffff);
  const at::Tensor is_up = at::where(exponent == 0, mantissa > 0x400000, mantissa > 0);
  const at::Tensor up = at::where(exponent >= 254, 254, exponent + is_up.to(at::kInt));
  return at::where(bits > 0x7f800000, 255, up).to(at::kInt);
}

}  // namespace

at::Tensor amax_of(const at::Tensor& x) {
  if (x.numel() == 0) return at::zeros({}, x.options().dtype(at::kFloat));
  return at::linalg_vector_norm(without_nan(x), kInfinity, c10::nullopt, /*keepdim=*/false, at::kFloat);
}

at::Tensor by_tiles(const at::Tensor& matrix, Tile tile) {
  const int64_t rows = matrix.size(0), cols = matrix.size(1);
  return matrix.view({rows / tile.rows, tile.rows, cols / tile.cols, tile.cols});
}

at::Tensor of_tiles(const at::Tensor& numbers) { return numbers.unsqueeze(1).unsqueeze(3); }

at::Tensor amax_of_tiles(const Rows& x, Tile tile, bool keeps_nan) {
  if (x.tensor.numel() == 0)
    return at::zeros({x.rows / tile.rows, x.cols / tile.cols}, x.tensor.options().dtype(at::kFloat));
  const at::Tensor tiles = by_tiles(x.tensor.view({x.rows, x.cols}), tile);
  return at::linalg_vector_norm(keeps_nan ? tiles : without_nan(tiles), kInfinity, at::IntArrayRef{1, 3},
                                /*keepdim=*/false, at::kFloat);
}

at::Tensor scales_of(const at::Tensor& amax, float max, const Fp8ScaleOptions& options) {
  const at::Tensor raised = amax.clamp_min(options.epsilon);
  const at::Tensor quotient = number(max, amax) / raised;
  at::Tensor scale = at::where(at::isinf(quotient), options.value_for_inf, quotient);
  if (options.power_of_two) scale = as_float(scale.view(at::kInt).bitwise_and(-0x800000));
  return at::where(at::isfinite(raised).logical_and(raised != 0), scale, 1.0F);
}

QuantizedFp8 quantize(const Rows& x, at::ScalarType dtype, const at::Tensor& scale, const at::Tensor& amax) {
  const at::Tensor factor = scale.detach().reshape({1}).to(at::kFloat);
  at::Tensor codes = codes_of(x.tensor.dim() == 0 ? x.tensor.view({1}) : x.tensor, factor, dtype);
  if (amax.defined()) {
    const at::Tensor found = amax_of(x.tensor).view_as(amax);
    amax.copy_(at::where(amax < found, found, amax));
  }
  return {codes.view(x.tensor.sizes()), (number(1, factor) / factor).squeeze(0)};
}

QuantizedFp8 quantize_current(const Rows& x, at::ScalarType dtype, const Fp8ScaleOptions& options) {
  return quantize(x, dtype, scales_of(amax_of(x.tensor), fp8_max(dtype), options), {});
}

QuantizedFp8Blocks quantize_blocks(const Rows& x, at::ScalarType dtype, Fp8Block block, Tile tile,
                                   const Fp8ScaleOptions& options) {
  const at::Tensor scale = scales_of(amax_of_tiles(x, tile), fp8_max(dtype), options);
  const at::Tensor tiles = by_tiles(x.tensor.view({x.rows, x.cols}), tile);
  return {codes_of(tiles, of_tiles(scale), dtype).view(x.tensor.sizes()), number(1, scale) / scale, block};
}

QuantizedMXFP8 quantize_mxfp8(const Rows& x, at::ScalarType dtype, Tile tile) {
  const at::Tensor amax = amax_of_tiles(x, tile);
  const at::Tensor exponents = exponents_up(amax * (1 / fp8_max(dtype)));
  const at::Tensor scale = power_of_two(at::where(exponents == 255, 255, 254 - exponents));
  const at::Tensor tiles = by_tiles(x.tensor.view({x.rows, x.cols}), tile);
  return {codes_of(tiles, of_tiles(scale), dtype).view(x.tensor.sizes()),
          exponents.to(at::kByte).view(at::kFloat8_e8m0fnu), tile.rows, tile.cols};
}

namespace {

at::Tensor as_rows(const at::Tensor& codes) { return codes.reshape({-1, codes.size(-1)}); }

at::Tensor restored_tiles(const at::Tensor& codes, const at::Tensor& numbers, Tile tile) {
  if (codes.numel() == 0) return at::empty(codes.sizes(), codes.options().dtype(at::kFloat));
  const at::Tensor tiles = by_tiles(as_rows(codes.contiguous()), tile).to(at::kFloat);
  return (tiles * of_tiles(numbers)).view(codes.sizes());
}

at::Tensor one(const at::Tensor& like) { return at::scalar_tensor(1, like.options().dtype(at::kDouble)); }

}  // namespace

at::Tensor restored(const QuantizedFp8& quantized) { return quantized.codes.contiguous().to(at::kFloat); }

at::Tensor restored(const QuantizedFp8Blocks& quantized) {
  const Tile tile = {quantized.block == Fp8Block::k1x128 ? 1 : 128,
                     quantized.block == Fp8Block::k128x1 ? 1 : 128};
  return restored_tiles(quantized.codes, quantized.scale_inv, tile);
}

at::Tensor restored(const QuantizedMXFP8& quantized) {
  const at::Tensor exponents = quantized.exponents.view(at::kByte).to(at::kInt);
  return restored_tiles(quantized.codes, power_of_two(exponents),
                        {quantized.block_rows, quantized.block_cols});
}

at::Tensor scale_inv_of(const QuantizedFp8& quantized) { return quantized.scale_inv.to(at::kDouble); }
at::Tensor scale_inv_of(const QuantizedFp8Blocks& quantized) { return one(quantized.scale_inv); }
at::Tensor scale_inv_of(const QuantizedMXFP8& quantized) { return one(quantized.codes); }
at::Tensor scale_inv_of(const QuantizedNVFP4& quantized) {
  return one(quantized.scale) / quantized.scale.to(at::kDouble);
}

}  // namespace mantissa::fp8::operators
