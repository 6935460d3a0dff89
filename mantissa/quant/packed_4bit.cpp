#include "mantissa/quant/packed_4bit.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/linear_4bit.h"
#include "mantissa/quant/operations_4bit_internal.h"
#include "mantissa/quant/packed_formats_internal.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/quant/quantized_4bit_internal.h"

namespace mantissa {
namespace {

std::string describe(Format format, bool is_nested, int64_t blocksize) {
  return c10::str(info(format).name, is_nested ? "-dq" : "", ", blocks of ", blocksize);
}

/// Returns `weight` in `dtype`, in which its finite values must stay finite.
at::Tensor rounded(const at::Tensor& weight, at::ScalarType dtype, std::string_view name) {
  TORCH_CHECK_VALUE(weight.defined(), "quantize_4bit: ", name, " is undefined; give a tensor with values");
  TORCH_CHECK_TYPE(weight.is_floating_point(), "quantize_4bit: ", name, " has dtype ", weight.scalar_type(),
                   "; cast it to float32, float16 or bfloat16");
  const at::Tensor values = weight.detach();
  at::Tensor result = values.to(dtype);
  // A wider dtype holds every value, and quantize_4bit() finds those that were not finite before.
  if (values.element_size() < result.element_size() || values.scalar_type() == dtype) return result;
  TORCH_CHECK_VALUE(result.isfinite().all().item<bool>() || !values.isfinite().all().item<bool>(),
                    "quantize_4bit: ", name, " has values that ", info(*format_of(dtype)).name,
                    " cannot hold (above ", info(*format_of(dtype)).largest, "); scale it down first");
  return result;
}

/// Looks rows up, which all exist, with the kernel of their device: [n, width] of `dtype`.
at::Tensor rows_by_kernel(const Quantized4Bit& quantized, const at::Tensor& rows, at::ScalarType dtype) {
  static_assert(kNestedBlocksize == kernels::kNestedBlock4);
  const int64_t width = quant::width_of(quantized);
  const at::Tensor numbers = rows.resolve_neg().contiguous();
  at::Tensor out = at::empty({numbers.numel(), width}, quantized.codes.options().dtype(dtype));
  if (out.numel() == 0) return out;
  kernels::DequantizeRows4 problem{
      .weight = {.codes = static_cast<const uint8_t*>(quantized.codes.const_data_ptr()),
                 .rows = quantized.shape[0],
                 .cols = width,
                 .block = quantized.blocksize,
                 .code = quant::code_of(quantized.format)},
      .rows = numbers.const_data_ptr<int64_t>(),
      .count = numbers.numel(),
      .values = out.mutable_data_ptr(),
      .element = element_of(dtype)};
  if (quantized.is_nested()) {
    problem.nested = {
        quantized.absmax.const_data_ptr<uint8_t>(), quantized.nested_map.const_data_ptr<float>(),
        quantized.nested_absmax.const_data_ptr<float>(), quantized.nested_offset.const_data_ptr<float>()};
  } else {
    problem.weight.absmax = quantized.absmax.const_data_ptr<float>();
  }
  kernels::aten::device_kernels(quantized.device().type()).dequantize_rows4(problem);
  return out;
}

class Packed4Bit final : public PackedData {
 public:
  Packed4Bit(Quantized4Bit quantized, std::optional<at::ScalarType> compute_dtype)
      : quantized_(std::move(quantized)), compute_dtype_(compute_dtype) {}

  const Quantized4Bit& quantized() const { return quantized_; }

  std::string description() const override {
    return describe(quantized_.format, quantized_.is_nested(), quantized_.blocksize);
  }
  at::IntArrayRef sizes() const override { return quantized_.shape; }
  Parts parts() const override;
  PackedDataPtr with_parts(Parts parts) const override;
  Parts state(const std::string& name) const override { return pack_state(quantized_, name); }
  PackedDataPtr with_state(const Parts& stored, const std::string& name) const override;
  PackedDataPtr with_values(const at::Tensor& values, const std::string& name) const override;

  at::Tensor dequantize(at::ScalarType dtype) const override { return dequantize_4bit(quantized_, dtype); }
  at::Tensor dequantize_rows(const at::Tensor& rows, at::ScalarType dtype) const override;
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias) const override {
    const auto addend = bias.defined() ? std::make_optional(bias) : std::nullopt;
    return is_computed_in(x.scalar_type())
               ? linear_4bit(x, quantized_, addend)
               : linear_4bit(x.to(*compute_dtype_), quantized_, addend).to(x.scalar_type());
  }
  at::Tensor multiply_transposed(const at::Tensor& x) const override {
    return is_computed_in(x.scalar_type())
               ? matmul_4bit(x, quantized_)
               : matmul_4bit(x.to(*compute_dtype_), quantized_).to(x.scalar_type());
  }

 private:
  bool is_computed_in(at::ScalarType dtype) const { return compute_dtype_.value_or(dtype) == dtype; }
  Quantize4BitOptions options() const {
    return {quantized_.format, quantized_.blocksize, quantized_.is_nested(), quantized_.codes.scalar_type()};
  }

