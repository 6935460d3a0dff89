#include "mantissa/quant/quantized_int8.h"

#include <cmath>
#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/quant/operations_int8_internal.h"
#include "mantissa/quant/packed_formats_internal.h"
#include "mantissa/quant/quantized_4bit_internal.h"

namespace mantissa {
namespace {

const kernels::aten::DeviceKernels& kernels_of(const at::Tensor& tensor) {
  return kernels::aten::device_kernels(tensor.device().type());
}

bool is_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

/// Quantizes rows whose values are adjacent, with the kernel of their device.
QuantizedInt8 quantize_rows(const at::Tensor& rows, float threshold) {
  const at::TensorOptions on = rows.options();
  QuantizedInt8 result;
  result.codes = at::empty(rows.sizes(), on.dtype(at::kChar));
  result.scales = at::empty({rows.size(0)}, on.dtype(at::kFloat));
  at::Tensor outliers;
  if (threshold > 0) outliers = at::zeros({rows.size(1)}, on.dtype(at::kByte));
  kernels_of(rows).quantize_int8(
      {rows.const_data_ptr(), element_of(rows.scalar_type()), rows.size(0), rows.size(1), rows.stride(0),
       threshold, result.codes.mutable_data_ptr<int8_t>(), result.scales.mutable_data_ptr<float>()},
      threshold > 0 ? outliers.mutable_data_ptr<uint8_t>() : nullptr);
  if (threshold > 0) {
    result.outlier_cols = outliers.nonzero().view({-1});
    result.codes.index_fill_(1, result.outlier_cols, 0);
  }
  return result;
}

void check_product(const char* function, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_TYPE(a.scalar_type() == at::kChar && b.scalar_type() == at::kChar, function,
                   ": the codes have the dtypes ", a.scalar_type(), " and ", b.scalar_type(),
                   "; both have to be int8");
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), function,
                    ": the codes have the shapes ", a.sizes(), " and ", b.sizes(),
                    "; they have to be [m, k] and [n, k]");
  TORCH_CHECK_VALUE(a.device() == b.device(), function, ": the codes are on ", a.device(), " and ",
                    b.device(), "; move one of them");
  TORCH_CHECK_VALUE(a.size(1) <= kernels::kMaxInt8Depth, function, ": sums of ", a.size(1),
                    " products may overflow int32; split the inner dimension into parts of at most ",
                    kernels::kMaxInt8Depth);
}

/// Throws unless there is a scale for each row, so that no kernel reads past their end.
void check_scales(const char* function, const QuantizedInt8& quantized) {
  const at::Tensor &codes = quantized.codes, &scales = quantized.scales;
  TORCH_CHECK_VALUE(codes.defined() && codes.dim() == 2, function,
                    ": the codes are no matrix; give everything that quantize_int8() returns");
  TORCH_CHECK_VALUE(
      scales.defined() && scales.dim() == 1 && scales.numel() == codes.size(0) &&
          scales.scalar_type() == at::kFloat && scales.device() == codes.device(),
      function, ": the scales are ",
      scales.defined() ? c10::str(scales.scalar_type(), " ", scales.sizes(), " on ", scales.device())
                       : "undefined",
      "; codes of ", codes.sizes(), " on ", codes.device(), " need float32 [", codes.size(0), "] there");
}

}  // namespace

namespace quant {

at::Tensor dequantize_rows_int8(const QuantizedInt8& quantized, const std::optional<at::Tensor>& rows,
                                at::ScalarType dtype) {
  check_scales("dequantize_int8", quantized);
  auto* const kernel = kernels_of(quantized.codes).dequantize_int8;
  if (kernel == nullptr) return dequantize_rows_int8_by_operations(quantized, rows, dtype);
  const at::Tensor codes = quantized.codes.resolve_neg().contiguous(),
                   scales = quantized.scales.resolve_neg().contiguous();
  const at::Tensor numbers = rows ? rows->resolve_neg().contiguous() : at::Tensor();
  const int64_t count = rows ? numbers.numel() : codes.size(0);
  at::Tensor out =
      at::empty({count, codes.size(1)}, codes.options().dtype(is_float(dtype) ? dtype : at::kFloat));
  if (out.numel() > 0)
    kernel({.codes = codes.const_data_ptr<int8_t>(),
            .scales = scales.const_data_ptr<float>(),
            .rows = rows ? numbers.const_data_ptr<int64_t>() : nullptr,
            .count = count,
            .cols = codes.size(1),
            .values = out.mutable_data_ptr(),
            .element = element_of(out.scalar_type())});
  return out.to(dtype);
}

}  // namespace quant

int64_t QuantizedInt8::nbytes() const {
  const auto bytes = [](const at::Tensor& x) { return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0; };
  return bytes(codes) + bytes(scales) + bytes(outlier_cols);
}

QuantizedInt8 QuantizedInt8::to(at::Device device) const {
  return {codes.to(device), scales.to(device),
          outlier_cols.defined() ? outlier_cols.to(device) : at::Tensor()};
}

