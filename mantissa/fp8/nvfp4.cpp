#include "mantissa/fp8/nvfp4.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Float8_e4m3fn.h>

#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/tiles_internal.h"
#include "mantissa/kernels/cpu/fp8.h"

namespace mantissa {
namespace {

constexpr int64_t kNVFP4Block = kernels::kE2M1Block;
constexpr float kLargestCode = 6, kLargestScale = 448;
constexpr float kLargestScaleOfTensor = std::numeric_limits<float>::max();
constexpr uint8_t kNaN = 0x7f;

float tensor_scale(const fp8::Rows& x) {
  const float amax =
      kernels::cpu::find_magnitudes({x.tensor.const_data_ptr(), x.element, x.tensor.numel()}).largest;
  const float scale = std::min(kLargestScale * kLargestCode / amax, kLargestScaleOfTensor);
  return amax == 0 || scale == 0 ? 1 : scale;
}

uint8_t block_scale_of(const kernels::Magnitudes& block, float scale) {
  if (block.has_nan) return kNaN;
  const float exact = std::min(block.largest * (scale / kLargestCode), kLargestScale);
  return c10::detail::fp8e4m3fn_from_fp32_value(exact);
}

float value_of(uint8_t block_scale) { return c10::detail::fp8e4m3fn_to_fp32_value(block_scale); }

/// Returns what values are multiplied by; 0 for codes of 0.
float factor_of(uint8_t block_scale, float scale) {
  if (block_scale == 0 || block_scale == kNaN) return 0;
  return std::min(scale / value_of(block_scale), kLargestScaleOfTensor);
}

/// Quantizes one band of rows that share their blocks' scales.
void quantize_band(const fp8::Rows& x, fp8::Tile tile, int64_t band, float scale,
                   const QuantizeNVFP4Options& options, QuantizedNVFP4& out) {
  const int64_t across = x.cols / tile.cols;
  auto* const scales = static_cast<uint8_t*>(out.block_scale.mutable_data_ptr()) + band * across;
  std::vector<float> factors(static_cast<size_t>(across));
  for (int64_t col = 0; col < across; ++col) {
    scales[col] = block_scale_of(fp8::magnitudes_of(x, tile, band, col), scale);
    factors[static_cast<size_t>(col)] = factor_of(scales[col], scale);
  }
  for (int64_t row = band * tile.rows; row < (band + 1) * tile.rows; ++row) {
    kernels::QuantizeE2M1 problem = {x.at(row, 0), x.element,
                                     out.codes.mutable_data_ptr<uint8_t>() + row * x.cols / 2, x.cols,
                                     factors.data()};
    if (options.stochastic_rounding) {
      const NVFP4Draws& draws = *options.stochastic_rounding;
      problem.rounds_stochastically = true;
      problem.seed = draws.seed, problem.stream = draws.stream;
      problem.offset = draws.offset + static_cast<uint64_t>(row * x.cols);
    }
    kernels::cpu::best_fp8_build().quantize_e2m1(problem);
  }
}

}  // namespace

QuantizedNVFP4 quantize_nvfp4(const at::Tensor& x, const QuantizeNVFP4Options& options) {
  const fp8::Rows rows = fp8::rows_of(x, "quantize_nvfp4");
  const fp8::Tile tile = {options.two_dimensional ? kNVFP4Block : 1, kNVFP4Block};
  fp8::check_blocks(rows, tile.rows, tile.cols, "quantize_nvfp4");
  TORCH_CHECK_VALUE(x.dim() > 0,
                    "quantize_nvfp4: got a number; blocks of 16 values need a tensor with dimensions");
  TORCH_CHECK_VALUE(!options.stochastic_rounding || options.stochastic_rounding->offset % kNVFP4Block == 0,
                    "quantize_nvfp4: the offset of the draws is ", options.stochastic_rounding->offset,
                    "; use a multiple of 16");
  const float scale = tensor_scale(rows);
  const auto tensor_options = rows.tensor.options();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() /= 2;
  QuantizedNVFP4 out = {
      at::empty(sizes, tensor_options.dtype(at::kByte)),
      at::empty({rows.rows / tile.rows, rows.cols / tile.cols}, tensor_options.dtype(at::kFloat8_e4m3fn)),
      at::scalar_tensor(scale, at::kFloat), tile.rows};
  fp8::for_each_part(rows.rows / tile.rows, tile.rows * rows.cols, [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band) quantize_band(rows, tile, band, scale, options, out);
  });
  return out;
}

at::Tensor dequantize_fp8(const QuantizedNVFP4& quantized, at::ScalarType dtype) {
  fp8::check_tiles(quantized.codes, {quantized.block_rows, kNVFP4Block}, quantized.block_scale,
                   at::kFloat8_e4m3fn, /*values_per_byte=*/2);
  fp8::check_one_scale(quantized.scale);
  const at::Tensor codes = quantized.codes.contiguous();
  std::vector<int64_t> sizes = codes.sizes().vec();
  sizes.back() *= 2;
  at::Tensor out = at::empty(sizes, codes.options().dtype(at::kFloat));
  const int64_t cols = sizes.back(), rows = cols == 0 ? 0 : out.numel() / cols, across = cols / kNVFP4Block;
  const auto* const from = codes.const_data_ptr<uint8_t>();
  const auto* const scales = static_cast<const uint8_t*>(quantized.block_scale.const_data_ptr());
  const float scale = *quantized.scale.const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  fp8::for_each_part(rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * cols; i < end * cols; ++i) {
      const int code = i % 2 == 0 ? from[i / 2] & 15 : from[i / 2] >> 4;
      const int64_t row = i / cols / quantized.block_rows;
      to[i] = kernels::kE2M1Values[code] * value_of(scales[row * across + i % cols / kNVFP4Block]) / scale;
    }
  });
  return out.to(dtype);
}

}  // namespace mantissa
