#include "bitsandbytes_ops.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "bitsandbytes_optimizer.h"
#include "mantissa/kernels/aten/override_warning_internal.h"
#include "mantissa/quant/linear_4bit.h"
#include "mantissa/quant/quantized_4bit.h"
#include "mantissa/quant/quantized_int8.h"

// bitsandbytes registers its kernels for the key CPU. A library of the dispatcher that registers the same
// operators later takes their place, and its destruction brings the former ones back. The kernels compute
// without autograd, because bitsandbytes calls its operators inside of autograd functions.
namespace mantissa::python {
namespace {

using at::Tensor;

Format format_of_name(const std::string& quant_type) {
  TORCH_CHECK_VALUE(quant_type == "nf4" || quant_type == "fp4", "quant_type is '", quant_type,
                    "'; choose nf4 or fp4");
  return quant_type == "nf4" ? Format::kNF4 : Format::kFP4;
}

/// Returns codes as bytes in one column.
Tensor as_bytes(const Tensor& codes) { return codes.contiguous().view(at::kByte).view({-1, 1}); }

Quantized4Bit weight_of(const Tensor& codes, const Tensor& absmax, at::IntArrayRef shape, int64_t blocksize,
                        Format format, at::ScalarType dtype) {
  Quantized4Bit weight{.codes = as_bytes(codes),
                       .absmax = absmax.contiguous().view({-1}),
                       .nested_absmax = {},
                       .nested_map = {},
                       .nested_offset = {},
                       .shape = shape.vec(),
                       .dtype = dtype,
                       .blocksize = blocksize,
                       .format = format};
  check_options({.format = format, .blocksize = blocksize});
  const int64_t count = weight.numel();
  TORCH_CHECK_VALUE(
      weight.codes.numel() == (count + 1) / 2 && weight.absmax.numel() == (count + blocksize - 1) / blocksize,
      "a weight of shape ", shape, " in blocks of ", blocksize, " does not have ", weight.codes.numel(),
      " bytes of codes and ", weight.absmax.numel(), " scales");
  return weight;
}

/// Returns a weight whose scales are in 8 bits; `absmax` are the scales of those.
Quantized4Bit nested_weight_of(const Tensor& codes, const Tensor& absmax, at::IntArrayRef shape,
                               int64_t blocksize, Format format, at::ScalarType dtype,
                               const Tensor& absmax_8bit, const Tensor& code, const Tensor& offset) {
  Quantized4Bit weight = weight_of(codes, absmax_8bit, shape, blocksize, format, dtype);
  weight.nested_absmax = absmax.to(at::kFloat).contiguous().view({-1});
  weight.nested_map = code.to(at::kFloat).contiguous();
  weight.nested_offset = offset.to(at::kFloat);
  const int64_t needed = (weight.absmax.numel() + kNestedBlocksize - 1) / kNestedBlocksize;
  TORCH_CHECK_VALUE(weight.absmax.scalar_type() == at::kByte && weight.nested_map.numel() == 256 &&
                        weight.nested_absmax.numel() == needed,
                    "gemm_4bit: ", weight.absmax.numel(), " scales as ", weight.absmax.scalar_type(),
                    " with ", weight.nested_absmax.numel(),
                    " scales of their own are not those of double quantization");
  return weight;
}

std::tuple<Tensor, Tensor> quantize_4bit(const Tensor& a, int64_t blocksize, const std::string& quant_type,
                                         at::ScalarType quant_storage) {
  const at::NoGradGuard no_grad;
  Quantized4Bit made = mantissa::quantize_4bit(
      a, {.format = format_of_name(quant_type), .blocksize = blocksize, .quant_storage = quant_storage});
  return {std::move(made.codes), std::move(made.absmax)};
}

Tensor dequantize_4bit(const Tensor& a, const Tensor& absmax, int64_t blocksize,
                       const std::string& quant_type, at::IntArrayRef shape, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  return mantissa::dequantize_4bit(
      weight_of(a, absmax.to(at::kFloat), shape, blocksize, format_of_name(quant_type), dtype), dtype);
}

Tensor gemm_4bit(const Tensor& a, const Tensor& b, at::IntArrayRef shape, const Tensor& absmax,
                 int64_t blocksize, const std::string& quant_type, const std::optional<Tensor>& bias,
                 const std::optional<Tensor>& absmax_8bit, const std::optional<Tensor>& absmax_code,
                 const std::optional<Tensor>& absmax_offset) {
  const at::NoGradGuard no_grad;
  const Format format = format_of_name(quant_type);
  if (!absmax_8bit)
    return linear_4bit(a, weight_of(b, absmax.to(at::kFloat), shape, blocksize, format, a.scalar_type()),
                       bias);
  TORCH_CHECK_VALUE(absmax_code && absmax_offset,
                    "gemm_4bit: absmax_8bit needs absmax_code and absmax_offset");
  return linear_4bit(a,
                     nested_weight_of(b, absmax, shape, blocksize, format, a.scalar_type(), *absmax_8bit,
                                      *absmax_code, *absmax_offset),
                     bias);
}

/// Whether the weight has the layout that bitsandbytes gives it for inference on a CPU with AVX512-BF16. Nothing but its
/// scales says so: they are bfloat16, [blocks of a row, rows].
bool is_packed_for_cpu(const Tensor& absmax) {
  return absmax.dim() == 2 && absmax.scalar_type() == at::kBFloat16;
}

/// Returns the codes of a packed weight in the usual order. For each 32 rows and each pair of columns, a packed weight has
/// 32 bytes: the low halves hold the pairs of the first 16 rows, the high halves those of the last 16 rows.
Tensor unpacked_codes(const Tensor& codes, at::IntArrayRef shape) {
  constexpr int64_t kRows = 32;
  TORCH_CHECK_VALUE(shape.size() == 2 && shape[0] % kRows == 0 && shape[1] % 2 == 0 &&
                        codes.numel() == shape[0] * shape[1] / 2,
                    "gemv_4bit: ", codes.numel(), " bytes of codes are not those of a weight of shape ",
                    shape, " that was packed for the CPU");
  const int64_t pairs = shape[1] / 2;
  const Tensor bytes = codes.contiguous().view(at::kByte).view({shape[0] / kRows, pairs, kRows / 2, 2});
  const Tensor first = bytes.select(3, 0), second = bytes.select(3, 1);
  const Tensor low = first.bitwise_left_shift(4).bitwise_or(second.bitwise_and(15)),
               high = first.bitwise_and(240).bitwise_or(second.bitwise_right_shift(4));
  return at::cat({low, high}, 2).transpose(1, 2).contiguous();
}

/// The table decides the format, as in bitsandbytes: value 1 is negative in NF4 only.
Tensor gemv_4bit(const Tensor& a, const Tensor& b, at::IntArrayRef shape, const Tensor& absmax,
                 const Tensor& code, int64_t blocksize) {
  const at::NoGradGuard no_grad;
  const Format format = code[1].item<float>() > 0 ? Format::kFP4 : Format::kNF4;
  const bool is_packed = is_packed_for_cpu(absmax);
  return linear_4bit(
      a, weight_of(is_packed ? unpacked_codes(b, shape) : b, (is_packed ? absmax.t() : absmax).to(at::kFloat),
                   shape, blocksize, format, a.scalar_type()));
}

at::DimVector sizes_of_product(const Tensor& a, const Tensor& b) {
  TORCH_CHECK_VALUE(a.dim() >= 1 && b.dim() == 2, "the factors have the shapes ", a.sizes(), " and ",
                    b.sizes(), "; they have to be [..., k] and [n, k]");
  at::DimVector sizes(a.sizes().begin(), a.sizes().end() - 1);
  sizes.push_back(b.size(0));
  return sizes;
}

Tensor int8_linear_matmul(const Tensor& a, const Tensor& b) {
  const at::NoGradGuard no_grad;
  const at::DimVector sizes = sizes_of_product(a, b);
  return int8_matmul(a.reshape({-1, a.size(-1)}), b).view(sizes);
}

Tensor int8_scaled_mm(const Tensor& a, const Tensor& b, const Tensor& row_stats, const Tensor& col_stats,
                      const std::optional<Tensor>& bias, std::optional<at::ScalarType> dtype) {
  const at::NoGradGuard no_grad;
  const at::DimVector sizes = sizes_of_product(a, b);
  const QuantizedInt8 rows{a.reshape({-1, a.size(-1)}), row_stats.to(at::kFloat).reshape({-1}), {}},
      columns{b, col_stats.to(at::kFloat).reshape({-1}), {}};
  TORCH_CHECK_VALUE(rows.scales.numel() == rows.codes.size(0) && columns.scales.numel() == b.size(0),
                    "int8_scaled_mm: ", rows.scales.numel(), " and ", columns.scales.numel(),
                    " scales do not fit factors of ", a.sizes(), " and ", b.sizes());
  return int8_scaled_matmul(rows, columns, bias.value_or(Tensor()), dtype.value_or(at::kHalf)).view(sizes);
}

std::tuple<Tensor, Tensor, std::optional<Tensor>> int8_vectorwise_quant(const Tensor& a, double threshold) {
  const at::NoGradGuard no_grad;
  const QuantizedInt8 made = mantissa::int8_vectorwise_quant(a, threshold);
  const auto columns = threshold > 0 ? std::make_optional(made.outlier_cols) : std::nullopt;
  return {made.codes, made.scales, columns};
}

std::unique_ptr<torch::Library> register_kernels() {
  const WithoutOverrideWarning handler;
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "bitsandbytes", c10::DispatchKey::CPU,
                                                  __FILE__, __LINE__);
  library->impl("quantize_4bit", quantize_4bit);
  library->impl("dequantize_4bit", dequantize_4bit);
  library->impl("gemm_4bit", gemm_4bit);
  library->impl("gemv_4bit", gemv_4bit);
  library->impl("int8_linear_matmul", int8_linear_matmul);
  library->impl("int8_scaled_mm", int8_scaled_mm);
  library->impl("int8_vectorwise_quant", int8_vectorwise_quant);
  library->impl("optimizer_update_8bit_blockwise", optimizer_update_8bit_blockwise);
  return library;
}

}  // namespace

bool use_bitsandbytes_kernels(bool on) {
  // Never destroyed: at the end of a process the dispatcher may be gone before.
  static auto& library = *new std::unique_ptr<torch::Library>;
  const bool was_on = library != nullptr;
  if (on == was_on) return was_on;
  if (!on) {
    library.reset();
    return was_on;
  }
  TORCH_CHECK(c10::Dispatcher::singleton().findSchema({"bitsandbytes::gemm_4bit", ""}),
              "bitsandbytes_kernels: bitsandbytes 0.50 or later is not imported; import it first");
  library = register_kernels();
  return was_on;
}

}  // namespace mantissa::python
