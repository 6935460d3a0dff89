#include "mantissa/quant/packed_int8.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/linear_int8.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/packed_formats_internal.h"
#include "mantissa/quant/quant_state.h"

namespace mantissa {
namespace {

/// Returns a weight as a matrix with a row for each index of its first dimension.
at::Tensor matrix_of(const at::Tensor& weight) { return weight.dim() > 2 ? weight.flatten(1) : weight; }

class PackedInt8 final : public PackedData {
 public:
  PackedInt8(QuantizedInt8 quantized, double threshold, std::vector<int64_t> shape)
      : quantized_(std::move(quantized)), threshold_(threshold), shape_(std::move(shape)) {}

  const QuantizedInt8& quantized() const { return quantized_; }

  std::string description() const override { return "int8"; }
  at::IntArrayRef sizes() const override { return shape_; }
  Parts parts() const override { return {{"", quantized_.codes}, {"SCB", quantized_.scales}}; }
  PackedDataPtr with_parts(Parts parts) const override {
    const at::Tensor& scales = parts.at("SCB");
    TORCH_CHECK_VALUE(
        scales.is_meta() || (scales.isfinite() & (scales >= 0)).all().item<bool>(),
        "int8: a scale is negative, inf or nan; the file is damaged, or the weight was not finite");
    return with({parts.at(""), scales, {}});
  }
  Parts state(const std::string& name) const override {
    Parts result = pack_state(quantized_, name);
    result[name] = quantized_.codes.view(shape_);
    return result;
  }
  PackedDataPtr with_state(const Parts& stored, const std::string& name) const override;
  PackedDataPtr with_values(const at::Tensor& values, const std::string& name) const override;

  at::Tensor dequantize(at::ScalarType dtype) const override {
    return dequantize_int8(quantized_, dtype).view(shape_);
  }
  at::Tensor dequantize_rows(const at::Tensor& rows, at::ScalarType dtype) const override {
    quant::check_rows(*this, rows);
    return quant::dequantize_rows_int8(quantized_, rows, dtype).view(quant::sizes_of_rows(rows, shape_));
  }
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias) const override {
    const at::Tensor input = x.scalar_type() == at::kDouble ? x.to(at::kFloat) : x;
    const auto addend = bias.defined() ? std::make_optional(bias) : std::nullopt;
    return linear_int8(input, quantized_, addend, threshold_).to(x.scalar_type());
  }
  at::Tensor multiply_transposed(const at::Tensor& x) const override {
    const at::ScalarType dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::matmul(x.to(dtype), dequantize_int8(quantized_, dtype)).to(x.scalar_type());
  }

 private:
  PackedDataPtr with(QuantizedInt8 quantized) const {
    return std::make_shared<PackedInt8>(std::move(quantized), threshold_, shape_);
  }

  QuantizedInt8 quantized_;
  double threshold_;
  std::vector<int64_t> shape_;
};

PackedDataPtr PackedInt8::with_state(const Parts& stored, const std::string& name) const {
  if (!has_state_int8(stored, name) && has_state_4bit(stored, name)) {
    const Quantized4Bit found = unpack_state_4bit(stored, name);
    const std::string saved = make_packed_4bit(found)->description();  // "nf4, blocks of 64"
    TORCH_CHECK_VALUE(false, "'", name, "' is saved as ", saved, ", and the model has int8; choose the mode ",
                      saved.substr(0, saved.find(',')), " with blocksize ", found.blocksize,
                      quant::kOrRestore);
  }
  TORCH_CHECK_VALUE(stored.contains(name), "'", name,
                    "' is missing, which the model needs as int8; load the weights of the same model");
  const QuantizedInt8 found = unpack_state_int8(stored, name);
  TORCH_CHECK_VALUE(stored.at(name).sizes() == sizes(), "'", name, "' has shape ", stored.at(name).sizes(),
                    ", and the model's weight (int8) has ", sizes(),
                    "; load into a model of the saved shapes");
  const auto copy = [&](const at::Tensor& tensor) {
    return tensor.to(device(), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  };
  return with({copy(found.codes), copy(found.scales), {}});
}

PackedDataPtr PackedInt8::with_values(const at::Tensor& values, const std::string& name) const {
  return pack_int8(values.to(device()), threshold_, "'" + name + "'");
}

}  // namespace

PackedDataPtr make_packed_int8(QuantizedInt8 quantized, double threshold, std::vector<int64_t> shape) {
  if (shape.empty()) shape = quantized.codes.sizes().vec();
  TORCH_CHECK_VALUE(threshold >= 0, "make_packed_int8: the threshold is ", threshold,
                    "; give a positive one, or 0 for none");
  TORCH_CHECK_VALUE(quantized.codes.dim() == 2 && quantized.scales.defined() &&
                        quantized.scales.sizes() == quantized.codes.sizes().slice(0, 1),
                    "make_packed_int8: codes of ", quantized.codes.sizes(), " have scales of ",
                    quantized.scales.defined() ? quantized.scales.sizes() : at::IntArrayRef(),
                    "; give a matrix of codes, and a scale for each row");
  TORCH_CHECK_VALUE(shape.size() >= 2 && shape[0] == quantized.codes.size(0) &&
                        c10::multiply_integers(shape) == quantized.codes.numel(),
                    "make_packed_int8: codes of ", quantized.codes.sizes(), " are no weight of ",
                    at::IntArrayRef(shape), "; give them as a matrix with a row for each output");
  TORCH_CHECK_VALUE(!quantized.outlier_cols.defined() || quantized.outlier_cols.numel() == 0,
                    "make_packed_int8: the codes lack ", quantized.outlier_cols.numel(),
                    " outlier columns, as those of an input do; quantize a weight with quantize_int8()");
  quantized.outlier_cols = at::Tensor();
  return std::make_shared<PackedInt8>(std::move(quantized), threshold, std::move(shape));
}

PackedDataPtr pack_int8(const at::Tensor& weight, double threshold, std::string_view name) {
  TORCH_CHECK_VALUE(weight.defined(), "quantize_int8: ", name, " is undefined; give a tensor with values");
  const at::Tensor values = weight.scalar_type() == at::kDouble ? weight.to(at::kFloat) : weight;
  return make_packed_int8(quantize_int8(matrix_of(values), name), threshold, weight.sizes().vec());
}

const QuantizedInt8* find_int8(const PackedData& data) {
  const auto* const packed = dynamic_cast<const PackedInt8*>(&data);
  return packed ? &packed->quantized() : nullptr;
}

}  // namespace mantissa
