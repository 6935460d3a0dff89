#include "mantissa/fp8/nvfp4.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Float8_e4m3fn.h>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/operators_internal.h"
#include "mantissa/fp8/restore_internal.h"
#include "mantissa/fp8/tiles_internal.h"
#include "mantissa/kernels/cpu/fp8.h"

namespace mantissa {
namespace {

constexpr int64_t kNVFP4Block = kernels::kE2M1Block;
constexpr float kLargestScaleOfTensor = std::numeric_limits<float>::max();
constexpr uint8_t kNaN = 0x7f;

float tensor_scale(const fp8::Rows& x) {
  const float amax =
      kernels::cpu::find_magnitudes({x.tensor.const_data_ptr(), x.element, x.tensor.numel()}).largest;
  const float scale = std::min(fp8::kLargestScale * fp8::kLargestCode / amax, kLargestScaleOfTensor);
  return amax == 0 || scale == 0 ? 1 : scale;
}

float value_of(uint8_t block_scale) { return c10::detail::fp8e4m3fn_to_fp32_value(block_scale); }

/// Returns what values are multiplied by; 0 for codes of 0.
float factor_of(uint8_t block_scale, float scale) {
  if (block_scale == 0 || block_scale == kNaN) return 0;
  return std::min(scale / value_of(block_scale), kLargestScaleOfTensor);
}

/// Returns factor_of() each block scale.
std::array<float, 128> factors_for(float scale) {
  std::array<float, 128> factors{};
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = factor_of(static_cast<uint8_t>(i), scale);
  return factors;
}

fp8::Tile tile_of(const QuantizeNVFP4Options& options) {
  const bool has_rows = options.two_dimensional || options.by_columns;
  return {has_rows ? kNVFP4Block : 1, options.by_columns ? 1 : kNVFP4Block};
}

/// Quantizes the blocks of a band to `out`, whose scale for the tensor is `scale`.
class BandQuantizer {
 public:
  BandQuantizer(const fp8::Rows& x, const QuantizeNVFP4Options& options, float scale, QuantizedNVFP4& out)
      : x_(x),
        tile_(tile_of(options)),
        draws_(options.stochastic_rounding),
        scale_(scale),
        factors_(factors_for(scale)),
        codes_(out.codes.mutable_data_ptr<uint8_t>()),
        block_scales_(static_cast<uint8_t*>(out.block_scale.mutable_data_ptr())) {}

  void operator()(const fp8::Band& band, float* numbers) const {
    build_.find_block_magnitudes({x_.at(band.row, band.col), x_.element, tile_.rows, band.cols, x_.cols,
                                  tile_.cols, /*keeps_nan=*/true, numbers});
    uint8_t* const block_scales = block_scales_ + band.index;
    build_.quantize({numbers, kernels::Element::kFloat32, block_scales, band.count, kernels::Fp8::kE4M3,
                     scale_ / fp8::kLargestCode});
    for (int64_t i = 0; i < band.count; ++i) {
      block_scales[i] &= 0x7f;  // the sign of NaN has no meaning
      numbers[i] = factors_[block_scales[i]];
    }
    for (int64_t row = band.row; row < band.row + tile_.rows; ++row) quantize_row(row, band, numbers);
  }

 private:
  void quantize_row(int64_t row, const fp8::Band& band, const float* factors) const {
    const int64_t at = row * x_.cols + band.col;
    kernels::QuantizeE2M1 problem = {x_.at(row, band.col), x_.element, codes_ + at / 2, band.cols, factors};
    problem.width = tile_.cols;
    if (draws_) {
      problem.rounds_stochastically = true;
      problem.seed = draws_->seed, problem.stream = draws_->stream;
      problem.offset = draws_->offset + static_cast<uint64_t>(at);
    }
    build_.quantize_e2m1(problem);
  }

  const kernels::cpu::Fp8Build& build_ = kernels::cpu::best_fp8_build();
  const fp8::Rows& x_;
  fp8::Tile tile_;
  std::optional<NVFP4Draws> draws_;
  float scale_;
  std::array<float, 128> factors_;
  uint8_t *codes_, *block_scales_;
};

}  // namespace

QuantizedNVFP4 quantize_nvfp4(const at::Tensor& x, const QuantizeNVFP4Options& options) {
  const fp8::Rows rows = fp8::rows_of(x, "quantize_nvfp4");
  TORCH_CHECK_VALUE(!options.two_dimensional || !options.by_columns,
                    "quantize_nvfp4: blocks are square or parts of columns; set only one of the two");
  const fp8::Tile tile = tile_of(options);
  fp8::check_blocks(rows, tile.rows, kNVFP4Block, "quantize_nvfp4");
  TORCH_CHECK_VALUE(x.dim() > 0,
                    "quantize_nvfp4: got a number; blocks of 16 values need a tensor with dimensions");
  TORCH_CHECK_VALUE(!options.stochastic_rounding || options.stochastic_rounding->offset % kNVFP4Block == 0,
                    "quantize_nvfp4: the offset of the draws is ", options.stochastic_rounding->offset,
                    "; use a multiple of 16");
  if (!fp8::uses_cpu_kernels(x))
    return fp8::operators::quantize_nvfp4(rows, tile, options.stochastic_rounding);
  const float scale = tensor_scale(rows);
  const auto tensor_options = rows.tensor.options();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() /= 2;
  QuantizedNVFP4 out = {
      at::empty(sizes, tensor_options.dtype(at::kByte)),
      at::empty({rows.rows / tile.rows, rows.cols / tile.cols}, tensor_options.dtype(at::kFloat8_e4m3fn)),
      at::scalar_tensor(scale, at::kFloat), tile.rows, tile.cols};
  fp8::for_each_band(rows.rows, rows.cols, tile, BandQuantizer(rows, options, scale, out));
  return out;
}

bool fp8::restore(const QuantizedNVFP4& quantized, const at::Tensor& out) {
  const int64_t cols = out.size(-1);
  const CodedMatrix matrix = {quantized.codes.const_data_ptr<uint8_t>(), kernels::CodeFormat::kE2M1,
                              cols == 0 ? 0 : out.numel() / cols, cols};
  const auto* const scales = static_cast<const uint8_t*>(quantized.block_scale.const_data_ptr());
  return restore_tiles(
      matrix, {quantized.block_rows, quantized.block_cols},
      [&](float* numbers, int64_t count, int64_t index) {
        for (int64_t i = 0; i < count; ++i) numbers[i] = value_of(scales[index + i]);
      },
      out);
}

at::Tensor dequantize_fp8(const QuantizedNVFP4& quantized, at::ScalarType dtype) {
  fp8::check_tiles(quantized.codes, {quantized.block_rows, quantized.block_cols}, quantized.block_scale,
                   at::kFloat8_e4m3fn, /*values_per_byte=*/2);
  fp8::check_one_scale(quantized.scale, quantized.codes.device());
  if (!fp8::uses_cpu_kernels(quantized.codes))
    return (fp8::operators::restored(quantized) / quantized.scale).to(dtype);
  QuantizedNVFP4 whole = quantized;
  whole.codes = quantized.codes.contiguous();
  std::vector<int64_t> sizes = whole.codes.sizes().vec();
  sizes.back() *= 2;
  at::Tensor out = at::empty(sizes, whole.codes.options().dtype(at::kFloat));
  fp8::restore(whole, out);
  const float scale = *quantized.scale.const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  fp8::for_each_part(out.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] /= scale;
  });
  return out.to(dtype);
}

}  // namespace mantissa
