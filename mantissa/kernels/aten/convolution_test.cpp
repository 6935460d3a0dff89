// Tests of convolutions in libtorch's place, like those of products in overrides_test.cpp.
#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::convolution_test {
namespace {

using test::same_bits;

struct Case {
  const char* name;
  std::vector<int64_t> input = {}, weight = {};
  std::vector<int64_t> stride = {1}, padding = {0}, dilation = {1}, output_padding = {0};
  int64_t groups = 1;
  bool transposed = false;
};

/// For GoogleTest's messages.
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

at::Tensor convolve(const Case& c, const at::Tensor& x, const at::Tensor& w,
                    const std::optional<at::Tensor>& b = {}) {
  return at::convolution(x, w, b, c.stride, c.padding, c.dilation, c.transposed, c.output_padding, c.groups);
}

std::vector<at::Tensor> gradients(const Case& c, const at::Tensor& g, const at::Tensor& x,
                                  const at::Tensor& w, std::array<bool, 3> mask = {true, true, true}) {
  const std::vector<int64_t> bias_sizes = {g.size(1)};
  const auto [gx, gw, gb] =
      at::convolution_backward(g, x, w, at::OptionalIntArrayRef(bias_sizes), c.stride, c.padding, c.dilation,
                               c.transposed, c.output_padding, c.groups, mask);
  return {gx, gw, gb};
}

std::vector<Case> cases() {
  return {
      {"Plain", {2, 20, 13, 11}, {35, 20, 3, 3}, {1}, {1}},
      {"OneByOne", {3, 17, 7, 9}, {33, 17, 1, 1}},
      {"OneByOneStrided", {2, 33, 9, 8}, {17, 33, 1, 1}, {2}},
      {"OneByOnePadded", {2, 5, 9, 8}, {17, 5, 1, 1}, {2, 3}, {1, 2}},
      {"OneByOneToOne", {4, 20, 9, 11}, {1, 20, 1, 1}},
      {"OneByOneFromTwo", {4, 2, 9, 11}, {30, 2, 1, 1}},
      {"OneByOneManyImages", {6, 5, 32, 33}, {7, 5, 1, 1}},
      {"OneByOneFewPixels", {9, 20, 3, 3}, {30, 20, 1, 1}},
      {"OneByOneLine", {3, 10, 150}, {21, 10, 1}},
      {"OneByOneVolume", {2, 6, 4, 5, 6}, {7, 6, 1, 1, 1}},
      {"OneByOneShifted", {2, 5, 12, 11}, {5, 7, 1, 1}, {1}, {1}, {3}, {2}, 1, true},
      {"OneByOneTransposed", {3, 17, 9, 8}, {17, 12, 1, 1}, {1}, {0}, {1}, {0}, 1, true},
      {"ThreeChannels", {2, 3, 40, 40}, {18, 3, 7, 7}, {2}, {3}},
      {"Strided", {3, 16, 14, 15}, {40, 16, 3, 3}, {2}, {1}},
      {"StrideBeyondKernel", {2, 6, 17, 19}, {9, 6, 2, 3}, {4, 5}, {1, 2}},
      {"KernelLargerThanImage", {2, 4, 3, 2}, {6, 4, 5, 6}, {1}, {2, 3}},
      {"Dilated", {2, 9, 16, 15}, {20, 9, 3, 3}, {1}, {2, 4}, {2, 4}},
      {"DilatedStrided", {2, 9, 16, 15}, {20, 9, 3, 3}, {2, 3}, {3, 1}, {3, 2}},
      {"Grouped", {2, 24, 10, 10}, {36, 8, 3, 3}, {1}, {1}, {1}, {0}, 3},
      {"GroupedStrided", {2, 12, 9, 11}, {8, 3, 3, 2}, {2}, {1}, {1}, {0}, 4},
      {"Depthwise", {2, 37, 11, 12}, {37, 1, 3, 3}, {1}, {1}, {1}, {0}, 37},
      {"DepthwiseStrided", {2, 19, 11, 12}, {19, 1, 5, 3}, {2}, {2, 1}, {1}, {0}, 19},
      {"DepthwiseTwice", {2, 10, 11, 12}, {20, 1, 3, 3}, {1}, {1}, {2}, {0}, 10},
      {"ManyChannels", {1, 300, 5, 6}, {20, 300, 3, 3}, {1}, {1}},
      {"ManyOutputs", {1, 20, 5, 6}, {600, 20, 3, 3}, {1}, {1}},
      {"ManyPixels", {2, 4, 70, 71}, {5, 4, 3, 3}, {1}, {1}},
      {"OnePixel", {1, 40, 1, 1}, {30, 40, 1, 1}},
      {"Asymmetric", {2, 7, 12, 9}, {10, 7, 4, 1}, {3, 1}, {2, 0}},
      {"Line", {3, 10, 50}, {21, 10, 5}, {1}, {2}},
      {"LongLine", {1, 3, 5000}, {6, 3, 9}, {2}, {4}, {3}},
      {"Volume", {2, 5, 6, 7, 8}, {11, 5, 3, 2, 3}, {1, 2, 1}, {1, 0, 1}},
      {"VolumeDilated", {1, 4, 7, 8, 9}, {6, 2, 2, 3, 2}, {2, 1, 2}, {1, 2, 1}, {1, 2, 3}, {0}, 2},
      {"Transposed", {2, 15, 6, 7}, {15, 18, 3, 3}, {1}, {1}, {1}, {0}, 1, true},
      {"TransposedStrided", {2, 15, 6, 7}, {15, 18, 4, 3}, {2, 3}, {1}, {1}, {1, 2}, 1, true},
      {"TransposedGrouped", {2, 12, 6, 7}, {12, 5, 3, 3}, {2}, {0}, {2}, {1}, 3, true},
      {"TransposedGaps", {1, 4, 4, 5}, {4, 6, 1, 2}, {3}, {0}, {1}, {2}, 1, true},
      {"TransposedLine", {2, 6, 20}, {6, 9, 4}, {3}, {2}, {1}, {1}, 1, true},
      {"TransposedVolume", {1, 4, 3, 4, 5}, {4, 3, 2, 3, 2}, {2}, {1, 0, 1}, {1}, {0, 1, 1}, 1, true},
  };
}

class Convolutions : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  }
  void TearDown() override { disable_cpu_kernels(); }

  template <typename F>
  static auto stock(const F& compute) {
    disable_cpu_kernels();
    const auto result = compute();
    enable_cpu_kernels();
    return result;
  }
};