  Quantized4Bit quantized_;
  std::optional<at::ScalarType> compute_dtype_;
};

PackedData::Parts Packed4Bit::parts() const {
  Parts result{{"", quantized_.codes}, {"absmax", quantized_.absmax}};
  if (quantized_.is_nested()) {
    result.emplace("nested_absmax", quantized_.nested_absmax);
    result.emplace("nested_offset", quantized_.nested_offset);
  }
  return result;
}

PackedDataPtr Packed4Bit::with_parts(Parts parts) const {
  Quantized4Bit made = quantized_;
  made.codes = std::move(parts.at(""));
  made.absmax = std::move(parts.at("absmax"));
  if (made.is_nested()) {
    made.nested_absmax = std::move(parts.at("nested_absmax"));
    made.nested_offset = std::move(parts.at("nested_offset"));
    // All weights share one map, so it is no part.
    made.nested_map = made.nested_map.to(made.codes.device());
  }
  for (const at::Tensor& scales : {made.absmax, made.nested_absmax, made.nested_offset})
    TORCH_CHECK_VALUE(!scales.defined() || scales.is_meta() || scales.isfinite().all().item<bool>(),
                      description(),
                      ": a scale is inf or nan; the file is damaged, or the weight was not finite");
  return std::make_shared<Packed4Bit>(std::move(made), compute_dtype_);
}

PackedDataPtr Packed4Bit::with_state(const Parts& stored, const std::string& name) const {
  TORCH_CHECK_VALUE(has_state_4bit(stored, name) || !has_state_int8(stored, name), "'", name,
                    "' is saved as int8, and the model has ", description(), "; choose the mode int8",
                    quant::kOrRestore);
  TORCH_CHECK_VALUE(stored.contains(name) || has_state_4bit(stored, name), "'", name,
                    "' is missing, which the model needs as ", description(),
                    "; load the weights of the same model");
  Quantized4Bit found = unpack_state_4bit(stored, name);
  TORCH_CHECK_VALUE(found.shape == quantized_.shape, "'", name, "' has shape ", at::IntArrayRef(found.shape),
                    ", and the model's weight (", description(), ") has ", sizes(),
                    "; load into a model of the saved shapes");
  const std::string saved = describe(found.format, found.is_nested(), found.blocksize);
  TORCH_CHECK_VALUE(saved == description(), "'", name, "' is saved as ", saved, ", and the model has ",
                    description(), "; choose the mode ", info(found.format).name,
                    found.is_nested() ? "-dq" : "", " with blocksize ", found.blocksize, quant::kOrRestore);
  const auto copy = [&](at::Tensor& tensor) {
    if (tensor.defined())
      tensor = tensor.to(device(), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  };
  copy(found.codes);
  copy(found.absmax);
  copy(found.nested_absmax);
  copy(found.nested_offset);
  if (found.is_nested() && !found.nested_map.is_same(quantized_.nested_map)) copy(found.nested_map);
  return std::make_shared<Packed4Bit>(std::move(found), compute_dtype_);
}

PackedDataPtr Packed4Bit::with_values(const at::Tensor& values, const std::string& name) const {
  const std::string quoted = "'" + name + "'";
  const at::Tensor weight = rounded(values, quantized_.dtype, quoted).to(device());
  return std::make_shared<Packed4Bit>(quantize_4bit(weight, options(), quoted), compute_dtype_);
}

at::Tensor Packed4Bit::dequantize_rows(const at::Tensor& rows, at::ScalarType dtype) const {
  quant::check_rows(*this, rows);
  if (kernels::aten::device_kernels(device().type()).dequantize_rows4 == nullptr)
    return quant::dequantize_rows_by_operations(quantized_, rows)
        .to(dtype)
        .view(quant::sizes_of_rows(rows, sizes()));
  quant::check_is_whole("embedding", quantized_);
  const at::ScalarType computed = dtype == at::kHalf || dtype == at::kBFloat16 ? dtype : at::kFloat;
  return rows_by_kernel(quantized_, rows, computed).to(dtype).view(quant::sizes_of_rows(rows, sizes()));
}

}  // namespace

PackedDataPtr make_packed_4bit(Quantized4Bit quantized, std::optional<at::ScalarType> compute_dtype) {
  TORCH_CHECK_VALUE(!quantized.shape.empty(),
                    "make_packed_4bit: the weight has no dimension; leave a single number as it is");
  TORCH_CHECK_TYPE(!compute_dtype || is_packed_compute_dtype(*compute_dtype),
                   "make_packed_4bit: products cannot be computed in ", *compute_dtype,
                   "; choose float32, float16, bfloat16 or float64");
  quant::check_is_whole("make_packed_4bit", quantized);
  return std::make_shared<Packed4Bit>(std::move(quantized), compute_dtype);
}

PackedDataPtr pack_4bit(const at::Tensor& weight, const Quantize4BitOptions& options, std::string_view name,
                        std::optional<at::ScalarType> compute_dtype) {
  return make_packed_4bit(quantize_4bit(rounded(weight, at::kHalf, name), options, name), compute_dtype);
}

const Quantized4Bit* find_4bit(const PackedData& data) {
  const auto* const packed = dynamic_cast<const Packed4Bit*>(&data);
  return packed ? &packed->quantized() : nullptr;
}

}  // namespace mantissa
