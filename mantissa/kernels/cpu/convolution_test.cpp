#include "mantissa/kernels/cpu/convolution.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "mantissa/kernels/cpu/convolution_test_support_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::convolution_test {
namespace {

/// Random small shapes with every option.
std::vector<Shape> random_shapes(int count) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
  };
  std::vector<Shape> shapes;
  while (static_cast<int>(shapes.size()) < count) {
    Shape s{pick(1, 3), pick(0, 3) == 0 ? pick(2, 4) : 1, pick(1, 20), pick(1, 37)};
    if (pick(0, 5) == 0) s = {pick(1, 3), pick(2, 40), 1, 1};  // depthwise
    const int dims = static_cast<int>(pick(1, 3));
    bool fits = true;
    for (int a = 3 - dims; a < 3; ++a) {
      s.size[a] = pick(1, dims == 3 ? 6 : 14);
      s.taps[a] = pick(1, dims == 3 ? 3 : 5);
      s.step[a] = pick(1, 3);
      s.dilation[a] = pick(1, 3);
      s.padding[a] = pick(0, 4);
      fits = fits && s.size[a] + 2 * s.padding[a] > (s.taps[a] - 1) * s.dilation[a];
    }
    if (fits) shapes.push_back(s);
  }
  return shapes;
}

/// The order of summation is part of the specification.
TEST_P(ConvolutionTest, EqualsGenericBitForBit) {
  const ConvolutionBuild& generic = convolution_builds().back();
  int i = 0;
  for (Shape s : random_shapes(60)) {
    SCOPED_TRACE(testing::Message() << s);
    const auto dtype = i % 2 == 0 ? at::kHalf : at::kBFloat16;
    const int layout = i++ % 3;
    const at::Tensor x = laid_out(s.source(dtype), layout), w = laid_out(s.weight(dtype), i % 3),
                     g = laid_out(s.result(dtype), layout), y = s.result(dtype);
    const at::Tensor bias = at::randn({y.size(1)}).to(dtype);
    EXPECT_TRUE(test::same_bits(forward(GetParam(), s, x, w, at::empty_like(g), bias),
                                forward(generic, s, x, w, at::empty_like(y), bias)));
    EXPECT_TRUE(test::same_bits(by_source(GetParam(), s, g, w, at::empty_like(x)),
                                by_source(generic, s, g, w, at::empty_like(x))));
    EXPECT_TRUE(test::same_bits(by_weight(GetParam(), s, g, x, at::empty_like(w)),
                                by_weight(generic, s, g, x, at::empty_like(w))));
    if (HasFailure()) return;
  }
}

