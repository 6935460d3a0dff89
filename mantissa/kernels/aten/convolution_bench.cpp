// 16-bit convolutions and their gradients compared with float32, as described in twins_bench_internal.h.
// --benchmark_filter=conv/fp16/resnet selects some of the benchmarks.
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/randn.h>

#include "mantissa/kernels/aten/calibration_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/twins_bench_internal.h"

namespace mantissa {
namespace {

struct Shape {
  const char* name;
  std::vector<int64_t> input, weight;
  int64_t stride = 1, padding = 1, groups = 1;
  bool transposed = false;
};

using Part = ConvolutionPass;

Run run_of(const Shape& s, Part part, const at::Tensor& x, const at::Tensor& w, const at::Tensor& g) {
  const size_t dims = s.input.size() - 2;
  const std::vector<int64_t> stride(dims, s.stride), padding(dims, s.padding), one(dims, 1), zero(dims, 0);
  if (part == Part::kForward)
    return [=] { return at::convolution(x, w, {}, stride, padding, one, s.transposed, zero, s.groups); };
  return [=] {
    const auto [by_input, by_weight, by_bias] =
        at::convolution_backward(g, x, w, {}, stride, padding, one, s.transposed, zero, s.groups,
                                 {part == Part::kByInput, part == Part::kByWeight, false});
    return part == Part::kByInput ? by_input : by_weight;
  };
}

Twins twins(const Shape& s, at::ScalarType dtype, Part part, bool channels_last) {
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const at::Tensor x = at::randn(s.input).to(dtype).contiguous(format),
                   w = at::randn(s.weight).to(dtype).contiguous(format);
  const at::Tensor y = run_of(s, Part::kForward, x, w, {})();
  const at::Tensor g = at::randn(y.sizes()).to(dtype).contiguous(format);
  Twins twins;
  twins.narrow = run_of(s, part, x, w, g);
  twins.wide = run_of(s, part, x.to(at::kFloat), w.to(at::kFloat), g.to(at::kFloat));
  const at::Tensor wanted = twins.wide();
  twins.agree = (twins.narrow().to(at::kFloat) - wanted).abs().max().item<double>() <=
                0.01 * wanted.abs().max().item<double>();
  twins.products = static_cast<double>((s.transposed ? x : y).numel() * w[0].numel());
  const ConvolutionKind kind{.groups = s.groups,
                             .channels = s.weight[1],
                             .outputs = s.weight[0] / s.groups,
                             .products = static_cast<int64_t>(twins.products),
                             .strided = s.stride > 1,
                             .channels_last = channels_last};
  const Part computed = !s.transposed || part == Part::kByWeight ? part
                        : part == Part::kForward                 ? Part::kByInput
                                                                 : Part::kForward;
  const auto element = dtype == at::kHalf ? kernels::Element::kFloat16 : kernels::Element::kBFloat16;
  const bool is_pointwise = s.groups == 1 && w[0][0].numel() == 1 && s.stride == 1 && s.padding == 0;
  twins.kernel = is_pointwise ? "a product's" : kernel_name(kernel_for(family_of(computed, kind), element));
  return twins;
}

bool register_all() {
  // A small ResNet on 32 x 32 images, the layers of ResNet-18 on 224 x 224, and shapes that are not square.
  const std::vector<Shape> shapes = {{"mnist/1to32", {64, 1, 28, 28}, {32, 1, 3, 3}},
                                     {"tiny/3to32", {32, 3, 32, 32}, {32, 3, 3, 3}},
                                     {"tiny/32to32", {32, 32, 32, 32}, {32, 32, 3, 3}},
                                     {"tiny/32to64s2", {32, 32, 32, 32}, {64, 32, 3, 3}, 2},
                                     {"tiny/32to64s2k1", {32, 32, 32, 32}, {64, 32, 1, 1}, 2, 0},
                                     {"tiny/64to64", {32, 64, 16, 16}, {64, 64, 3, 3}},
                                     {"tiny/64to128s2", {32, 64, 16, 16}, {128, 64, 3, 3}, 2},
                                     {"tiny/64to128s2k1", {32, 64, 16, 16}, {128, 64, 1, 1}, 2, 0},
                                     {"tiny/128to128", {32, 128, 8, 8}, {128, 128, 3, 3}},
                                     {"resnet18/stem", {4, 3, 224, 224}, {64, 3, 7, 7}, 2, 3},
                                     {"resnet18/56", {4, 64, 56, 56}, {64, 64, 3, 3}},
                                     {"resnet18/28s2", {4, 64, 56, 56}, {128, 64, 3, 3}, 2},
                                     {"resnet18/28", {4, 128, 28, 28}, {128, 128, 3, 3}},
                                     {"resnet18/14", {4, 256, 14, 14}, {256, 256, 3, 3}},
                                     {"resnet18/7", {4, 512, 7, 7}, {512, 512, 3, 3}},
                                     {"resnet18/7of1", {1, 512, 7, 7}, {512, 512, 3, 3}},
                                     {"resnet50/14k1", {4, 256, 14, 14}, {1024, 256, 1, 1}, 1, 0},
                                     {"depthwise/56", {8, 64, 56, 56}, {64, 1, 3, 3}, 1, 1, 64},
                                     {"depthwise/28s2", {8, 128, 28, 28}, {128, 1, 3, 3}, 2, 1, 128},
                                     {"depthwise/14", {8, 256, 14, 14}, {256, 1, 3, 3}, 1, 1, 256},
                                     {"groups/28", {8, 128, 28, 28}, {128, 4, 3, 3}, 1, 1, 32},
                                     {"few/56to3", {4, 64, 56, 56}, {3, 64, 3, 3}},
                                     {"few/64k1", {8, 64, 64, 64}, {1, 64, 1, 1}, 1, 0},
                                     {"few/32s2", {8, 64, 32, 32}, {64, 3, 4, 4}, 2, 1, 1, true},
                                     {"line/1000", {8, 64, 1000}, {128, 64, 5}, 1, 2},
                                     {"volume/28", {2, 16, 8, 28, 28}, {32, 16, 3, 3, 3}},
                                     {"transposed/16s2", {8, 64, 16, 16}, {64, 32, 4, 4}, 2, 1, 1, true}};
  const std::vector<std::pair<Part, std::string>> parts = {
      {Part::kForward, "forward"}, {Part::kByInput, "by_input"}, {Part::kByWeight, "by_weight"}};
  for (const Shape& s : shapes)
    for (const auto dtype : {at::kBFloat16, at::kHalf})
      for (const bool channels_last : {false, true})
        for (const auto& [part, part_name] : parts) {
          if (channels_last && s.input.size() != 4) continue;
          const std::string name = std::string("conv/") + (dtype == at::kHalf ? "fp16/" : "bf16/") + s.name +
                                   (channels_last ? "/NHWC/" : "/NCHW/") + part_name;
          register_twins(
              name, [=, part = part] { return twins(s, dtype, part, channels_last); }, 11);
        }
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
