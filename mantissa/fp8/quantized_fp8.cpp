#include "mantissa/fp8/quantized_fp8.h"

#include <algorithm>
#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/operators_internal.h"
#include "mantissa/fp8/restore_internal.h"
#include "mantissa/fp8/tiles_internal.h"
#include "mantissa/kernels/cpu/fp8.h"

namespace mantissa {
namespace {

void check_scalar(const at::Tensor& scalar, at::Device device, const char* name) {
  TORCH_CHECK_VALUE(scalar.defined() && scalar.device() == device && scalar.numel() == 1 &&
                        scalar.scalar_type() == at::kFloat,
                    "quantize_fp8: ", name, " must be one float32 on ", device,
                    scalar.defined() ? ", but has shape " : ", but is undefined",
                    scalar.defined() ? c10::str(scalar.sizes(), " and dtype ", scalar.scalar_type()) : "");
}

at::Tensor codes_like(const fp8::Rows& x, at::ScalarType dtype) {
  return at::empty(x.tensor.sizes(), x.tensor.options().dtype(dtype));
}

/// Returns the codes, and sets the magnitudes.
at::Tensor quantized(const fp8::Rows& x, at::ScalarType dtype, float scale, kernels::Magnitudes& found) {
  at::Tensor codes = codes_like(x, dtype);
  found = kernels::cpu::quantize_fp8({x.tensor.const_data_ptr(), x.element,
                                      static_cast<uint8_t*>(codes.mutable_data_ptr()), x.tensor.numel(),
                                      fp8::format_of_dtype(dtype), scale});
  return codes;
}

}  // namespace

QuantizedFp8 quantize_fp8(const at::Tensor& x, at::ScalarType dtype, const at::Tensor& scale,
                          const at::Tensor& amax) {
  fp8_max(dtype);  // for its error
  const fp8::Rows rows = fp8::rows_of(x, "quantize_fp8");
  check_scalar(scale, x.device(), "scale");
  if (amax.defined()) check_scalar(amax, x.device(), "amax");
  if (!fp8::uses_cpu_kernels(x)) return fp8::operators::quantize(rows, dtype, scale, amax);
  const float factor = *scale.const_data_ptr<float>();
  kernels::Magnitudes found;
  QuantizedFp8 result = {quantized(rows, dtype, factor, found), at::scalar_tensor(1 / factor, at::kFloat)};
  if (amax.defined()) {
    float& largest = *amax.mutable_data_ptr<float>();
    largest = std::max(largest, found.largest);
  }
  return result;
}

QuantizedFp8 quantize_fp8_current(const at::Tensor& x, at::ScalarType dtype, const Fp8ScaleOptions& options) {
  const float max = fp8_max(dtype);
  const fp8::Rows rows = fp8::rows_of(x, "quantize_fp8_current");
  if (!fp8::uses_cpu_kernels(x)) return fp8::operators::quantize_current(rows, dtype, options);
  const kernels::Magnitudes found =
      kernels::cpu::find_magnitudes({rows.tensor.const_data_ptr(), rows.element, rows.tensor.numel()});
  return quantize_fp8(rows.tensor, dtype,
                      at::scalar_tensor(fp8_scale(found.largest, max, options), at::kFloat));
}

at::Tensor cast_to_fp8(const at::Tensor& x, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(x.defined(), "cast_to_fp8: got an undefined tensor");
  return quantize_fp8(x, dtype, at::scalar_tensor(1, x.options().dtype(at::kFloat))).codes;
}

bool fp8::restore(const QuantizedFp8& quantized, const at::Tensor& out) {
  const CodedMatrix matrix = coded_matrix(quantized.codes);
  const kernels::Element element = element_of(out.scalar_type());
  auto* const to = static_cast<char*>(out.mutable_data_ptr());
  // Rows of this length, and the rest. bfloat16 has every number of the formats.
  constexpr int64_t kLength = 128;
  std::array<float, kLength> ones{};
  ones.fill(1);
  const auto restore_rows = [&](int64_t at, int64_t rows, int64_t length, int64_t width) {
    kernels::cpu::best_fp8_build().restore_blocks({matrix.codes + at, matrix.format, rows, length, length,
                                                   width, ones.data(),
                                                   to + at * kernels::element_size(element), element});
  };
  const int64_t rows = out.numel() / kLength, rest = out.numel() % kLength;
  for_each_part(rows, kLength, [&](int64_t begin, int64_t end) {
    restore_rows(begin * kLength, end - begin, kLength, kLength);
  });
  if (rest > 0) restore_rows(rows * kLength, 1, rest, 1);
  return true;
}

at::Tensor dequantize_fp8(const QuantizedFp8& quantized, at::ScalarType dtype) {
  fp8::check_fp8_codes(quantized.codes);
  fp8::check_one_scale(quantized.scale_inv, quantized.codes.device());
  if (!fp8::uses_cpu_kernels(quantized.codes))
    return (fp8::operators::restored(quantized) * quantized.scale_inv).to(dtype);
  const at::Tensor codes = quantized.codes.contiguous();
  at::Tensor out = at::empty(codes.sizes(), codes.options().dtype(at::kFloat));
  kernels::cpu::dequantize_fp8(
      {static_cast<const uint8_t*>(codes.const_data_ptr()), out.mutable_data_ptr<float>(), codes.numel(),
       fp8::format_of_dtype(codes.scalar_type()), *quantized.scale_inv.const_data_ptr<float>()});
  return out.to(dtype);
}

}  // namespace mantissa