/// Shapes with more than one block of channels, of outputs, of pixels, and of each operand in scratch.
std::vector<Shape> large_shapes() {
  return {
      {.batch = 1,
       .channels = 150,
       .outputs = 33,
       .size = {1, 5, 6},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}},
      {.batch = 1, .channels = 1200, .outputs = 300, .size = {1, 2, 3}},
      {.batch = 2, .channels = 3, .outputs = 5, .size = {1, 60, 61}, .taps = {1, 3, 3}},
      {.batch = 1, .channels = 2, .outputs = 3, .size = {1, 1, 9000}, .taps = {1, 1, 3}, .step = {1, 1, 2}},
      {.batch = 3, .groups = 70, .size = {1, 40, 41}, .taps = {1, 3, 5}, .padding = {0, 1, 0}},
      // Groups of two and four channels, with several groups per vector; groups of three; channels that do
      // not fill whole vectors.
      {.batch = 2,
       .groups = 12,
       .channels = 4,
       .outputs = 4,
       .size = {1, 40, 41},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}},
      {.batch = 3,
       .groups = 40,
       .channels = 2,
       .outputs = 2,
       .size = {3, 9, 23},
       .taps = {2, 3, 5},
       .step = {1, 2, 2},
       .dilation = {1, 2, 1},
       .padding = {0, 1, 3}},
      {.batch = 2, .groups = 16, .channels = 4, .outputs = 4, .size = {1, 30, 31}, .step = {1, 2, 3}},
      {.batch = 1, .groups = 9, .channels = 4, .outputs = 4, .size = {1, 9, 10}, .taps = {1, 3, 3}},
      {.batch = 1, .groups = 32, .channels = 3, .outputs = 3, .size = {1, 9, 10}, .taps = {1, 3, 3}},
      {.batch = 1, .groups = 8, .channels = 4, .outputs = 2, .size = {1, 9, 10}, .taps = {1, 3, 3}},
      // More products than one chain may have.
      {.batch = 1, .groups = 16, .channels = 4, .outputs = 4, .size = {1, 20, 20}, .taps = {1, 17, 17}},
      // Depthwise, with steps along some axes only.
      {.batch = 2,
       .groups = 32,
       .size = {1, 20, 21},
       .taps = {1, 3, 3},
       .step = {1, 1, 2},
       .padding = {0, 1, 1}},
      {.batch = 2,
       .groups = 40,
       .size = {1, 20, 21},
       .taps = {1, 3, 3},
       .step = {1, 3, 1},
       .padding = {0, 2, 1}},
      {.batch = 1,
       .groups = 16,
       .size = {6, 9, 10},
       .taps = {3, 3, 2},
       .step = {2, 1, 2},
       .padding = {1, 1, 0}},
      // Depthwise with steps: 4, 24 and 64 phases, and more phases than one pass computes.
      {.batch = 2,
       .groups = 37,
       .size = {1, 60, 61},
       .taps = {1, 3, 3},
       .step = {1, 2, 2},
       .padding = {0, 1, 1}},
      {.batch = 1,
       .groups = 20,
       .size = {7, 20, 31},
       .taps = {2, 5, 3},
       .step = {2, 3, 4},
       .dilation = {1, 2, 1},
       .padding = {1, 0, 2}},
      {.batch = 1, .groups = 33, .size = {1, 40, 41}, .taps = {1, 9, 11}, .step = {1, 8, 8}},
      {.batch = 1,
       .groups = 17,
       .size = {1, 40, 41},
       .taps = {1, 3, 10},
       .step = {1, 9, 9},
       .padding = {0, 2, 9}},
      {.batch = 1,
       .channels = 40,
       .outputs = 600,
       .size = {1, 3, 3},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}}};
}

TEST_P(ConvolutionTest, EqualsGenericBeyondOneBlock) {
  const ConvolutionBuild& generic = convolution_builds().back();
  for (const Shape& s : large_shapes()) {
    for (const int layout : {0, 1}) {
      SCOPED_TRACE(testing::Message() << s << ", layout " << layout);
      const auto dtype = layout == 0 ? at::kHalf : at::kBFloat16;
      const at::Tensor x = laid_out(s.source(dtype), layout), w = laid_out(s.weight(dtype), layout),
                       g = laid_out(s.result(dtype), layout);
      EXPECT_TRUE(test::same_bits(forward(GetParam(), s, x, w, at::empty_like(g)),
                                  forward(generic, s, x, w, at::empty_like(g))));
      EXPECT_TRUE(test::same_bits(by_source(GetParam(), s, g, w, at::empty_like(x)),
                                  by_source(generic, s, g, w, at::empty_like(x))));
      EXPECT_TRUE(test::same_bits(by_weight(GetParam(), s, g, x, at::empty_like(w)),
                                  by_weight(generic, s, g, x, at::empty_like(w))));
    }
  }
}

