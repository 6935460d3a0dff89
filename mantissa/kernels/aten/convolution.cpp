#include "mantissa/kernels/cpu/convolution.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/ops/zero_cpu_dispatch.h>
#include <c10/util/irange.h>

#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/convolution_internal.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/pointwise_convolution_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::kernels::aten::convolution {
namespace {

using Tensor = at::Tensor;
using Sizes = at::IntArrayRef;

/// The parameters of a convolution other than its tensors, as libtorch passes them.
struct Options {
  Sizes stride, padding, dilation;
  bool transposed = false;
  Sizes output_padding;
  int64_t groups = 1;
};

using Pass = ConvolutionPass;

/// A convolution that our kernels take, described as a non-transposed one from `image` to `result`. A
/// transposed one is its adjoint: it reads the result and writes the image.
struct Geometry {
  int64_t groups, channels, outputs;  ///< of each group: the image's, the result's
  Axis axes[3];
  at::DimVector output_sizes;
  at::ScalarType dtype;
};

bool is_operand(const Tensor& x, at::ScalarType dtype) {
  return x.scalar_type() == dtype && x.numel() > 0 && is_plain(x);
}

/// Checks for one value per dimension, or one for all, none so large that positions overflow.
bool is_option(Sizes values, int64_t dims, int64_t min_value) {
  constexpr int64_t kMaxValue = std::numeric_limits<int32_t>::max();
  const auto size = static_cast<int64_t>(values.size());
  return (size == dims || size == 1) && std::all_of(values.begin(), values.end(), [&](int64_t value) {
           return value >= min_value && value <= kMaxValue;
         });
}

int64_t option(Sizes values, int64_t dim) { return values[values.size() == 1 ? 0 : dim]; }

/// Describes `x` [image, channel, ...] as images; a group has `channels` channels.
template <typename Pointer>
ImagesOf<Pointer> images(Pointer data, const Tensor& x, int64_t channels) {
  ImagesOf<Pointer> images{data, element_of(x.scalar_type()), channels * x.stride(1), x.stride(0),
                           x.stride(1)};
  for (const auto dim : c10::irange(2, x.dim())) images.strides[3 - x.dim() + dim] = x.stride(dim);
  return images;
}

ConstImages read(const Tensor& x, int64_t channels) { return images(x.const_data_ptr(), x, channels); }
Images written(const Tensor& x, int64_t channels) { return images(x.mutable_data_ptr(), x, channels); }

/// Describes a weight as images: its kernels [result, image]. Its groups lie along the results.
template <typename Pointer>
ImagesOf<Pointer> kernels(Pointer data, const Tensor& weight, int64_t outputs) {
  ImagesOf<Pointer> kernels = images(data, weight, 0);
  kernels.group_stride = outputs * weight.stride(0);
  return kernels;
}

Convolution problem(const Geometry& g, const Tensor& weight, int64_t batch) {
  Convolution c;
  c.batch = batch;
  c.groups = g.groups;
  c.channels = g.channels;
  c.outputs = g.outputs;
  std::copy_n(g.axes, 3, c.axes);
  c.weight = kernels(weight.const_data_ptr(), weight, g.outputs);
  return c;
}

ConvolutionWeight weight_problem(const Geometry& g, int64_t batch) {
  ConvolutionWeight c;
  c.batch = batch;
  c.groups = g.groups;
  c.channels = g.channels;
  c.outputs = g.outputs;
  std::copy_n(g.axes, 3, c.axes);
  return c;
}

bool are_computable(const std::vector<Convolution>& passes) {
  return std::all_of(passes.begin(), passes.end(), [](const auto& pass) { return cpu::is_computable(pass); });
}

/// Without a bias, results that no tap reaches are 0. They are filled together with all other results, which
/// costs less than passes that write them one by one.
void fill_unreached(std::vector<Convolution>& passes, Tensor& out) {
  const auto reads_nothing = [](const Convolution& c) {
    return c.bias == nullptr && c.axes[0].taps * c.axes[1].taps * c.axes[2].taps == 0;
  };
  if (std::erase_if(passes, reads_nothing) > 0) at::cpu::zero_(out);
}

double products_of(const Geometry& g, int64_t batch) {
  double products = static_cast<double>(batch * g.groups * g.channels) * static_cast<double>(g.outputs);
  for (const Axis& axis : g.axes) products *= static_cast<double>(axis.out) * static_cast<double>(axis.taps);
  return products;
}

/// True if the passes of an adjoint are worth it. It has one pass for each remainder of a position by the
/// strides. With a large stride most passes have no tap and still cost a microsecond, the time of 2^16
/// multiplications.
bool has_work_for_its_passes(const Geometry& g, int64_t batch) {
  double passes = 1;
  for (const Axis& axis : g.axes) passes *= static_cast<double>(std::min(axis.step, axis.size));
  return passes <= 32 || passes * 0x1p16 <= products_of(g, batch);
}

/// True if some tap reads nothing but padding. oneDNN's bf16 kernel with AMX does not write the gradients of such taps where a
/// convolution with strides reads an image of one pixel, as in the last stage of a ResNet: they are what was in the memory.
bool has_idle_taps(const Geometry& g) {
  const auto is_idle = [](const Axis& axis, int64_t tap) {
    const int64_t first = axis.origin + tap * axis.dilation;
    const int64_t skipped = first < 0 ? (-first + axis.step - 1) / axis.step : 0;
    return skipped >= axis.out || first + skipped * axis.step >= axis.size;
  };
  return std::any_of(std::begin(g.axes), std::end(g.axes), [&](const Axis& axis) {
    for (const auto tap : c10::irange(axis.taps))
      if (is_idle(axis, tap)) return true;
    return false;
  });
}

KernelFamily family_of_pass(const Geometry& g, const Tensor& input, bool transposed, Pass pass) {
  // A transposed convolution is the input gradient of another convolution, and the other way round.
  if (transposed && pass != Pass::kByWeight) pass = pass == Pass::kForward ? Pass::kByInput : Pass::kForward;
  const ConvolutionKind kind{
      .groups = g.groups,
      .channels = g.channels,
      .outputs = g.outputs,
      .products = static_cast<int64_t>(std::min(products_of(g, input.size(0)), 0x1p62)),
      .strided =
          std::any_of(std::begin(g.axes), std::end(g.axes), [](const auto& axis) { return axis.step > 1; }),
      .channels_last = input.size(1) > 1 && input.stride(1) == 1};
  return family_of(pass, kind);
}

/// Returns the build that was chosen for such a convolution, or nullptr for libtorch's kernel.
const cpu::ConvolutionBuild* build_of(const Geometry& g, const Tensor& input, bool transposed, Pass pass) {
  const KernelFamily family = family_of_pass(g, input, transposed, pass);
  if (pass == Pass::kByWeight && g.dtype == at::kBFloat16 && has_idle_taps(g))
    return &own_build(cpu::convolution_builds(), family, Element::kBFloat16);
  return chosen_build(cpu::convolution_builds(), family, element_of(g.dtype));
}

/// Returns the geometry if our kernels take these shapes and dtypes.
std::optional<Geometry> geometry(const Tensor& input, const Tensor& weight, const Options& options) {
  const int64_t dims = input.dim() - 2;
  const at::ScalarType dtype = input.scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return std::nullopt;
  if (dims < 1 || dims > 3 || weight.dim() != input.dim() || options.groups < 1) return std::nullopt;
  if (!is_operand(input, dtype) || !is_operand(weight, dtype)) return std::nullopt;
  if (!is_option(options.stride, dims, 1) || !is_option(options.padding, dims, 0) ||
      !is_option(options.dilation, dims, 1) || !is_option(options.output_padding, dims, 0))
    return std::nullopt;
  const int64_t input_channels = options.transposed ? weight.size(0) : weight.size(1) * options.groups;
  if (weight.size(0) % options.groups != 0 || input.size(1) != input_channels) return std::nullopt;

  Geometry g{options.groups, weight.size(1), weight.size(0) / options.groups, {}, {}, dtype};
  g.output_sizes = {input.size(0), options.transposed ? weight.size(1) * options.groups : weight.size(0)};
  for (const auto dim : c10::irange(dims)) {
    Axis& axis = g.axes[3 - dims + dim];
    const int64_t added = option(options.output_padding, dim);
    axis.taps = weight.size(2 + dim);
    axis.step = option(options.stride, dim);
    axis.dilation = option(options.dilation, dim);
    axis.origin = -option(options.padding, dim);
    const int64_t size = input.size(2 + dim), reach = (axis.taps - 1) * axis.dilation + 1 + 2 * axis.origin;
    if (options.transposed) {
      if (added >= std::max(axis.step, axis.dilation)) return std::nullopt;
      axis.out = size;
      axis.size = (size - 1) * axis.step + reach + added;
    } else {
      if (added != 0 || size < reach) return std::nullopt;
      axis.size = size;
      axis.out = (size - reach) / axis.step + 1;
    }
    g.output_sizes.push_back(options.transposed ? axis.size : axis.out);
    if (g.output_sizes.back() < 1) return std::nullopt;
  }
  return g;
}

/// True if pointwise_convolution_internal.h handles it.
bool is_pointwise(const Geometry& g) {
  return g.groups == 1 && std::all_of(std::begin(g.axes), std::end(g.axes), [](const Axis& axis) {
           return axis.taps == 1 && axis.step == 1 && axis.origin == 0 && axis.size == axis.out;
         });
}

/// Returns the memory format that libtorch's kernel would give its results.
at::MemoryFormat memory_format(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                               const Options& options, at::OptionalIntArrayRef bias_sizes) {
  if (input.suggest_memory_format() == at::MemoryFormat::Contiguous &&
      weight.suggest_memory_format() == at::MemoryFormat::Contiguous)
    return at::MemoryFormat::Contiguous;
  const auto symbolic = [](Sizes sizes) { return c10::fromIntArrayRefSlow(sizes); };
  at::OptionalSymIntArrayRef symbolic_bias;
  if (bias_sizes) symbolic_bias = symbolic(*bias_sizes);
  const auto backend = at::native::select_conv_backend(
      input, weight, bias, symbolic(options.stride), symbolic(options.padding), symbolic(options.dilation),
      options.transposed, symbolic(options.output_padding), options.groups, symbolic_bias);
  return at::native::_determine_backend_memory_format(input, weight, backend);
}

Tensor empty(Sizes sizes, const Tensor& like, at::MemoryFormat format) {
  return at::cpu::empty(sizes, like.options(), format);
}

/// Computes, for each channel, the sum of `gradient` over images and positions: a product with ones for each
/// image, and then the sum over the images in order.
Tensor bias_gradient(const Tensor& gradient) {
  const int64_t batch = gradient.size(0), channels = gradient.size(1);
  Tensor sums = at::cpu::empty({batch, channels}, gradient.options().dtype(at::kFloat));
  Tensor result = at::cpu::empty({channels}, gradient.options());
  const Tensor flat = gradient.flatten(2);
  const float one = 1;
  Gemm g;
  g.m = 1;
  g.n = channels;
  g.k = flat.size(2);
  g.batch = batch;
  g.a = {&one, Element::kFloat32, 0, 0, 0};
  g.b = {flat.const_data_ptr(), element_of(gradient.scalar_type()), flat.stride(2), flat.stride(1),
         flat.stride(0)};
  g.out = {sums.mutable_data_ptr(), Element::kFloat32, channels, 1, channels};
  matmul::gemm(g);
  pointwise_convolution::add_images(sums, result);
  return result;
}

/// What the gradients of a convolution share, apart from the tensors.
struct Backward {
  const Geometry& g;
  bool transposed;
  at::MemoryFormat format;  ///< of the results
};

/// Returns an undefined tensor if libtorch's kernel should compute the gradient.
Tensor input_gradient(const Backward& common, const Tensor& grad_output, const Tensor& input,
                      const Tensor& weight) {
  const auto& [g, transposed, format] = common;
  Tensor gradient;
  if (is_pointwise(g)) {
    gradient = empty(input.sizes(), input, format);
    if (pointwise_convolution::multiply(weight, !transposed, grad_output, std::nullopt, gradient))
      return gradient;
  }
  if (!transposed && !has_work_for_its_passes(g, input.size(0))) return {};
  const cpu::ConvolutionBuild* const build = build_of(g, input, transposed, Pass::kByInput);
  if (build == nullptr) return {};
  if (!gradient.defined()) gradient = empty(input.sizes(), input, format);
  Convolution c = problem(g, weight, input.size(0));
  c.source = read(grad_output, transposed ? g.channels : g.outputs);
  c.out = written(gradient, transposed ? g.outputs : g.channels);
  std::vector<Convolution> passes = transposed ? std::vector<Convolution>{c} : cpu::adjoint(c);
  if (!are_computable(passes)) return {};
  fill_unreached(passes, gradient);
  cpu::convolution(passes, *build);
  return gradient;
}

/// Returns an undefined tensor if libtorch's kernel should compute the gradient.
Tensor weight_gradient(const Backward& common, const Tensor& grad_output, const Tensor& input,
                       const Tensor& weight) {
  const auto& [g, transposed, format] = common;
  // In a transposed convolution, the output gradient takes the place of the image.
  const Tensor &source = transposed ? grad_output : input, &results = transposed ? input : grad_output;
  Tensor gradient;
  if (is_pointwise(g)) {
    gradient = empty(weight.sizes(), weight, format);
    if (pointwise_convolution::multiply_pixels(results, source, gradient)) return gradient;
  }
  const cpu::ConvolutionBuild* const build = build_of(g, input, transposed, Pass::kByWeight);
  if (build == nullptr) return {};
  if (!gradient.defined()) gradient = empty(weight.sizes(), weight, format);
  ConvolutionWeight c = weight_problem(g, input.size(0));
  c.source = read(source, g.channels);
  c.gradient = read(results, g.outputs);
  c.out = kernels(gradient.mutable_data_ptr(), gradient, g.outputs);
  if (!cpu::is_computable(c)) return {};
  cpu::convolution_weight(c, *build);
  return gradient;
}

}  // namespace

