#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "mantissa/kernels/cpu/convolution.h"
#include "mantissa/kernels/cpu/convolution_test_support_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::convolution_test {
namespace {

/// Tests sums that cancel or underflow, NaN and Inf, and the zeros of the border.
class ConvolutionNumbers : public ConvolutionTest {};

/// Large terms with alternating signs, and small terms between them.
TEST_P(ConvolutionNumbers, SumsThatCancelStayWithinTheBound) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Shape s{.batch = 4, .channels = 140, .outputs = 20, .size = {1, 9, 10}, .taps = {1, 3, 3}};
    const at::Tensor x = at::rand({4, 140, 1, 9, 10}).to(dtype), w = at::rand({20, 140, 1, 3, 3}).to(dtype);
    const double large = dtype == at::kHalf ? 30000 : 1e30;
    x.slice(1, 0, at::nullopt, 4).fill_(large);
    x.slice(1, 2, at::nullopt, 4).fill_(-large);
    for (const at::Tensor& by : {w, at::ones_like(w)}) {
      const at::Tensor a = x.to(at::kDouble), b = by.to(at::kDouble);
      test::expect_within_bound(forward(s, x, by), at::conv3d(a, b), at::conv3d(a.abs(), b.abs()), 140 * 9);
    }
    // The same along the results, over which the weight's gradient is summed.
    const at::Tensor g = at::ones({4, 20, 1, 7, 8}, dtype), y = at::rand({4, 140, 1, 9, 10}).to(dtype);
    y.slice(4, 0, at::nullopt, 2).fill_(large);
    y.slice(4, 1, at::nullopt, 2).fill_(-large);
    const auto exact = [&](const at::Tensor& by, const at::Tensor& from) {
      return std::get<1>(at::convolution_backward(by, from, w.to(at::kDouble), {}, {1, 1, 1}, {0, 0, 0},
                                                  {1, 1, 1}, false, {0, 0, 0}, 1, {false, true, false}));
    };
    test::expect_within_bound(by_weight(GetParam(), s, g, y, at::empty_like(w)),
                              exact(g.to(at::kDouble), y.to(at::kDouble)),
                              exact(g.to(at::kDouble), y.to(at::kDouble).abs()), 4 * 7 * 8);
  }
}

/// In bf16, both sums would stop at 256.
TEST_P(ConvolutionNumbers, SumsInFloat32) {
  const Shape s{.batch = 3, .channels = 200, .outputs = 9, .size = {1, 32, 32}, .taps = {1, 3, 3}};
  const at::Tensor x = at::ones({3, 200, 1, 32, 32}, at::kBFloat16),
                   w = at::ones({9, 200, 1, 3, 3}, at::kBFloat16),
                   g = at::ones({3, 9, 1, 30, 30}, at::kBFloat16);
  EXPECT_TRUE(at::equal(forward(s, x, w), at::full_like(g, 1800)));
  EXPECT_TRUE(at::equal(by_weight(GetParam(), s, g, x, at::empty_like(w)), at::full_like(w, 2700)));
}

/// The zeros of the border are multiplied, as if the image were padded first: 0 times Inf is NaN there, too.
TEST_P(ConvolutionNumbers, NanAndInfReachWhatReadsThemAlone) {
  const Shape s{
      .batch = 2, .channels = 20, .outputs = 35, .size = {1, 8, 9}, .taps = {1, 3, 3}, .padding = {0, 1, 1}};
  const Shape depthwise{.batch = 2, .groups = 35, .size = {1, 8, 9}, .taps = {1, 3, 3}, .padding = {0, 1, 1}};
  for (const Shape& shape : {s, depthwise})
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const at::Tensor x = shape.source(at::kHalf), w = shape.weight(at::kHalf);
      x[1][3][0][4][5] = bad;
      w[7][0][0][2][1] = -bad;
      const at::Tensor padded = at::constant_pad_nd(x, {1, 1, 1, 1}).to(at::kDouble);
      const auto exact = [&](const at::Tensor& image, const at::Tensor& weight) {
        // im2col by hand, because libtorch's own kernels may skip the border.
        return at::einsum("ncdhwij,ocdij->nodhw",
                          {image.unfold(3, 3, 1).unfold(4, 3, 1).contiguous(), weight.to(at::kDouble)});
      };
      at::Tensor wanted;
      if (shape.groups == 1) {
        wanted = exact(padded, w);
      } else {
        std::vector<at::Tensor> each;
        for (int64_t i = 0; i < shape.groups; ++i)
          each.push_back(exact(padded.narrow(1, i, 1), w.narrow(0, i, 1)));
        wanted = at::cat(each, 1);
      }
      test::expect_within_bound(forward(shape, x, w), wanted, at::full_like(wanted, 1000), 180);
    }
}

