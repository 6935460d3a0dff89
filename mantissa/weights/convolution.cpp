#include <array>
#include <tuple>
#include <vector>

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"
#include "mantissa/weights/products_internal.h"

// Formats have no convolution. The weight is dequantized for each pass and not kept in between.
namespace mantissa::packed {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Geometry {
  std::vector<int64_t> stride, padding, dilation;
  bool is_transposed;
  std::vector<int64_t> output_padding;
  int64_t groups;
};

Tensor convolve(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                const Geometry& g) {
  return at::convolution(input, dequantize(weight, input.scalar_type()), bias, g.stride, g.padding,
                         g.dilation, g.is_transposed, g.output_padding, g.groups);
}

class PackedConvolution : public torch::autograd::Function<PackedConvolution> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const std::optional<Tensor>& bias,
                        const Tensor& weight, const Geometry& g) {
    ctx->save_for_backward({input});
    // This is a view of its own, because the weight's tensor may get other data before the backward pass.
    ctx->saved_data["weight"] = view_of(weight, weight.sizes(), weight.strides());
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->saved_data["stride"] = g.stride;
    ctx->saved_data["padding"] = g.padding;
    ctx->saved_data["dilation"] = g.dilation;
    ctx->saved_data["is_transposed"] = g.is_transposed;
    ctx->saved_data["output_padding"] = g.output_padding;
    ctx->saved_data["groups"] = g.groups;
    return convolve(input, weight, bias, g);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto& saved = ctx->saved_data;
    const Tensor input = ctx->get_saved_variables()[0];
    const bool has_bias = saved["has_bias"].toBool();
    const bool is_transposed = saved["is_transposed"].toBool();
    const Tensor weight = dequantize(saved["weight"].toTensor(), input.scalar_type());
    const int64_t channels = is_transposed ? weight.size(1) * saved["groups"].toInt() : weight.size(0);
    const std::vector<int64_t> bias_sizes = {channels};
    // Edge 1 is the bias if there is one.
    const std::array<bool, 3> mask = {ctx->needs_input_grad(0), false, has_bias && ctx->needs_input_grad(1)};
    const auto all = at::convolution_backward(
        gradients[0], input, weight, has_bias ? at::OptionalIntArrayRef(bias_sizes) : std::nullopt,
        saved["stride"].toIntVector(), saved["padding"].toIntVector(), saved["dilation"].toIntVector(),
        is_transposed, saved["output_padding"].toIntVector(), saved["groups"].toInt(), mask);
    return {std::get<0>(all), std::get<2>(all), Tensor(), Tensor()};
  }
};

std::vector<int64_t> ints(c10::SymIntArrayRef values) { return C10_AS_INTARRAYREF_SLOW(values).vec(); }

}  // namespace

// NOLINTBEGIN(performance-unnecessary-value-param): the dispatcher calls a kernel with exactly these types
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                   bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  // NOLINTEND(performance-unnecessary-value-param)
  if (find_data(input)) refuse("convolution", input);
  if (bias && bias->defined() && find_data(*bias)) refuse("convolution", *bias);
  check_input("convolution", input, weight);
  const Geometry geometry = {ints(stride), ints(padding),        ints(dilation),
                             transposed,   ints(output_padding), groups.expect_int()};
  std::optional<Tensor> cast;
  if (bias && bias->defined()) cast = bias->to(input.scalar_type());
  if (!is_recorded({input, cast.value_or(Tensor())})) return convolve(input, weight, cast, geometry);
  return PackedConvolution::apply(input, cast, weight, geometry);
}

}  // namespace mantissa::packed
