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
