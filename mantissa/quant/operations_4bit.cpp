#include <array>
#include <limits>

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/quant/operations_4bit_internal.h"
#include "mantissa/quant/quantized_4bit.h"
#include "mantissa/quant/quantized_4bit_internal.h"

namespace mantissa::quant {
namespace {

template <size_t N>
at::Tensor tensor_of(const float (&values)[N], at::Device device) {
  // from_blob() takes no const pointer, so the cast is needed. The returned tensor is a copy.
  return at::from_blob(const_cast<float*>(values), {static_cast<int64_t>(N)}, at::kFloat)
      .to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

/// Returns for each value the number of thresholds below it, 0 for NaN; `thresholds` ascend.
at::Tensor count_below(const at::Tensor& values, const at::Tensor& thresholds) {
  // bucketize() places NaN behind the last threshold.
  const at::Tensor known = values.masked_fill(values.isnan(), -std::numeric_limits<float>::infinity());
  return at::bucketize(known, thresholds, /*out_int32=*/true);
}

/// Returns x in rows of `block` values, padded with zeros.
at::Tensor in_blocks(const at::Tensor& x, int64_t block) {
  const at::Tensor flat = x.reshape({-1}).to(at::kFloat);
  const int64_t rest = (block - flat.numel() % block) % block;
  return at::constant_pad_nd(flat, {0, rest}).view({-1, block});
}

at::Tensor codes_of(const at::Tensor& scaled, Format format) {
  if (format == Format::kNF4)
    return count_below(scaled, tensor_of(kNF4Thresholds, scaled.device())).to(at::kByte);
  const at::Tensor place = count_below(scaled.abs(), tensor_of(kFP4Thresholds, scaled.device()));
  std::array<float, 8> magnitudes{};
  for (size_t i = 0; i < magnitudes.size(); ++i) magnitudes[i] = kFP4Magnitudes[i];
  const at::Tensor table =
      at::from_blob(magnitudes.data(), {8}, at::kFloat).to(scaled.device(), at::kByte, false, true);
  return table.index({place}) + (scaled < 0).to(at::kByte) * 8;
}

/// Returns the scales of some blocks, in the shape of `blocks`: see absmax_of().
at::Tensor scales_of_blocks(const Quantized4Bit& quantized, const at::Tensor& blocks) {
  const at::Tensor flat = blocks.reshape({-1}), own = quantized.absmax.index_select(0, flat);
  if (!quantized.is_nested()) return own.view(blocks.sizes());
  const at::Tensor outer =
      quantized.nested_absmax.index_select(0, flat.div(kNestedBlocksize, /*rounding_mode=*/"floor"));
  const at::Tensor restored =
      quantized.nested_map.index_select(0, own.to(at::kLong)) * outer + quantized.nested_offset;
  return restored.view(blocks.sizes());
}

}  // namespace

at::Tensor table_4bit(Format format, at::Device device) {
  return format == Format::kNF4 ? tensor_of(kNF4Values, device) : tensor_of(kFP4Values, device);
}

std::pair<at::Tensor, at::Tensor> quantize_by_operations(const at::Tensor& tensor, int64_t blocksize,
                                                         Format format) {
  const int64_t count = tensor.numel();
  const at::Tensor blocks = in_blocks(tensor, blocksize);
  const at::Tensor absmax = blocks.abs().amax(1, /*keepdim=*/true);
  const at::Tensor inverse = at::where(absmax == 0, at::zeros({}, absmax.options()), absmax.reciprocal());
  // The reciprocal of a subnormal float32 can overflow to inf.
  const at::Tensor scaled = at::where(inverse.isinf(), blocks / absmax, blocks * inverse);
  const at::Tensor codes = codes_of(scaled, format).view({-1, 2});
  const at::Tensor bytes = codes.select(1, 0) * 16 + codes.select(1, 1);
  return {bytes.narrow(0, 0, (count + 1) / 2).contiguous(), absmax.view({-1})};
}

at::Tensor dequantize_by_operations(const at::Tensor& codes, const at::Tensor& absmax, int64_t count,
                                    int64_t blocksize, Format format, at::ScalarType dtype) {
  const at::Tensor nibbles = at::stack({codes.__rshift__(4), codes.bitwise_and(15)}, -1).view({-1});
  const at::Tensor values =
      table_4bit(format, codes.device()).index({nibbles.narrow(0, 0, count).to(at::kInt)});
  return (values * absmax.repeat_interleave(blocksize).narrow(0, 0, count)).to(dtype);
}

std::pair<at::Tensor, at::Tensor> quantize_nested_by_operations(const at::Tensor& residual) {
  const at::Tensor blocks = in_blocks(residual, kNestedBlocksize);
  const at::Tensor absmax = blocks.abs().amax(1, /*keepdim=*/true);
  std::array<float, 255> midpoints{};
  // The midpoint may not be a float32. Rounding it down leaves every float32 on the same side.
  for (size_t i = 0; i < midpoints.size(); ++i) {
    const double exact = (static_cast<double>(kDynamicSigned[i]) + kDynamicSigned[i + 1]) / 2;
    const auto nearest = static_cast<float>(exact);
    midpoints[i] = nearest > exact ? std::nextafter(nearest, -2.0F) : nearest;
  }
  const at::Tensor table =
      at::from_blob(midpoints.data(), {255}, at::kFloat).to(residual.device(), at::kFloat, false, true);
  // In a block of zeros 0 / 0 is NaN, so use 0.
  const at::Tensor scaled = at::where(absmax == 0, at::zeros({}, absmax.options()), blocks / absmax);
  const at::Tensor codes = count_below(scaled, table).to(at::kByte);
  return {codes.view({-1}).narrow(0, 0, residual.numel()).contiguous(), absmax.view({-1})};
}

at::Tensor dequantize_rows_by_operations(const Quantized4Bit& quantized, const at::Tensor& rows) {
  const int64_t width = width_of(quantized);
  const at::Tensor bytes = bytes_of(quantized);
  const at::Tensor places = rows.unsqueeze(1) * width + at::arange(width, rows.options());
  const at::Tensor pairs =
      bytes.index_select(0, places.bitwise_right_shift(1).view({-1})).view(places.sizes());
  // The value with the even number is in the high half of its byte.
  const at::Tensor codes =
      at::where(places.bitwise_and(1) == 0, pairs.bitwise_right_shift(4), pairs.bitwise_and(15));
  const at::Tensor values = table_4bit(quantized.format, quantized.device())
                                .index_select(0, codes.view({-1}).to(at::kLong))
                                .view(places.sizes());
  return values * scales_of_blocks(quantized, places.div(quantized.blocksize, /*rounding_mode=*/"floor"));
}

}  // namespace mantissa::quant
