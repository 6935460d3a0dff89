#include "mantissa/quant/linear_4bit.h"

#include <utility>

#include <ATen/DimVector.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/quant/quantized_4bit_internal.h"

namespace mantissa {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Computes x w^T + bias or x w. The shapes fit, and bias has the dtype of x.
at::Tensor multiply(const at::Tensor& x, const Quantized4Bit& weight, const std::optional<at::Tensor>& bias,
                    bool is_transposed) {
  // The kernels read memory, which has the opposite of a negative view's values.
  if (x.is_neg() || (bias && bias->is_neg()))
    return multiply(x.resolve_neg(), weight, bias ? std::optional(bias->resolve_neg()) : bias, is_transposed);
  // No view or cast here that changes nothing: each takes longer than a hundredth of a small product.
  at::DimVector sizes(x.sizes());
  sizes.back() = weight.shape[is_transposed ? 0 : 1];
  const bool is_empty = x.numel() == 0 || weight.numel() == 0;
  auto* const kernel = kernels::aten::device_kernels(x.device().type()).product4;
  if (is_empty || x.scalar_type() == at::kDouble || kernel == nullptr) {
    const at::Tensor dense = dequantize_4bit(weight, x.scalar_type());
    const at::Tensor product = at::matmul(x, is_transposed ? dense.t() : dense);
    return bias ? product + *bias : product;
  }
  const at::Tensor rows = x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}), absmax = absmax_of(weight);
  at::Tensor out = at::empty(sizes, x.options());
  const kernels::Element element = element_of(x.scalar_type());
  kernels::Product4 p;
  p.m = rows.size(0);
  p.a = {rows.const_data_ptr(), element, rows.stride(0), rows.stride(1)};
  p.weight = {static_cast<const uint8_t*>(weight.codes.const_data_ptr()),
              absmax.const_data_ptr<float>(),
              weight.shape[0],
              weight.shape[1],
              weight.blocksize,
              quant::code_of(weight.format)};
  p.transposed = is_transposed;
  if (bias) p.addend = {bias->const_data_ptr(), element, 0, bias->stride(0)};
  p.out = {out.mutable_data_ptr(), element, sizes.back(), 1};
  kernel(p);
  return out;
}

/// The weight in a node of the graph.
struct WeightOfNode : torch::CustomClassHolder {
  explicit WeightOfNode(Quantized4Bit w) : weight(std::move(w)) {}
  Quantized4Bit weight;
};

class Multiply4Bit : public torch::autograd::Function<Multiply4Bit> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                            const Quantized4Bit& weight, bool is_transposed) {
    ctx->saved_data["weight"] = c10::IValue::make_capsule(c10::make_intrusive<WeightOfNode>(weight));
    ctx->saved_data["is_transposed"] = is_transposed;
    ctx->saved_data["has_bias"] = bias.has_value();
    return multiply(x, weight, bias, is_transposed);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor& gradient = gradients[0];
    variable_list result(4);
    if (ctx->needs_input_grad(0)) {
      const auto holder = ctx->saved_data["weight"].toCapsule();
      const Quantized4Bit& weight = static_cast<const WeightOfNode&>(*holder).weight;
      result[0] =
          apply(gradient, std::optional<at::Tensor>(), weight, !ctx->saved_data["is_transposed"].toBool());
    }
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(1))
      result[1] = gradient.dim() == 1 ? gradient : gradient.flatten(0, -2).sum(0);
    return result;
  }
};

/// Leaves autograd out where it would record nothing: it takes as long as a small product.
at::Tensor multiply_recorded(const at::Tensor& x, const Quantized4Bit& weight,
                             const std::optional<at::Tensor>& bias, bool is_transposed) {
  const bool is_recorded =
      at::GradMode::is_enabled() && (x.requires_grad() || (bias && bias->requires_grad()));
  return is_recorded ? Multiply4Bit::apply(x, bias, weight, is_transposed)
                     : multiply(x, weight, bias, is_transposed);
}

void check(const char* function, const at::Tensor& x, const Quantized4Bit& weight, bool is_transposed) {
  TORCH_CHECK_VALUE(weight.shape.size() == 2, function, ": the weight has ", weight.shape.size(),
                    " dimensions; a product needs [out, in]");
  quant::check_is_whole(function, weight);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) == weight.shape[is_transposed ? 1 : 0], function,
                    ": x has the shape ", x.sizes(), ", and the weight has ", at::IntArrayRef(weight.shape),
                    "; the last dimension of x has to be ", weight.shape[is_transposed ? 1 : 0]);
  TORCH_CHECK_VALUE(x.device() == weight.device(), function, ": x is on ", x.device(),
                    ", and the weight is on ", weight.device(), "; move one of them");
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_TYPE(
      dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kDouble, function,
      ": x has dtype ", dtype, "; cast it to float32, bfloat16, float16 or float64");
}

}  // namespace

at::Tensor linear_4bit(const at::Tensor& x, const Quantized4Bit& weight,
                       const std::optional<at::Tensor>& bias) {
  check("linear_4bit", x, weight, true);
  const bool has_bias = bias.has_value() && bias->defined();
  if (has_bias) {
    TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == weight.shape[0],
                      "linear_4bit: bias has the shape ", bias->sizes(), "; with a weight of ",
                      at::IntArrayRef(weight.shape), " it has to be [", weight.shape[0], "]");
    TORCH_CHECK_VALUE(bias->device() == x.device(), "linear_4bit: bias is on ", bias->device(),
                      ", and x is on ", x.device(), "; move one of them");
  }
  // The cast is outside of the function, so that autograd casts the gradient back.
  if (!has_bias || bias->scalar_type() == x.scalar_type())
    return multiply_recorded(x, weight, has_bias ? bias : std::nullopt, true);
  return multiply_recorded(x, weight, bias->to(x.scalar_type()), true);
}

at::Tensor matmul_4bit(const at::Tensor& x, const Quantized4Bit& weight) {
  check("matmul_4bit", x, weight, false);
  return multiply_recorded(x, weight, std::nullopt, false);
}

}  // namespace mantissa
