#include <algorithm>

#include <ATen/ops/empty.h>

#include "mantissa/core/parallel_internal.h"
#include "mantissa/fp8/tiles_internal.h"
#include "mantissa/kernels/cpu/fp8.h"

namespace mantissa::fp8 {

void for_each_part(int64_t count, int64_t values, c10::function_ref<void(int64_t, int64_t)> part) {
  constexpr int64_t kGrain = 1 << 14;  // values
  at::parallel_for(0, count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, values)), part);
}

kernels::Magnitudes magnitudes_of(const Rows& x, Tile tile, int64_t band, int64_t col) {
  kernels::Magnitudes all;
  for (int64_t row = band * tile.rows; row < (band + 1) * tile.rows; ++row) {
    const kernels::Magnitudes here =
        kernels::cpu::best_fp8_build().find_magnitudes({x.at(row, col * tile.cols), x.element, tile.cols});
    all.largest = std::max(all.largest, here.largest);
    all.has_nan = all.has_nan || here.has_nan;
  }
  return all;
}

void quantize_tiles(const Rows& x, Tile tile, kernels::Fp8 format, uint8_t* codes,
                    c10::function_ref<float(float, int64_t)> scale_of) {
  const int64_t across = x.cols / tile.cols;
  const auto quantize = [&](int64_t band, int64_t col) {
    const float scale = scale_of(magnitudes_of(x, tile, band, col).largest, band * across + col);
    for (int64_t row = band * tile.rows; row < (band + 1) * tile.rows; ++row) {
      uint8_t* const to = codes + row * x.cols + col * tile.cols;
      kernels::cpu::best_fp8_build().quantize(
          {x.at(row, col * tile.cols), x.element, to, tile.cols, format, scale});
    }
  };
  for_each_part(x.rows / tile.rows, tile.rows * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band)
      for (int64_t col = 0; col < across; ++col) quantize(band, col);
  });
}

void check_tiles(const at::Tensor& codes, Tile tile, const at::Tensor& scales, at::ScalarType scale_dtype,
                 int64_t values_per_byte) {
  TORCH_CHECK_VALUE(
      codes.defined() && codes.is_cpu() && codes.dim() > 0,
      "dequantize_fp8: the codes are no matrix on the CPU; give what the quantizing function returned");
  TORCH_CHECK_VALUE(tile.rows > 0, "dequantize_fp8: blocks have ", tile.rows,
                    " rows; give block_rows as it was returned");
  const int64_t cols = codes.size(-1) * values_per_byte,
                rows = cols == 0 ? 0 : codes.numel() / codes.size(-1);
  TORCH_CHECK_VALUE(rows % tile.rows == 0 && cols % tile.cols == 0, "dequantize_fp8: codes of ",
                    codes.sizes(), " are no whole blocks of ", tile.rows, " x ", tile.cols, " values");
  const int64_t tiles = rows / tile.rows * (cols / tile.cols);
  TORCH_CHECK_VALUE(scales.defined() && scales.is_cpu() && scales.is_contiguous() && scales.numel() == tiles,
                    "dequantize_fp8: codes of ", codes.sizes(), " in blocks of ", tile.rows, " x ", tile.cols,
                    " need ", tiles, " contiguous scales on the CPU; they have ",
                    scales.defined() ? c10::str(scales.sizes()) : "none");
  TORCH_CHECK_TYPE(scales.scalar_type() == scale_dtype, "dequantize_fp8: the scales have dtype ",
                   scales.scalar_type(), "; they are ", scale_dtype);
}

void check_one_scale(const at::Tensor& scale) {
  TORCH_CHECK_VALUE(
      scale.defined() && scale.is_cpu() && scale.numel() == 1 && scale.scalar_type() == at::kFloat,
      "dequantize_fp8: the scale must be one float32 on the CPU; it is ",
      scale.defined() ? c10::str(scale.scalar_type(), " ", scale.sizes(), " on ", scale.device())
                      : "undefined");
}

void check_fp8_codes(const at::Tensor& codes) {
  TORCH_CHECK_VALUE(codes.defined() && codes.is_cpu(), "dequantize_fp8: the codes must be on the CPU");
  TORCH_CHECK_TYPE(codes.scalar_type() == at::kFloat8_e4m3fn || codes.scalar_type() == at::kFloat8_e5m2,
                   "dequantize_fp8: the codes have dtype ", codes.scalar_type(),
                   "; they are Float8_e4m3fn or Float8_e5m2");
}

at::Tensor dequantize_tiles(const at::Tensor& codes, Tile tile, at::ScalarType dtype,
                            c10::function_ref<float(int64_t)> scale_inv_of) {
  const at::Tensor whole = codes.contiguous();
  at::Tensor out = at::empty(whole.sizes(), whole.options().dtype(at::kFloat));
  const kernels::Fp8 format = format_of_dtype(whole.scalar_type());
  const auto* const from = static_cast<const uint8_t*>(whole.const_data_ptr());
  float* const to = out.mutable_data_ptr<float>();
  const int64_t cols = whole.size(-1), across = cols / tile.cols;
  for_each_part(cols == 0 ? 0 : whole.numel() / cols, cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t col = 0; col < across; ++col) {
        const int64_t at = row * cols + col * tile.cols;
        kernels::cpu::best_fp8_build().dequantize(
            {from + at, to + at, tile.cols, format, scale_inv_of(row / tile.rows * across + col)});
      }
  });
  return out.to(dtype);
}

}  // namespace mantissa::fp8