std::vector<at::ScalarType> dtypes_here() {
  std::vector<at::ScalarType> dtypes;
  if (kernel_for(KernelFamily::kConvolution, kernels::Element::kFloat16).tier) dtypes.push_back(at::kHalf);
  if (kernel_for(KernelFamily::kConvolution, kernels::Element::kBFloat16).tier)
    dtypes.push_back(at::kBFloat16);
  return dtypes;
}

class ConvolutionCases : public Convolutions, public testing::WithParamInterface<Case> {};

/// Lays `x` out: channels last, where there is such a format; every second element of a larger tensor;
/// expanded from one image; or with gaps between rows.
at::Tensor laid_out(const at::Tensor& x, int layout) {
  switch (layout) {
    case 1:
      return x.dim() == 4   ? x.contiguous(at::MemoryFormat::ChannelsLast)
             : x.dim() == 5 ? x.contiguous(at::MemoryFormat::ChannelsLast3d)
                            : x;
    case 2:
      return at::stack({x, x}, -1).select(-1, 0);
    case 3:
      return x.transpose(0, 1).contiguous().transpose(0, 1);
    case 4:
      return at::cat({x, x}, -1).narrow(-1, x.size(-1), x.size(-1));
    default:
      return x;
  }
}

TEST_P(ConvolutionCases, ResultsAndGradientsAreWithinTheBound) {
  const Case& c = GetParam();
  if (dtypes_here().empty()) GTEST_SKIP() << "libtorch's own on " << tier_name(cpu_tier());
  for (const auto dtype : dtypes_here()) {
    const at::Tensor x = at::randn(c.input).to(dtype), w = at::randn(c.weight).to(dtype);
    const at::Tensor b = at::randn({c.transposed ? c.weight[1] * c.groups : c.weight[0]}).to(dtype);
    const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
    const at::Tensor exact = convolve(c, wide(x), wide(w), wide(b));
    const at::Tensor magnitude = convolve(c, wide(x).abs(), wide(w).abs(), wide(b).abs());
    const at::Tensor g = at::randn(exact.sizes()).to(dtype);
    const auto exact_gradients = gradients(c, wide(g), wide(x), wide(w));
    const auto magnitudes = gradients(c, wide(g).abs(), wide(x).abs(), wide(w).abs());
    const int64_t taps = w[0][0].numel(), channels = std::max(c.weight[0], c.weight[1]);
    for (int layout = 0; layout < 5; ++layout) {
      SCOPED_TRACE(testing::Message() << dtype << " layout " << layout);
      const at::Tensor x_laid = laid_out(x, layout), w_laid = laid_out(w, (layout + layout / 2) % 4),
                       g_laid = laid_out(g, layout);
      const at::Tensor y = convolve(c, x_laid, w_laid, b);
      test::expect_within_bound(y, exact, magnitude, taps * channels);
      EXPECT_TRUE(same_bits(convolve(c, x_laid, w_laid), convolve(c, x_laid, w_laid, at::zeros_like(b))));
      const auto got = gradients(c, g_laid, x_laid, w_laid);
      const int64_t summed[] = {taps * channels, y.numel() / y.size(1), y.numel() / y.size(1)};
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "gradient " << i);
        test::expect_within_bound(got[i], exact_gradients[i], magnitudes[i], summed[i]);
      }
    }
  }
}