QuantizedInt8 int8_vectorwise_quant(const at::Tensor& matrix, double threshold) {
  TORCH_CHECK_VALUE(matrix.dim() == 2, "int8_vectorwise_quant: the tensor has ", matrix.dim(),
                    " dimensions; give a matrix [rows, cols]");
  TORCH_CHECK_TYPE(is_float(matrix.scalar_type()), "int8_vectorwise_quant: the matrix has dtype ",
                   matrix.scalar_type(), "; cast it to float32, float16 or bfloat16");
  TORCH_CHECK_VALUE(threshold >= 0, "int8_vectorwise_quant: the threshold is ", threshold,
                    "; give a positive one, or 0 for none");
  const at::Tensor values = matrix.detach().resolve_neg();
  if (kernels_of(values).quantize_int8 == nullptr)
    return quant::quantize_int8_by_operations(values, threshold);
  if (values.numel() == 0) {
    const at::TensorOptions on = values.options();
    QuantizedInt8 empty{at::empty(values.sizes(), on.dtype(at::kChar)),
                        at::zeros({values.size(0)}, on.dtype(at::kFloat)),
                        {}};
    if (threshold > 0) empty.outlier_cols = at::empty({0}, on.dtype(at::kLong));
    return empty;
  }
  return quantize_rows(values.stride(1) == 1 ? values : values.contiguous(), static_cast<float>(threshold));
}

QuantizedInt8 quantize_int8(const at::Tensor& weight, std::string_view name) {
  TORCH_CHECK_VALUE(weight.defined() && weight.dim() == 2, "quantize_int8: ", name,
                    " is no matrix; give a weight [out, in]");
  TORCH_CHECK_TYPE(is_float(weight.scalar_type()), "quantize_int8: ", name, " has dtype ",
                   weight.scalar_type(), "; cast it to float16");
  const at::Tensor half = weight.detach().to(at::kHalf);
  QuantizedInt8 result = int8_vectorwise_quant(half);
  if (result.scales.isfinite().all().item<bool>()) return result;
  const bool was_finite = weight.isfinite().all().item<bool>();
  TORCH_CHECK_VALUE(!was_finite, "quantize_int8: ", name,
                    " has values that float16 cannot hold (above 65504); scale it down first");
  const at::Tensor bad = weight.detach().isfinite().logical_not().reshape({-1});
  TORCH_CHECK_VALUE(false, "quantize_int8: ", name, " has ", bad.sum().item<int64_t>(),
                    " values that are inf or nan, the first at index ",
                    bad.to(at::kByte).argmax().item<int64_t>(), " of ", weight.numel(),
                    "; repair the weight first");
}

at::Tensor dequantize_int8(const QuantizedInt8& quantized, at::ScalarType dtype) {
  return quant::dequantize_rows_int8(quantized, std::nullopt, dtype);
}

at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b) {
  check_product("int8_matmul", a, b);
  auto* const kernel = kernels_of(a).product_int8;
  if (kernel == nullptr || a.numel() == 0 || b.numel() == 0) return quant::int8_matmul_by_operations(a, b);
  const at::Tensor left = a.resolve_neg().contiguous(), right = b.resolve_neg().contiguous();
  at::Tensor sums = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
  kernels::ProductInt8 p = product_of_codes(left, right);
  p.sums = sums.mutable_data_ptr<int32_t>();
  kernel(p);
  return sums;
}

at::Tensor int8_scaled_matmul(const QuantizedInt8& a, const QuantizedInt8& b, const at::Tensor& bias,
                              at::ScalarType dtype) {
  for (const QuantizedInt8* const each : {&a, &b}) check_scales("int8_scaled_matmul", *each);
  check_product("int8_scaled_matmul", a.codes, b.codes);
  TORCH_CHECK_VALUE(
      !bias.defined() ||
          (bias.dim() == 1 && bias.size(0) == b.codes.size(0) && bias.device() == b.codes.device()),
      "int8_scaled_matmul: bias has the shape ", bias.defined() ? bias.sizes() : at::IntArrayRef(),
      "; it has to be [", b.codes.size(0), "] on the device of the codes");
  TORCH_CHECK_TYPE(is_float(dtype), "int8_scaled_matmul: cannot return ", dtype,
                   "; choose float32, float16 or bfloat16");
  auto* const kernel = kernels_of(a.codes).product_int8;
  if (kernel == nullptr || a.codes.numel() == 0 || b.codes.numel() == 0)
    return quant::scaled_by_operations(int8_matmul(a.codes, b.codes), a.scales, b.scales, bias, dtype);
  const at::Tensor left = a.codes.resolve_neg().contiguous(), right = b.codes.resolve_neg().contiguous();
  const at::Tensor a_scales = a.scales.resolve_neg().contiguous(),
                   b_scales = b.scales.resolve_neg().contiguous();
  at::Tensor addend = bias;
  if (bias.defined()) addend = (is_float(bias.scalar_type()) ? bias : bias.to(at::kFloat)).resolve_neg();
  at::Tensor out = at::empty({left.size(0), right.size(0)}, left.options().dtype(dtype));
  kernels::ProductInt8 p = product_of_codes(left, right);
  p.a_scales = a_scales.const_data_ptr<float>();
  p.b_scales = b_scales.const_data_ptr<float>();
  p.scale = 1.0F / (127 * 127);
  if (addend.defined())
    p.addend = {addend.const_data_ptr(), element_of(addend.scalar_type()), 0, addend.stride(0)};
  p.out = {out.mutable_data_ptr(), element_of(dtype), out.stride(0), 1};
  kernel(p);
  return out;
}

}  // namespace mantissa
