#include <algorithm>
#include <atomic>
#include <vector>

#include "mantissa/core/parallel_internal.h"
#include "mantissa/fp8/tiles_internal.h"
#include "mantissa/kernels/cpu/fp8.h"

namespace mantissa::fp8 {

void for_each_part(int64_t count, int64_t values, c10::function_ref<void(int64_t, int64_t)> part) {
  constexpr int64_t kGrain = 1 << 14;  // values
  at::parallel_for(0, count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, values)), part);
}

void for_each_band(int64_t rows, int64_t cols, Tile tile, c10::function_ref<void(const Band&, float*)> f) {
  if (rows == 0 || cols == 0) return;
  // A part of a band of several rows stays in the L2 cache while it is read twice.
  constexpr int64_t kColumns = 512;
  const int64_t most = tile.rows == 1 ? cols : std::min(cols, kColumns), parts = (cols + most - 1) / most;
  for_each_part(rows / tile.rows * parts, tile.rows * most, [&](int64_t begin, int64_t end) {
    std::vector<float> numbers(static_cast<size_t>(most / tile.cols));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t band = i / parts, col = i % parts * most, here = std::min(most, cols - col);
      f({band * tile.rows, col, here, band * (cols / tile.cols) + col / tile.cols, here / tile.cols},
        numbers.data());
    }
  });
}

void quantize_tiles(const Rows& x, Tile tile, kernels::Fp8 format, uint8_t* codes,
                    c10::function_ref<void(float*, int64_t, int64_t)> to_scales) {
  const kernels::cpu::Fp8Build& build = kernels::cpu::best_fp8_build();
  for_each_band(x.rows, x.cols, tile, [&](const Band& band, float* numbers) {
    const void* const in = x.at(band.row, band.col);
    build.find_block_magnitudes(
        {in, x.element, tile.rows, band.cols, x.cols, tile.cols, /*keeps_nan=*/false, numbers});
    to_scales(numbers, band.count, band.index);
    build.quantize_blocks({in, x.element, tile.rows, band.cols, x.cols, tile.cols, numbers,
                           codes + band.row * x.cols + band.col, format});
  });
}

bool restore_tiles(const CodedMatrix& matrix, Tile tile, FillScales fill_scales, const at::Tensor& out) {
  const kernels::cpu::Fp8Build& build = kernels::cpu::best_fp8_build();
  const kernels::Element element = element_of(out.scalar_type());
  const int64_t per_byte = matrix.format == kernels::CodeFormat::kE2M1 ? 2 : 1;
  auto* const to = static_cast<char*>(out.mutable_data_ptr());
  std::atomic<bool> is_exact = true;
  for_each_band(matrix.rows, matrix.cols, tile, [&](const Band& band, float* numbers) {
    if (!is_exact.load(std::memory_order_relaxed)) return;
    fill_scales(numbers, band.count, band.index);
    const int64_t at = band.row * matrix.cols + band.col;
    const bool is_here =
        build.restore_blocks({matrix.codes + at / per_byte, matrix.format, tile.rows, band.cols, matrix.cols,
                              tile.cols, numbers, to + at * kernels::element_size(element), element});
    if (!is_here) is_exact.store(false, std::memory_order_relaxed);
  });
  return is_exact;
}

void check_tiles(const at::Tensor& codes, Tile tile, const at::Tensor& scales, at::ScalarType scale_dtype,
                 int64_t values_per_byte) {
  TORCH_CHECK_VALUE(codes.defined() && codes.dim() > 0,
                    "dequantize_fp8: the codes are no matrix; give what the quantizing function returned");
  TORCH_CHECK_VALUE(tile.rows > 0, "dequantize_fp8: blocks have ", tile.rows,
                    " rows; give block_rows as it was returned");
  // The kernels know no other width.
  TORCH_CHECK_VALUE(tile.cols == 1 || tile.cols == 16 || tile.cols == 32 || tile.cols == 128,
                    "dequantize_fp8: blocks have ", tile.cols,
                    " columns; give block_cols as it was returned");
  const int64_t cols = codes.size(-1) * values_per_byte,
                rows = cols == 0 ? 0 : codes.numel() / codes.size(-1);
  TORCH_CHECK_VALUE(rows % tile.rows == 0 && cols % tile.cols == 0, "dequantize_fp8: codes of ",
                    codes.sizes(), " are no whole blocks of ", tile.rows, " x ", tile.cols, " values");
  const int64_t tiles = rows / tile.rows * (cols / tile.cols);
  TORCH_CHECK_VALUE(scales.defined() && scales.device() == codes.device() && scales.is_contiguous() &&
                        scales.numel() == tiles,
                    "dequantize_fp8: codes of ", codes.sizes(), " in blocks of ", tile.rows, " x ", tile.cols,
                    " need ", tiles, " contiguous scales on ", codes.device(), "; they have ",
                    scales.defined() ? c10::str(scales.sizes(), " on ", scales.device()) : "none");
  TORCH_CHECK_TYPE(scales.scalar_type() == scale_dtype, "dequantize_fp8: the scales have dtype ",
                   scales.scalar_type(), "; they are ", scale_dtype);
}

void check_one_scale(const at::Tensor& scale, at::Device device) {
  TORCH_CHECK_VALUE(
      scale.defined() && scale.device() == device && scale.numel() == 1 && scale.scalar_type() == at::kFloat,
      "dequantize_fp8: the scale must be one float32 on ", device, "; it is ",
      scale.defined() ? c10::str(scale.scalar_type(), " ", scale.sizes(), " on ", scale.device())
                      : "undefined");
}

void check_fp8_codes(const at::Tensor& codes) {
  TORCH_CHECK_VALUE(codes.defined(),
                    "dequantize_fp8: got no codes; give what the quantizing function returned");
  TORCH_CHECK_TYPE(codes.scalar_type() == at::kFloat8_e4m3fn || codes.scalar_type() == at::kFloat8_e5m2,
                   "dequantize_fp8: the codes have dtype ", codes.scalar_type(),
                   "; they are Float8_e4m3fn or Float8_e5m2");
}

}  // namespace mantissa::fp8