/// Results have the memory format of libtorch's kernel, because other operators choose their own format by
/// it.
TEST_P(ConvolutionCases, MemoryFormatsAreLibtorchs) {
  const Case& c = GetParam();
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (int layout = 0; layout < 4; ++layout) {
      const at::Tensor x = laid_out(at::randn(c.input).to(dtype), layout % 2),
                       w = laid_out(at::randn(c.weight).to(dtype), layout / 2);
      const auto all = [&] {
        const at::Tensor y = convolve(c, x, w);
        std::vector<at::Tensor> results = gradients(c, at::ones_like(y), x, w);
        results.push_back(y);
        return results;
      };
      const auto ours = all(), theirs = stock(all);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(ours[i].is_contiguous(theirs[i].suggest_memory_format())) << dtype << layout << i;
        EXPECT_EQ(ours[i].is_contiguous(), theirs[i].is_contiguous()) << dtype << layout << i;
      }
    }
}

TEST_P(ConvolutionCases, ResultsDoNotDependOnTheNumberOfThreads) {
  const Case& c = GetParam();
  const int before = at::get_num_threads();
  for (const auto dtype : dtypes_here()) {
    // There are enough images for threads to share the work: see threads_for().
    std::vector<int64_t> sizes = c.input;
    sizes[0] = 1;
    const at::Tensor w = at::randn(c.weight).to(dtype);
    const at::Tensor image = at::randn(sizes).to(dtype), result = convolve(c, image, w);
    const int64_t products = (c.transposed ? image.numel() : result.numel()) * w[0].numel();
    sizes[0] = std::max<int64_t>(1, (int64_t{7} << 18) / products);
    const at::Tensor x = at::randn(sizes).to(dtype);
    at::set_num_threads(1);
    const at::Tensor y = convolve(c, x, w), g = at::randn(y.sizes()).to(dtype);
    const auto wanted = gradients(c, g, x, w);
    for (const int threads : {2, 3, 7}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(same_bits(convolve(c, x, w), y)) << threads;
      const auto got = gradients(c, g, x, w);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(same_bits(got[i], wanted[i])) << threads << " " << i;
    }
  }
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(All, ConvolutionCases, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

/// Our gradients do not depend on which other gradients are requested. libtorch's may: oneDNN chooses a
/// kernel for each one, and computes a weight's gradient together with that of a bias.
TEST_F(Convolutions, EveryMaskGivesWhatItNames) {
  const Case c{"", {2, 6, 8, 9}, {10, 6, 3, 3}, {2}, {1}};
  const std::string own = tier_name(cpu_tier());
  for (const auto dtype : {at::kHalf, at::kBFloat16})
    for (const std::string& kernel : {own, std::string("libtorch")}) {
      pin_cpu_kernels(kernel);
      const at::Tensor x = at::randn(c.input).to(dtype), w = at::randn(c.weight).to(dtype);
      const at::Tensor g = at::randn(convolve(c, x, w).sizes()).to(dtype);
      const auto all = gradients(c, g, x, w);
      for (int mask = 0; mask < 8; ++mask) {
        SCOPED_TRACE(testing::Message() << kernel << " " << dtype << " " << mask);
        const bool is_own = kernel == own && (mask & 3) != 0;  // libtorch computes a bias's gradient alone
        const auto masked = [&] {
          return gradients(c, g, x, w, {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0});
        };
        const auto some = masked(), wanted = is_own ? all : stock(masked);
        for (int i = 0; i < 3; ++i) {
          const bool is_named = (mask >> i & 1) != 0;
          EXPECT_EQ(some[i].defined(), is_own ? is_named : wanted[i].defined()) << i;
          if (is_named) {
            EXPECT_TRUE(some[i].defined() && same_bits(some[i], wanted[i])) << i;
          }
        }
      }
    }
  pin_cpu_kernels(own);
}

/// Dtypes and shapes that our kernels do not take: the results are libtorch's, bit for bit.
TEST_F(Convolutions, OtherCasesAreLibtorchs) {
  const auto half = [](at::IntArrayRef sizes) { return at::ones(sizes, at::kHalf); };
  const std::vector<std::function<at::Tensor()>> others = {
      [] {
        return at::conv2d(at::ones({2, 3, 5, 5}), at::ones({4, 3, 3, 3}));
      },
      [] {
        return at::conv2d(at::ones({2, 3, 5, 5}, at::kDouble), at::ones({4, 3, 3, 3}, at::kDouble));
      },
      [] {
        return at::conv1d(at::ones({2, 3, 5}), at::ones({4, 3, 3}));
      },
      [&] {
        return at::conv2d(half({0, 3, 5, 5}), half({4, 3, 3, 3}));
      },
      [&] {
        return at::conv_transpose2d(half({0, 3, 5, 5}), half({3, 4, 3, 3}));
      },
      [&] {
        const at::Tensor x = half({1, 1, 1, 2000});
        return at::conv2d(x, half({1, 1, 1, 1500}));  // more taps than a chain may have
      },
      [&] {
        // 4,900 remainders; if the zeros around the image were multiplied, there would be NaN.
        return at::conv_transpose2d(half({1, 1, 2, 3}), at::full({1, 1, 1, 80}, INFINITY, at::kHalf), {}, 70);
      },
      [&] {
        const Case c{"", {}, {}, {70}};
        return gradients(c, half({1, 1, 2, 3}), half({1, 1, 71, 220}),
                         at::full({1, 1, 1, 80}, INFINITY, at::kHalf))[0];
      },
      [&] {
        const Case c{"", {}, {}, {1 << 30}, {0}, {2}};  // remainders that share a factor with the dilation
        return gradients(c, half({1, 1, 1}), half({1, 1, 4096}), half({1, 1, 3}))[0];
      }};
  for (size_t i = 0; i < others.size(); ++i)
    EXPECT_TRUE(same_bits(others[i](), stock(others[i]))) << "case " << i;
}

/// The first cases are refused by every backend of libtorch, the others only by some. Where oneDNN supports
/// the dtype, it accepts some of these cases and words other errors differently.
TEST_F(Convolutions, ErrorsAreLibtorchs) {
  constexpr size_t kRefusedEverywhere = 6;
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto ones = [dtype](at::IntArrayRef sizes) { return at::ones(sizes, dtype); };
    const std::vector<std::function<std::vector<at::Tensor>()>> wrong = {
        [&] {
          return std::vector{at::conv2d(ones({2, 3, 5, 5}), ones({4, 2, 3, 3}))};
        },
        [&] {
          return std::vector{at::conv2d(ones({2, 3, 2, 2}), ones({4, 3, 3, 3}))};
        },
        [&] {
          return std::vector{at::conv2d(ones({2, 3, 5, 5}), ones({4, 3, 3, 3}), ones({5}))};
        },
        [&] {
          return std::vector{convolve({.name = "", .stride = {0}}, ones({2, 3, 5, 5}), ones({4, 3, 3, 3}))};
        },
        [&] {
          return std::vector{convolve({.name = "", .padding = {-1}}, ones({2, 3, 5, 5}), ones({4, 3, 3, 3}))};
        },
        [&] {
          return std::vector{convolve({.name = "", .groups = 2}, ones({2, 4, 5, 5}), ones({5, 2, 3, 3}))};
        },
        [&] {
          return std::vector{at::conv2d(ones({2, 3, 5, 5}), ones({4, 3, 3, 3}).to(at::kFloat))};
        },
        [&] {
          return std::vector{at::conv2d(ones({2, 3, 5, 5}), ones({4, 3, 3, 3}), at::ones({4}))};
        },
        [&] {
          return std::vector{convolve({.name = "", .stride = {2}, .output_padding = {2}, .transposed = true},
                                      ones({2, 3, 5, 5}), ones({3, 4, 3, 3}))};
        },
        [&] {
          return gradients({.name = ""}, ones({2, 4, 9, 9}), ones({2, 3, 5, 5}), ones({4, 3, 3, 3}),
                           {true, true, false});
        },
        [&] {
          return std::vector{at::conv_transpose1d(ones({1, 1, 1}), ones({1, 1, 3}), {},
                                                  std::numeric_limits<int64_t>::max())};
        }};
    for (size_t i = 0; i < wrong.size(); ++i) {
      SCOPED_TRACE(testing::Message() << dtype << " case " << i);
      std::vector<at::Tensor> ours, theirs;
      const std::string error = error_of([&] { ours = wrong[i](); });
      EXPECT_EQ(error, stock([&] { return error_of([&] { theirs = wrong[i](); }); }));
      if (i < kRefusedEverywhere) {
        EXPECT_NE(error, "no error");
      }
      ASSERT_EQ(ours.size(), theirs.size());
      for (size_t j = 0; j < ours.size(); ++j) EXPECT_EQ(ours[j].defined(), theirs[j].defined());
    }
  }
}

TEST_F(Convolutions, DisablingRestoresLibtorchsBits) {
  disable_cpu_kernels();
  const at::Tensor x = at::randn({2, 30, 9, 9}).to(at::kHalf), w = at::randn({20, 30, 3, 3}).to(at::kHalf);
  const at::Tensor before = at::conv2d(x, w);
  enable_cpu_kernels();
  at::conv2d(x, w);
  disable_cpu_kernels();
  EXPECT_TRUE(same_bits(at::conv2d(x, w), before));
}

TEST_F(Convolutions, GradientsAndTheirGradientsFlow) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool transposed : {false, true}) {
      const auto both = [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
        const at::Tensor y = transposed ? at::conv_transpose2d(x, w, b, 2, 1, 1) : at::conv2d(x, w, b, 2, 1);
        const auto first = torch::autograd::grad({y.square().sum()}, {x, w, b}, {}, true, true);
        const auto second = torch::autograd::grad({first[1].square().sum()}, {x, w});
        return std::vector<at::Tensor>{y, first[0], first[1], first[2], second[0], second[1]};
      };
      const at::Tensor x = (at::randn({2, 6, 7, 8}) / 2).to(dtype),
                       w = (at::randn({6, 6, 3, 3}) / 20).to(dtype), b = (at::randn({6}) / 10).to(dtype);
      const auto variable = [](const at::Tensor& t) { return t.detach().clone().set_requires_grad(true); };
      const auto ours = both(variable(x), variable(w), variable(b));
      const auto exact =
          both(variable(x.to(at::kDouble)), variable(w.to(at::kDouble)), variable(b.to(at::kDouble)));
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_EQ(ours[i].scalar_type(), dtype);
        // The error of several consecutive roundings to 16 bits.
        const double error = ((ours[i].to(at::kDouble) - exact[i]).norm() / exact[i].norm()).item<double>();
        EXPECT_LT(error, dtype == at::kHalf ? 2e-3 : 1.6e-2) << transposed << i;
      }
    }
}