/// Few results per pixel, fewer than fill a vector, and images wide enough for vectors of pixels: one block
/// and several, of channels and of pixels; rows of whole vectors and others; the phases of strided gradients.
std::vector<Shape> few_results() {
  std::vector<Shape> shapes = {
      {.batch = 2,
       .channels = 300,
       .outputs = 3,
       .size = {1, 9, 33},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}},
      {.batch = 1, .channels = 1300, .outputs = 4, .size = {1, 5, 16}},
      {.batch = 1,
       .channels = 6,
       .outputs = 2,
       .size = {1, 60, 200},
       .taps = {1, 5, 7},
       .padding = {0, 2, 3}},
      {.batch = 70, .channels = 5, .outputs = 1, .size = {1, 3, 8}, .taps = {1, 2, 1}},
      {.batch = 3,
       .groups = 3,
       .channels = 17,
       .outputs = 4,
       .size = {4, 7, 12},
       .taps = {2, 3, 3},
       .dilation = {1, 2, 2},
       .padding = {1, 2, 1}},
      // More results that are short sums: several blocks, a remainder of results, rows shorter and longer
      // than a vector.
      {.batch = 9, .outputs = 33, .size = {1, 28, 28}, .taps = {1, 3, 3}, .padding = {0, 1, 1}},
      {.batch = 2, .channels = 3, .outputs = 20, .size = {1, 5, 9}, .taps = {1, 3, 3}, .padding = {0, 1, 1}},
      {.batch = 2, .channels = 2, .outputs = 50, .size = {3, 9, 37}, .taps = {2, 2, 4}, .padding = {1, 0, 2}},
      // A row that needs more than a block's window can hold.
      {.batch = 1,
       .channels = 256,
       .outputs = 3,
       .size = {1, 2, 3000},
       .taps = {1, 1, 3},
       .dilation = {1, 1, 400}}};
  // Steps along some axes only, and along an axis without taps.
  for (const std::vector<int64_t>& step :
       {std::vector<int64_t>{1, 2, 1}, {2, 1, 1}, {3, 2, 1}, {1, 1, 2}, {1, 2, 2}})
    for (const std::vector<int64_t>& taps : {std::vector<int64_t>{1, 3, 1}, {2, 3, 3}, {1, 1, 1}})
      shapes.push_back(
          {.batch = 2, .channels = 9, .outputs = 3, .size = {5, 12, 30}, .taps = taps, .step = step});
  for (int64_t outputs = 1; outputs <= 9; ++outputs)
    for (const int64_t step : {1, 2, 3})
      shapes.push_back({.batch = 2,
                        .channels = 40,
                        .outputs = outputs,
                        .size = {1, 19, 20 + 7 * outputs},
                        .taps = {1, 4, 5},
                        .step = {1, step, step},
                        .padding = {0, 2, 1}});
  return shapes;
}

TEST_P(ConvolutionTest, FewResultsEqualGenericBitForBit) {
  const ConvolutionBuild& generic = convolution_builds().back();
  int layout = 0;
  for (const Shape& s : few_results())
    for (const auto dtype : {at::kHalf, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << s << " in " << dtype << ", layout " << layout);
      // The problem with few channels is the result of the adjoint.
      Shape turned = s;
      std::swap(turned.channels, turned.outputs);
      const at::Tensor x = laid_out(s.source(dtype), layout), w = laid_out(s.weight(dtype), layout),
                       y = laid_out(s.result(dtype), layout), bias = at::randn({y.size(1)});
      const at::Tensor g = laid_out(turned.result(dtype), layout), v = laid_out(turned.weight(dtype), layout),
                       d = laid_out(turned.source(dtype), layout);
      bias.view(at::kInt)[0] = 0x7fffffff;  // a NaN
      x[0][0][0][0][3] = std::numeric_limits<float>::infinity();
      layout = (layout + 1) % 3;
      EXPECT_TRUE(test::same_bits(forward(GetParam(), s, x, w, at::empty_like(y), bias),
                                  forward(generic, s, x, w, at::empty_like(y), bias)));
      EXPECT_TRUE(test::same_bits(forward(GetParam(), s, x, w, at::empty_like(y)),
                                  forward(generic, s, x, w, at::empty_like(y))));
      EXPECT_TRUE(test::same_bits(by_source(GetParam(), turned, g, v, at::empty_like(d)),
                                  by_source(generic, turned, g, v, at::empty_like(d))));
    }
}

