#include "mantissa/quant/linear_int8.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/kernels/int8.h"

namespace mantissa {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2); }

/// The values of some columns of a weight: [out, columns] float32.
at::Tensor restored_columns(const QuantizedInt8& weight, const at::Tensor& columns) {
  return dequantize_int8({weight.codes.index_select(1, columns), weight.scales, {}});
}

at::Tensor forward_of(const at::Tensor& x, const QuantizedInt8& weight,
                      const std::optional<at::Tensor>& given_bias, double threshold) {
  const at::Tensor bias = given_bias.value_or(at::Tensor());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.codes.size(0);
  const at::Tensor rows = rows_of(x);
  const QuantizedInt8 codes = int8_vectorwise_quant(rows, threshold);
  const bool has_outliers = codes.outlier_cols.defined() && codes.outlier_cols.numel() > 0;
  // A view would be refused if the caller changed it in place, as torch::nn::Linear adds its bias.
  if (!has_outliers) return at::_unsafe_view(int8_scaled_matmul(codes, weight, bias, x.scalar_type()), sizes);
  const at::Tensor outliers = rows.index_select(1, codes.outlier_cols).to(at::kFloat);
  at::Tensor result = int8_scaled_matmul(codes, weight, bias, at::kFloat);
  result.addmm_(outliers, restored_columns(weight, codes.outlier_cols).t());
  return at::_unsafe_view(result.to(x.scalar_type()), sizes);
}

/// The gradient of x: gradient * restored weight, in float32, rounded once.
at::Tensor input_gradient(const at::Tensor& gradient, const QuantizedInt8& weight) {
  return at::matmul(gradient.to(at::kFloat), dequantize_int8(weight)).to(gradient.scalar_type());
}

/// The product of two quantized matrices with any inner dimension, in float32: sums of int32 would overflow.
at::Tensor deep_product(const QuantizedInt8& a, const QuantizedInt8& b) {
  const int64_t depth = a.codes.size(1);
  const auto part = [&](int64_t begin) {
    const int64_t length = std::min(kernels::kMaxInt8Depth, depth - begin);
    const auto of = [&](const QuantizedInt8& all) {
      return QuantizedInt8{all.codes.narrow(1, begin, length), all.scales, {}};
    };
    return int8_scaled_matmul(of(a), of(b), {}, at::kFloat);
  };
  const at::Tensor product = part(0);
  for (int64_t begin = kernels::kMaxInt8Depth; begin < depth; begin += kernels::kMaxInt8Depth)
    product.add_(part(begin));
  return product;
}

/// The gradient of the weight, [out, in]. The columns of a matrix are the rows of its transpose.
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x, double threshold,
                           at::ScalarType dtype) {
  const at::Tensor inputs = x.t().contiguous(), outputs = gradient.t().contiguous();
  const QuantizedInt8 codes = int8_vectorwise_quant(inputs);
  const at::Tensor product = deep_product(int8_vectorwise_quant(outputs), codes);
  if (threshold > 0) {
    const at::Tensor columns = (inputs.abs() >= threshold).any(1).nonzero().view({-1});
    if (columns.numel() > 0)
      product.index_copy_(1, columns,
                          at::mm(outputs.to(at::kFloat), inputs.index_select(0, columns).to(at::kFloat).t()));
  }
  return product.to(dtype);
}

void save(AutogradContext* ctx, const QuantizedInt8& weight, bool has_bias) {
  ctx->saved_data["codes"] = weight.codes;
  ctx->saved_data["scales"] = weight.scales;
  ctx->saved_data["has_bias"] = has_bias;
}

QuantizedInt8 saved_weight(AutogradContext* ctx) {
  return {ctx->saved_data["codes"].toTensor(), ctx->saved_data["scales"].toTensor(), {}};
}

/// A bias that is not there has no place among the inputs.
bool needs_bias(AutogradContext* ctx, size_t input) {
  return ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(input);
}

at::Tensor sum_of_rows(const at::Tensor& gradient) { return rows_of(gradient).sum(0); }

class FrozenInt8 : public torch::autograd::Function<FrozenInt8> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                            const QuantizedInt8& weight, double threshold) {
    save(ctx, weight, bias.has_value());
    return forward_of(x, weight, bias, threshold);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    variable_list result(4);
    if (ctx->needs_input_grad(0)) result[0] = input_gradient(gradients[0], saved_weight(ctx));
    if (needs_bias(ctx, 1)) result[1] = sum_of_rows(gradients[0]);
    return result;
  }
};

