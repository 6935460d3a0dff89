#pragma once

#include <cstdint>
#include <gtest/gtest.h>
#include <ostream>
#include <vector>

#include <torch/torch.h>

#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/cpu/convolution.h"

namespace mantissa::kernels::cpu::convolution_test {

/// For GoogleTest's messages.
inline void PrintTo(const ConvolutionBuild& build, std::ostream* out) { *out << tier_name(build.tier); }

/// A convolution of volumes: all sizes along depth, height, width.
struct Shape {
  int64_t batch = 1, groups = 1, channels = 1, outputs = 1;  // of each group
  std::vector<int64_t> size = {1, 1, 1}, taps = {1, 1, 1}, step = {1, 1, 1}, dilation = {1, 1, 1},
                       padding = {0, 0, 0};

  int64_t out(int a) const {
    return (size[a] + 2 * padding[a] - (taps[a] - 1) * dilation[a] - 1) / step[a] + 1;
  }
  at::Tensor source(at::ScalarType dtype) const {
    return at::randn({batch, groups * channels, size[0], size[1], size[2]}).to(dtype);
  }
  at::Tensor weight(at::ScalarType dtype) const {
    return at::randn({groups * outputs, channels, taps[0], taps[1], taps[2]}).to(dtype);
  }
  at::Tensor result(at::ScalarType dtype) const {
    return at::randn({batch, groups * outputs, out(0), out(1), out(2)}).to(dtype);
  }
};

inline std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.batch << " images, " << s.groups << " x " << s.channels << " to " << s.outputs << ", size "
             << s.size << ", taps " << s.taps << ", step " << s.step << ", dilation " << s.dilation
             << ", padding " << s.padding;
}

inline Element element(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? Element::kFloat32 : element_of(x.scalar_type());
}

template <typename Images>
Images images(const at::Tensor& x, int64_t channels) {
  return {x.data_ptr(), element(x),  channels * x.stride(1),
          x.stride(0),  x.stride(1), {x.stride(2), x.stride(3), x.stride(4)}};
}

template <typename Images>
Images kernels(const at::Tensor& w, int64_t outputs) {
  Images images = convolution_test::images<Images>(w, 0);
  images.group_stride = outputs * w.stride(0);
  return images;
}

template <typename Problem>
Problem problem(const Shape& s) {
  Problem c;
  c.batch = s.batch;
  c.groups = s.groups;
  c.channels = s.channels;
  c.outputs = s.outputs;
  for (int a = 0; a < 3; ++a)
    c.axes[a] = {s.size[a], s.out(a), s.taps[a], s.step[a], s.dilation[a], -s.padding[a]};
  return c;
}

class ConvolutionTest : public testing::TestWithParam<ConvolutionBuild> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here (or MANTISSA_MAX_ISA rules it out)";
    at::manual_seed(1);
  }

  static at::Tensor forward(const ConvolutionBuild& build, const Shape& s, const at::Tensor& x,
                            const at::Tensor& w, at::Tensor out, const at::Tensor& bias = {}) {
    auto c = problem<Convolution>(s);
    c.source = images<ConstImages>(x, s.channels);
    c.weight = kernels<ConstImages>(w, s.outputs);
    c.out = images<Images>(out, s.outputs);
    if (bias.defined()) {
      c.bias = bias.data_ptr();
      c.bias_element = element(bias);
      c.bias_stride = bias.stride(0);
    }
    convolution({c}, build);
    return out;
  }
  static at::Tensor by_source(const ConvolutionBuild& build, const Shape& s, const at::Tensor& g,
                              const at::Tensor& w, at::Tensor out) {
    auto c = problem<Convolution>(s);
    c.source = images<ConstImages>(g, s.outputs);
    c.weight = kernels<ConstImages>(w, s.outputs);
    c.out = images<Images>(out, s.channels);
    convolution(adjoint(c), build);
    return out;
  }
  static at::Tensor by_weight(const ConvolutionBuild& build, const Shape& s, const at::Tensor& g,
                              const at::Tensor& x, at::Tensor out) {
    auto c = problem<ConvolutionWeight>(s);
    c.source = images<ConstImages>(x, s.channels);
    c.gradient = images<ConstImages>(g, s.outputs);
    c.out = kernels<Images>(out, s.outputs);
    convolution_weight(c, build);
    return out;
  }
  static at::Tensor forward(const Shape& s, const at::Tensor& x, const at::Tensor& w) {
    return forward(GetParam(), s, x, w, s.result(x.scalar_type()));
  }
};

/// Returns `x` with channels last, or in the middle of a larger tensor.
inline at::Tensor laid_out(const at::Tensor& x, int layout) {
  if (layout == 1) return x.contiguous(at::MemoryFormat::ChannelsLast3d);
  if (layout == 2) return at::stack({x, x}, -1).select(-1, 1);
  return x;
}

}  // namespace mantissa::kernels::cpu::convolution_test