/// This includes rounding bf16 in pairs of vectors, which turns a NaN whose last bits are set into -0. A
/// float32 bias may have such a NaN.
TEST_P(ConvolutionTest, ChannelsThatDoNotMeetKeepNanAndInf) {
  const ConvolutionBuild& generic = convolution_builds().back();
  const float inf = std::numeric_limits<float>::infinity();
  Shape s{.batch = 2, .groups = 43, .size = {1, 11, 23}, .taps = {1, 3, 3}, .padding = {0, 1, 1}};
  for (const int64_t step : {1, 2}) {
    s.step = {1, step, step};
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(testing::Message() << s << " in " << dtype);
      // Values of at most 1, because the generic kernel rounds products before it adds them, and none may
      // overflow on its own.
      const at::Tensor w = s.weight(dtype).clamp(-1, 1);
      const at::Tensor x = laid_out(s.source(dtype), 1), g = laid_out(s.result(dtype), 1);
      const at::Tensor bias = at::randn({43});
      bias.view(at::kInt)[20] = 0x7fffffff;
      for (const at::Tensor& image : {x, g}) {
        image[0][3][0][2].fill_(inf);
        image[0][30][0][2].fill_(-inf);
        image[1][40][0][1].fill_(std::numeric_limits<float>::quiet_NaN());
        image[1][5][0][3].fill_(dtype == at::kHalf ? 60000 : 3e38);  // its sums overflow
      }
      const at::Tensor y = forward(GetParam(), s, x, w, at::empty_like(g), bias);
      EXPECT_TRUE(y.isnan().any().item<bool>() && y.isinf().any().item<bool>());
      EXPECT_TRUE(test::same_bits(y, forward(generic, s, x, w, at::empty_like(g), bias)));
      EXPECT_TRUE(test::same_bits(by_source(GetParam(), s, g, w, at::empty_like(x)),
                                  by_source(generic, s, g, w, at::empty_like(x))));
    }
  }
}

/// The last share of the results may be smaller than the others, and its weights might all fit where theirs
/// do not. A turned convolution has more taps than its own axes say. The test uses new threads, whose scratch
/// is as small as possible.
TEST_P(ConvolutionTest, EveryShareHasTheLargestOnesScratch) {
  const ConvolutionBuild& generic = convolution_builds().back();
  const std::vector<Shape> shapes = {
      {.batch = 1,
       .channels = 512,
       .outputs = 96,
       .size = {1, 6, 6},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}},
      {.batch = 1,
       .channels = 1024,
       .outputs = 48,
       .size = {1, 4, 4},
       .taps = {1, 3, 3},
       .padding = {0, 1, 1}},
      {.batch = 1, .channels = 512, .outputs = 160, .size = {1, 4, 4}, .taps = {1, 3, 3}},
      {.batch = 1,
       .groups = 320,
       .size = {1, 60, 60},
       .taps = {1, 15, 15},
       .step = {1, 2, 2},
       .dilation = {1, 4, 4}}};
  for (const Shape& s : shapes) {
    const at::Tensor x = laid_out(s.source(at::kHalf), 1), w = s.weight(at::kHalf),
                     g = laid_out(s.result(at::kHalf), 1);
    const bool turned = s.groups > 1;
    const auto compute = [&](const ConvolutionBuild& build) {
      return turned ? by_source(build, s, g, w, at::empty_like(x))
                    : forward(build, s, x, w, at::empty_like(g));
    };
    const at::Tensor wanted = compute(generic);
    for (const int threads : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << s << " on " << threads << " threads");
      at::Tensor got;
      std::thread([&] {
        at::set_num_threads(threads);
        got = compute(GetParam());
      }).join();
      EXPECT_TRUE(test::same_bits(got, wanted));
    }
  }
}

/// Threads share the blocks of a weight's gradient if it has too few parts: few channels; many channels,
/// whose sums are made in several rounds; groups; unequal parts; fewer blocks than threads.
TEST_P(ConvolutionTest, SharedBlocksEqualGenericBitForBit) {
  const ConvolutionBuild& generic = convolution_builds().back();
  if (GetParam().add_block_sums == nullptr) GTEST_SKIP() << "threads share no blocks of this build";
  const std::vector<int64_t> window = {1, 3, 3}, border = {0, 1, 1};
  const std::vector<Shape> shapes = {
      {.batch = 9, .channels = 3, .outputs = 33, .size = {1, 32, 31}, .taps = window, .padding = border},
      {.batch = 3, .channels = 2, .outputs = 5, .size = {5, 30, 31}, .taps = {2, 3, 3}, .step = {1, 2, 1}},
      {.batch = 10,
       .channels = 70,
       .outputs = 33,
       .size = {1, 48, 48},
       .taps = window,
       .dilation = {1, 1, 2}},
      {.batch = 4, .groups = 40, .size = {1, 40, 40}, .taps = window, .padding = border},
      {.batch = 5, .groups = 12, .channels = 4, .outputs = 4, .size = {1, 33, 33}, .taps = window},
      {.batch = 1, .channels = 3, .outputs = 40, .size = {1, 34, 44}, .taps = {1, 6, 6}}};
  const int before = at::get_num_threads();
  for (const Shape& s : shapes)
    for (const int layout : {0, 1}) {
      const auto dtype = layout == 0 ? at::kHalf : at::kBFloat16;
      const at::Tensor x = laid_out(s.source(dtype), layout), w = laid_out(s.weight(dtype), layout),
                       g = laid_out(s.result(dtype), layout);
      const at::Tensor wanted = by_weight(generic, s, g, x, at::empty_like(w));
      for (const int threads : {2, 3, 7, 16}) {
        SCOPED_TRACE(testing::Message() << s << ", layout " << layout << ", " << threads << " threads");
        at::set_num_threads(threads);
        EXPECT_TRUE(test::same_bits(by_weight(GetParam(), s, g, x, at::empty_like(w)), wanted));
        at::set_num_threads(before);
      }
    }
}

