#include "mantissa/fp8/block_scaling.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "mantissa/core/formats.h"
#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/operators_internal.h"
#include "mantissa/fp8/restore_internal.h"
#include "mantissa/fp8/tiles_internal.h"

namespace mantissa {
namespace {

constexpr int64_t kSize = 128;

fp8::Tile tile_of(Fp8Block block) {
  return {block == Fp8Block::k1x128 ? 1 : kSize, block == Fp8Block::k128x1 ? 1 : kSize};
}

}  // namespace

QuantizedFp8Blocks quantize_fp8_blocks(const at::Tensor& x, at::ScalarType dtype, Fp8Block block,
                                       const Float8BlockScaling& recipe) {
  const float max = fp8_max(dtype);
  const fp8::Rows rows = fp8::rows_of(x, "quantize_fp8_blocks");
  const fp8::Tile tile = tile_of(block);
  fp8::check_blocks(rows, tile.rows, tile.cols, "quantize_fp8_blocks");
  const Format format = format_of(x.scalar_type()).value();
  const Fp8ScaleOptions scaling = {recipe.power_of_two, recipe.epsilon,
                                   static_cast<float>(info(format).largest)};
  if (!fp8::uses_cpu_kernels(x)) return fp8::operators::quantize_blocks(rows, dtype, block, tile, scaling);
  const auto options = rows.tensor.options();
  QuantizedFp8Blocks out = {
      at::empty(x.sizes(), options.dtype(dtype)),
      at::empty({rows.rows / tile.rows, rows.cols / tile.cols}, options.dtype(at::kFloat)), block};
  float* const scale_inv = out.scale_inv.mutable_data_ptr<float>();
  fp8::quantize_tiles(rows, tile, fp8::format_of_dtype(dtype),
                      static_cast<uint8_t*>(out.codes.mutable_data_ptr()),
                      [&](float* numbers, int64_t count, int64_t index) {
                        for (int64_t i = 0; i < count; ++i) {
                          const float scale = fp8_scale(numbers[i], max, scaling);
                          scale_inv[index + i] = 1 / scale;
                          numbers[i] = scale;
                        }
                      });
  return out;
}

bool fp8::restore(const QuantizedFp8Blocks& quantized, const at::Tensor& out) {
  const float* const scale_inv = quantized.scale_inv.const_data_ptr<float>();
  return restore_tiles(
      coded_matrix(quantized.codes), tile_of(quantized.block),
      [&](float* scales, int64_t count, int64_t index) {
        std::copy(scale_inv + index, scale_inv + index + count, scales);
      },
      out);
}

at::Tensor dequantize_fp8(const QuantizedFp8Blocks& quantized, at::ScalarType dtype) {
  fp8::check_fp8_codes(quantized.codes);
  fp8::check_tiles(quantized.codes, tile_of(quantized.block), quantized.scale_inv, at::kFloat);
  if (!fp8::uses_cpu_kernels(quantized.codes)) return fp8::operators::restored(quantized).to(dtype);
  return fp8::restored_in_float32(quantized).to(dtype);
}

}  // namespace mantissa