class TrainedInt8 : public torch::autograd::Function<TrainedInt8> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const QuantizedInt8& codes,
                            double threshold) {
    save(ctx, codes, bias.has_value());
    ctx->saved_data["threshold"] = threshold;
    ctx->saved_data["dtype"] = weight.scalar_type();
    ctx->save_for_backward({weight.requires_grad() ? x : at::Tensor()});
    return forward_of(x, codes, bias, threshold);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !at::GradMode::is_enabled(),
        "linear_int8_training: its gradient has no derivative, because it is quantized; "
        "call backward() without create_graph");
    const at::Tensor& gradient = gradients[0];
    variable_list result(5);
    if (ctx->needs_input_grad(0)) result[0] = input_gradient(gradient, saved_weight(ctx));
    if (ctx->needs_input_grad(1))
      result[1] =
          weight_gradient(rows_of(gradient), rows_of(ctx->get_saved_variables()[0]),
                          ctx->saved_data["threshold"].toDouble(), ctx->saved_data["dtype"].toScalarType());
    if (needs_bias(ctx, 2)) result[2] = sum_of_rows(gradient);
    return result;
  }
};

void check(const char* function, const at::Tensor& x, const at::Tensor& weight,
           const std::optional<at::Tensor>& bias, double threshold) {
  TORCH_CHECK_VALUE(weight.dim() == 2, function, ": the weight has the shape ", weight.sizes(),
                    "; it has to be [out, in]");
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) == weight.size(1), function, ": x has the shape ", x.sizes(),
                    ", and the weight has ", weight.sizes(), "; the last dimension of x has to be ",
                    weight.size(1));
  TORCH_CHECK_VALUE(x.device() == weight.device(), function, ": x is on ", x.device(),
                    ", and the weight is on ", weight.device(), "; move one of them");
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, function,
                   ": x has dtype ", dtype, "; cast it to float32, float16 or bfloat16");
  TORCH_CHECK_VALUE(threshold >= 0, function, ": the threshold is ", threshold,
                    "; give a positive one, or 0 for none");
  if (!bias.has_value() || !bias->defined()) return;
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == weight.size(0), function, ": bias has the shape ",
                    bias->sizes(), "; with a weight of ", weight.sizes(), " it has to be [", weight.size(0),
                    "]");
  TORCH_CHECK_VALUE(bias->device() == x.device(), function, ": bias is on ", bias->device(), ", and x is on ",
                    x.device(), "; move one of them");
}

/// The cast is outside of the functions, so that autograd casts the gradient back.
std::optional<at::Tensor> bias_for(const at::Tensor& x, const std::optional<at::Tensor>& bias) {
  return bias.has_value() && bias->defined() ? std::optional(bias->to(x.scalar_type())) : std::nullopt;
}

/// Whether autograd has anything to record. A node for nothing would take longer than a small product.
bool is_recorded(std::initializer_list<at::Tensor> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& each) { return each.defined() && each.requires_grad(); });
}

}  // namespace

at::Tensor linear_int8(const at::Tensor& x, const QuantizedInt8& weight,
                       const std::optional<at::Tensor>& bias, double threshold) {
  check("linear_int8", x, weight.codes, bias, threshold);
  const std::optional<at::Tensor> addend = bias_for(x, bias);
  return is_recorded({x, addend.value_or(at::Tensor())}) ? FrozenInt8::apply(x, addend, weight, threshold)
                                                         : forward_of(x, weight, addend, threshold);
}

at::Tensor linear_int8_training(const at::Tensor& x, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, double threshold,
                                const std::optional<QuantizedInt8>& codes) {
  check("linear_int8_training", x, weight, bias, threshold);
  TORCH_CHECK_VALUE(!codes || codes->codes.sizes() == weight.sizes(),
                    "linear_int8_training: the codes have the shape ", codes->codes.sizes(),
                    ", and the weight has ", weight.sizes(), "; quantize this weight");
  const std::optional<at::Tensor> addend = bias_for(x, bias);
  const QuantizedInt8 quantized = codes ? *codes : quantize_int8(weight);
  return is_recorded({x, weight, addend.value_or(at::Tensor())})
             ? TrainedInt8::apply(x, weight, addend, quantized, threshold)
             : forward_of(x, quantized, addend, threshold);
}

}  // namespace mantissa