/// The memory beside the results stays unchanged, in every layout.
TEST_P(ConvolutionTest, WritesItsResultsAlone) {
  const Shape full{.batch = 2, .channels = 5, .outputs = 19, .size = {1, 7, 9}, .taps = {1, 3, 3}};
  const Shape depthwise{.batch = 2, .groups = 19, .size = {1, 7, 9}, .taps = {1, 3, 3}};
  for (const int i : {0, 1, 2, 3}) {
    const Shape& s = i < 2 ? full : depthwise;
    const int layout = i % 2;
    const at::Tensor x = s.source(at::kHalf), w = s.weight(at::kHalf), wanted = forward(s, x, w);
    const at::Tensor around = laid_out(at::full({4, 23, 1, 9, 11}, 7, at::kHalf), layout);
    const at::Tensor inside = around.narrow(0, 1, 2).narrow(1, 2, 19).narrow(3, 2, 5).narrow(4, 1, 7);
    forward(GetParam(), s, x, w, inside);
    EXPECT_TRUE(test::same_bits(inside, wanted)) << layout;
    inside.fill_(7);
    EXPECT_TRUE((around == 7).all().item<bool>()) << layout;
  }
  // Rows and columns are swapped: eight results in a row are as far apart as adjacent ones would be.
  const Shape narrow{.channels = 5, .outputs = 3, .size = {1, 4, 2}};
  const at::Tensor small = narrow.source(at::kHalf), by = narrow.weight(at::kHalf);
  const at::Tensor swapped = at::empty({1, 3, 1, 2, 4}, at::kHalf).transpose(3, 4);
  EXPECT_TRUE(test::same_bits(forward(GetParam(), narrow, small, by, swapped), forward(narrow, small, by)));
}

TEST_P(ConvolutionTest, ThreadsOfTheProgramConvolveAtTheSameTime) {
  const Shape s{.batch = 2, .channels = 40, .outputs = 30, .size = {1, 12, 12}, .taps = {1, 3, 3}};
  const at::Tensor x = s.source(at::kHalf), w = s.weight(at::kHalf), wanted = forward(s, x, w);
  std::vector<at::Tensor> got(4);
  std::vector<std::thread> threads;
  for (at::Tensor& mine : got) threads.emplace_back([&] { mine = forward(s, x, w); });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& each : got) EXPECT_TRUE(test::same_bits(each, wanted));
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, ConvolutionTest, testing::ValuesIn(convolution_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

TEST(Convolution, KernelsBeyondTheScratchAreRefused) {
  const Shape taps{.size = {1, 1, 2000}, .taps = {1, 1, 1500}};
  const Shape reach{.channels = 128, .size = {1, 2000, 2000}, .taps = {1, 3, 3}, .dilation = {1, 900, 900}};
  for (const Shape& s : {taps, reach}) {
    EXPECT_FALSE(is_computable(problem<Convolution>(s)));
    EXPECT_FALSE(is_computable(problem<ConvolutionWeight>(s)));
    EXPECT_THROW(convolution({problem<Convolution>(s)}, convolution_builds().back()), c10::Error);
    EXPECT_THROW(convolution_weight(problem<ConvolutionWeight>(s), convolution_builds().back()), c10::Error);
  }
}

}  // namespace
}  // namespace mantissa::kernels::cpu::convolution_test
