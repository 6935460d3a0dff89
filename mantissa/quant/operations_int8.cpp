#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "mantissa/quant/operations_int8_internal.h"

namespace mantissa::quant {

QuantizedInt8 quantize_int8_by_operations(const at::Tensor& matrix, double threshold) {
  const at::Tensor values = matrix.to(at::kFloat), magnitudes = values.abs();
  QuantizedInt8 result;
  at::Tensor counted = magnitudes;
  if (threshold > 0) {
    const at::Tensor outliers = magnitudes >= threshold;
    result.outlier_cols = outliers.any(0).nonzero().view({-1});
    counted = magnitudes.masked_fill(outliers, 0);
  }
  result.scales = matrix.size(1) == 0 ? at::zeros({matrix.size(0)}, values.options()) : counted.amax(1);
  // Not 127 / scales, which libtorch computes as 127 * (1 / scales).
  const at::Tensor factors = at::where(result.scales == 0, at::zeros_like(result.scales),
                                       at::full_like(result.scales, 127) / result.scales)
                                 .clamp_max(std::numeric_limits<float>::max());
  const at::Tensor scaled = values * factors.unsqueeze(1);
  result.codes = scaled.masked_fill(scaled.isnan(), -127).clamp(-127, 127).round().to(at::kChar);
  if (result.outlier_cols.defined()) result.codes.index_fill_(1, result.outlier_cols, 0);
  return result;
}

at::Tensor dequantize_rows_int8_by_operations(const QuantizedInt8& quantized,
                                              const std::optional<at::Tensor>& rows, at::ScalarType dtype) {
  const at::Tensor codes = rows ? quantized.codes.index_select(0, *rows) : quantized.codes,
                   scales = rows ? quantized.scales.index_select(0, *rows) : quantized.scales;
  // In place: three matrices of this size would be in memory at once otherwise.
  return codes.to(at::kFloat).mul_(scales.unsqueeze(1)).div_(127).to(dtype);
}

at::Tensor int8_matmul_by_operations(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kSteps = 1024;  // 1024 * 128 * 128 = 2^24, up to which float32 has every integer
  at::Tensor sums = at::zeros({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
  for (int64_t k = 0; k < a.size(1); k += kSteps) {
    const int64_t depth = std::min(kSteps, a.size(1) - k);
    sums +=
        at::mm(a.narrow(1, k, depth).to(at::kFloat), b.narrow(1, k, depth).to(at::kFloat).t()).to(at::kInt);
  }
  return sums;
}

at::Tensor scaled_by_operations(const at::Tensor& sums, const at::Tensor& a_scales,
                                const at::Tensor& b_scales, const at::Tensor& bias, at::ScalarType dtype) {
  const at::Tensor rows = a_scales * (1.0F / (127 * 127));
  const at::Tensor scaled = sums.to(at::kFloat) * rows.unsqueeze(1) * b_scales;
  return (bias.defined() ? scaled + bias.to(at::kFloat) : scaled).to(dtype);
}

}  // namespace mantissa::quant
