#include "mantissa/fp8/mxfp8.h"

#include <bit>

#include <ATen/ops/empty.h>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/operators_internal.h"
#include "mantissa/fp8/restore_internal.h"
#include "mantissa/fp8/tiles_internal.h"

namespace mantissa {
namespace {

constexpr int64_t kMXBlock = 32;
constexpr uint32_t kBitsOfTwoToMinus127 = 0x400000;  // the bits of 2^-127

/// Returns 2^(exponent - 127), also for the subnormal 2^-127.
float power_of_two(uint32_t exponent) {
  return std::bit_cast<float>(exponent == 0     ? kBitsOfTwoToMinus127
                              : exponent == 255 ? 0x7fc00000U
                                                : exponent << 23);
}

/// Returns 2^(127 - exponent).
float scale_of(uint32_t exponent) {
  return exponent == 255 ? power_of_two(255) : power_of_two(254 - exponent);
}

}  // namespace

uint8_t e8m0_up(float value) {
  const auto bits = std::bit_cast<uint32_t>(value) & 0x7fffffffU;
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7fffffU;
  if (bits > 0x7f800000U) return 255;
  if (exponent >= 254) return 254;
  const bool is_up = exponent == 0 ? mantissa > kBitsOfTwoToMinus127 : mantissa > 0;
  return static_cast<uint8_t>(exponent + (is_up ? 1 : 0));
}

namespace {

QuantizedMXFP8 quantized(const at::Tensor& x, at::ScalarType dtype, fp8::Tile tile, const char* name) {
  const float inverse_max = 1 / fp8_max(dtype);
  const fp8::Rows rows = fp8::rows_of(x, name);
  fp8::check_blocks(rows, tile.rows, tile.cols, name);
  if (!fp8::uses_cpu_kernels(x)) return fp8::operators::quantize_mxfp8(rows, dtype, tile);
  const auto options = rows.tensor.options();
  QuantizedMXFP8 out = {
      at::empty(x.sizes(), options.dtype(dtype)),
      at::empty({rows.rows / tile.rows, rows.cols / tile.cols}, options.dtype(at::kFloat8_e8m0fnu)),
      tile.rows, tile.cols};
  auto* const exponents = static_cast<uint8_t*>(out.exponents.mutable_data_ptr());
  fp8::quantize_tiles(rows, tile, fp8::format_of_dtype(dtype),
                      static_cast<uint8_t*>(out.codes.mutable_data_ptr()),
                      [&](float* numbers, int64_t count, int64_t index) {
                        for (int64_t i = 0; i < count; ++i) {
                          exponents[index + i] = e8m0_up(numbers[i] * inverse_max);
                          numbers[i] = scale_of(exponents[index + i]);
                        }
                      });
  return out;
}

}  // namespace

QuantizedMXFP8 quantize_mxfp8(const at::Tensor& x, at::ScalarType dtype, bool two_dimensional) {
  return quantized(x, dtype, {two_dimensional ? kMXBlock : 1, kMXBlock}, "quantize_mxfp8");
}

QuantizedMXFP8 quantize_mxfp8_columns(const at::Tensor& x, at::ScalarType dtype) {
  return quantized(x, dtype, {kMXBlock, 1}, "quantize_mxfp8_columns");
}

bool fp8::restore(const QuantizedMXFP8& quantized, const at::Tensor& out) {
  const auto* const exponents = static_cast<const uint8_t*>(quantized.exponents.const_data_ptr());
  return restore_tiles(
      coded_matrix(quantized.codes), {quantized.block_rows, quantized.block_cols},
      [&](float* scales, int64_t count, int64_t index) {
        for (int64_t i = 0; i < count; ++i) scales[i] = power_of_two(exponents[index + i]);
      },
      out);
}

at::Tensor dequantize_fp8(const QuantizedMXFP8& quantized, at::ScalarType dtype) {
  fp8::check_fp8_codes(quantized.codes);
  fp8::check_tiles(quantized.codes, {quantized.block_rows, quantized.block_cols}, quantized.exponents,
                   at::kFloat8_e8m0fnu);
  if (!fp8::uses_cpu_kernels(quantized.codes)) return fp8::operators::restored(quantized).to(dtype);
  return fp8::restored_in_float32(quantized).to(dtype);
}

}  // namespace mantissa