TEST_F(Convolutions, ModulesUnbatchedImagesAndInferenceModeReachThem) {
  if (dtypes_here().empty()) GTEST_SKIP() << "libtorch's own on " << tier_name(cpu_tier());
  const auto dtype = dtypes_here().front();
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(5, 9, 3).padding(torch::kSame));
  layer->to(dtype);
  const at::Tensor x = at::randn({5, 8, 8}).to(dtype);
  const at::Tensor y = layer->forward(x);
  const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
  test::expect_within_bound(
      y.detach(), at::conv2d(wide(x), wide(layer->weight), wide(layer->bias), 1, 1),
      at::conv2d(wide(x).abs(), wide(layer->weight).abs(), wide(layer->bias).abs(), 1, 1), 45);
  const c10::InferenceMode inference;
  const at::Tensor z = layer->forward(x);
  EXPECT_TRUE(z.is_inference());
  EXPECT_TRUE(same_bits(z, y.detach()));
}

/// Pins all kernels to libtorch's, and to the CPU's tier again at the end, also where an assertion ends the test.
struct PinnedToLibtorch {
  PinnedToLibtorch() { pin_cpu_kernels("libtorch"); }
  ~PinnedToLibtorch() { pin_cpu_kernels(tier_name(cpu_tier())); }
  PinnedToLibtorch(const PinnedToLibtorch&) = delete;
  PinnedToLibtorch& operator=(const PinnedToLibtorch&) = delete;
};