Tensor forward(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, Sizes stride,
               Sizes padding, Sizes dilation, bool transposed, Sizes output_padding, int64_t groups,
               bool benchmark, bool deterministic, bool cudnn_enabled, bool allow_tf32) {
  const auto stock = [&] {
    return at::compositeexplicitautograd::_convolution(input, weight, bias, stride, padding, dilation,
                                                       transposed, output_padding, groups, benchmark,
                                                       deterministic, cudnn_enabled, allow_tf32);
  };
  const Options options{stride, padding, dilation, transposed, output_padding, groups};
  const auto g = geometry(input, weight, options);
  if (!g || (transposed && !has_work_for_its_passes(*g, input.size(0)))) return stock();
  const bool adds = bias.has_value() && bias->defined();
  if (adds && (!is_operand(*bias, g->dtype) || bias->dim() != 1 || bias->size(0) != g->output_sizes[1]))
    return stock();
  const auto results = [&] {
    return empty(g->output_sizes, input, memory_format(input, weight, bias, options, {}));
  };
  Tensor out;
  if (is_pointwise(*g)) {
    out = results();
    if (pointwise_convolution::multiply(weight, transposed, input, adds ? bias : std::nullopt, out))
      return out;
  }
  const cpu::ConvolutionBuild* const build = build_of(*g, input, transposed, Pass::kForward);
  if (build == nullptr) {
    out.reset();  // avoids holding memory beside libtorch's own result
    return stock();
  }
  if (!out.defined()) out = results();
  Convolution c = problem(*g, weight, input.size(0));
  const int64_t read_channels = transposed ? g->outputs : g->channels;
  const int64_t written_channels = transposed ? g->channels : g->outputs;
  c.source = read(input, read_channels);
  if (adds) {
    c.bias = bias->const_data_ptr();
    c.bias_element = element_of(g->dtype);
    c.bias_stride = bias->stride(0);
  }
  c.out = written(out, written_channels);
  std::vector<Convolution> passes = transposed ? cpu::adjoint(c) : std::vector<Convolution>{c};
  if (!are_computable(passes)) return stock();
  fill_unreached(passes, out);
  cpu::convolution(passes, *build);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_output, const Tensor& input,
                                            const Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                                            Sizes stride, Sizes padding, Sizes dilation, bool transposed,
                                            Sizes output_padding, int64_t groups,
                                            std::array<bool, 3> output_mask) {
  const auto stock_of = [&](std::array<bool, 3> mask) {
    return at::compositeexplicitautograd::convolution_backward(grad_output, input, weight, bias_sizes, stride,
                                                               padding, dilation, transposed, output_padding,
                                                               groups, mask);
  };
  const auto stock = [&] { return stock_of(output_mask); };
  const Options options{stride, padding, dilation, transposed, output_padding, groups};
  const auto g = geometry(input, weight, options);
  if (!g || !is_operand(grad_output, g->dtype) || grad_output.sizes() != Sizes(g->output_sizes))
    return stock();
  const Backward common{*g, transposed, memory_format(input, weight, std::nullopt, options, bias_sizes)};
  std::tuple<Tensor, Tensor, Tensor> gradients;
  if (output_mask[0]) std::get<0>(gradients) = input_gradient(common, grad_output, input, weight);
  if (output_mask[1]) std::get<1>(gradients) = weight_gradient(common, grad_output, input, weight);
  const bool by_input = std::get<0>(gradients).defined(), by_weight = std::get<1>(gradients).defined();
  if (!by_input && !by_weight) return stock();
  const std::array<bool, 3> rest = {output_mask[0] && !by_input, output_mask[1] && !by_weight, false};
  if (rest[0] || rest[1]) {
    auto others = stock_of(rest);
    if (rest[0]) std::get<0>(gradients) = std::get<0>(others);
    if (rest[1]) std::get<1>(gradients) = std::get<1>(others);
  }
  if (output_mask[2]) std::get<2>(gradients) = bias_gradient(grad_output);
  return gradients;
}

}  // namespace mantissa::kernels::aten::convolution