/// Rows of a kernel that lie in the border are skipped, unless a weight is Inf.
TEST_P(ConvolutionNumbers, BordersEqualGenericBitForBit) {
  const ConvolutionBuild& generic = convolution_builds().back();
  const std::vector<Shape> shapes = {
      // Several blocks of pixels; blocks of channels with waiting sums; a weight that is packed again for
      // each block; threads that share channels; rows that see nothing; more kinds of rows than are
      // distinguished.
      {.batch = 40,
       .channels = 24,
       .outputs = 40,
       .size = {1, 8, 8},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}},
      {.batch = 3, .channels = 200, .outputs = 9, .size = {3, 5, 5}, .taps = {3, 3, 3}, .padding = {1, 1, 1}},
      {.batch = 2,
       .channels = 100,
       .outputs = 300,
       .size = {1, 7, 7},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}},
      {.channels = 64, .outputs = 128, .size = {1, 7, 7}, .taps = {1, 3, 3}, .padding = {0, 1, 1}},
      {.batch = 3, .channels = 5, .outputs = 20, .size = {1, 2, 9}, .taps = {1, 3, 3}, .padding = {0, 4, 1}},
      {.batch = 2,
       .channels = 3,
       .outputs = 20,
       .size = {1, 14, 9},
       .taps = {1, 11, 3},
       .padding = {0, 5, 1}},
      {.batch = 2,
       .channels = 9,
       .outputs = 17,
       .size = {1, 20, 20},
       .taps = {1, 7, 7},
       .step = {1, 2, 2},
       .padding = {0, 3, 3}},
      {.batch = 5,
       .channels = 9,
       .outputs = 17,
       .size = {1, 10, 10},
       .taps = {1, 3, 3},
       .dilation = {1, 3, 2},
       .padding = {0, 3, 2}}};
  int i = 0;
  for (const Shape& s : shapes)
    for (const bool finite : {true, false}) {
      const auto dtype = i++ % 2 == 0 ? at::kHalf : at::kBFloat16;
      SCOPED_TRACE(testing::Message() << s << " in " << dtype << (finite ? "" : ", one weight infinite"));
      const at::Tensor x = laid_out(s.source(dtype), i % 3), w = s.weight(dtype), g = s.result(dtype);
      if (!finite) w[s.outputs - 1][s.channels - 1][0][0][1] = std::numeric_limits<float>::infinity();
      EXPECT_TRUE(test::same_bits(forward(GetParam(), s, x, w, at::empty_like(g)),
                                  forward(generic, s, x, w, at::empty_like(g))));
      EXPECT_TRUE(test::same_bits(by_source(GetParam(), s, g, w, at::empty_like(x)),
                                  by_source(generic, s, g, w, at::empty_like(x))));
    }
}

/// If all products are below float32's range, a chain is -0, or 0 if zeros of the border follow.
TEST_P(ConvolutionNumbers, SumsThatUnderflowAreZeroWithAnyThreads) {
  const Shape s{
      .batch = 2, .channels = 40, .outputs = 40, .size = {1, 7, 7}, .taps = {1, 3, 3}, .padding = {0, 1, 1}};
  const at::Tensor x = at::full_like(s.source(at::kBFloat16), 1e-30);
  const at::Tensor w = at::full_like(s.weight(at::kBFloat16), -1e-30);
  w.select(3, 2).fill_(1e-30);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(test::same_bits(forward(s, x, w), at::zeros_like(s.result(at::kBFloat16)))) << threads;
  }
  at::set_num_threads(before);
}

/// Micro-tiles have any shape: the last part of the channels is narrow or not, depending on the number of
/// threads.
TEST_P(ConvolutionNumbers, WeightSumsThatUnderflowAreZeroWithAnyThreads) {
  const std::vector<int64_t> taps = {1, 3, 3};
  const std::vector<Shape> shapes = {
      {.batch = 2, .channels = 70, .outputs = 33, .size = {1, 20, 20}, .taps = taps},
      {.batch = 9, .channels = 3, .outputs = 33, .size = {1, 30, 30}, .taps = taps},
      {.batch = 2, .groups = 40, .size = {1, 20, 20}, .taps = taps},
      {.batch = 2, .groups = 12, .channels = 4, .outputs = 4, .size = {1, 20, 20}}};
  const int before = at::get_num_threads();
  for (const Shape& s : shapes)
    for (const int threads : {1, 2, 3, 8}) {
      SCOPED_TRACE(testing::Message() << s << ", " << threads << " threads");
      const at::Tensor x = laid_out(at::full_like(s.source(at::kBFloat16), 1e-30), 1),
                       g = laid_out(at::full_like(s.result(at::kBFloat16), -1e-30), 1);
      const at::Tensor w = laid_out(s.weight(at::kBFloat16), 1);
      at::set_num_threads(threads);
      EXPECT_TRUE(test::same_bits(by_weight(GetParam(), s, g, x, at::empty_like(w)), at::zeros_like(w)));
      at::set_num_threads(before);
    }
}

TEST_P(ConvolutionNumbers, KeepsDenormals) {
  const Shape s{.channels = 1, .outputs = 1, .size = {1, 8, 8}};
  const at::Tensor one = at::ones({1, 1, 1, 1, 1}, at::kHalf);
  const at::Tensor x = (at::arange(64).view({1, 1, 1, 8, 8}) * 0x1p-24).to(at::kHalf);
  EXPECT_TRUE(at::equal(forward(s, x, one), x));
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, ConvolutionNumbers, testing::ValuesIn(convolution_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

}  // namespace
}  // namespace mantissa::kernels::cpu::convolution_test