/// oneDNN leaves the gradients of taps that read only padding unwritten, in bf16 with AMX.
TEST_F(Convolutions, TapsThatReadOnlyPaddingHaveNoGradient) {
  const PinnedToLibtorch pinned;
  const Case last_stage{"", {32, 256, 1, 1}, {256, 256, 3, 3}, {2}, {1}};
  const auto numbers = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kBFloat16); };
  const at::Tensor x = numbers(last_stage.input), w = numbers(last_stage.weight),
                   g = numbers({32, 256, 1, 1});
  for (int i = 0; i < 10; ++i) {
    at::full(last_stage.weight, NAN, at::kFloat);  // the next tensors may get this memory
    const at::Tensor gradient = gradients(last_stage, g, x, w, {false, true, false})[1];
    ASSERT_TRUE(gradient.isfinite().all().item<bool>()) << i;
    EXPECT_EQ(gradient.count_nonzero().item<int64_t>(),
              gradient.select(3, 1).select(2, 1).count_nonzero().item<int64_t>());
  }
}

/// y.sum().backward() passes one value as a whole gradient.
TEST_F(Convolutions, GradientsMayBeExpanded) {
  const Case c{"", {2, 6, 8, 9}, {10, 6, 3, 3}, {1}, {1}};
  const at::Tensor x = at::randn(c.input).to(at::kHalf), w = at::randn(c.weight).to(at::kHalf);
  const at::Tensor one = at::full({1, 1, 1, 1}, 0.75, at::kHalf).expand({2, 10, 8, 9});
  const auto ours = gradients(c, one, x, w), wanted = gradients(c, one.contiguous(), x, w);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(ours[i], wanted[i])) << i;
  EXPECT_TRUE(at::allclose(ours[2], wanted[2], 1e-3));
}

}  // namespace
}  // namespace mantissa::convolution_test
