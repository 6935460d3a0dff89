#include <gtest/gtest.h>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/pointwise_convolution_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::pointwise_convolution_test {
namespace {

namespace aten = kernels::aten;

using at::Tensor;

class Pointwise : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
  void TearDown() override { pin_cpu_kernels(tier_name(cpu_tier())); }
};

Tensor channels_last(const Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }

/// Images, channels, results, and pixels along a side.
const std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> kShapes = {
    {1, 5, 7, 3}, {4, 20, 1, 9}, {3, 1, 30, 11}, {6, 5, 7, 33}, {8, 3, 2, 40}, {2, 70, 40, 10}};

/// The result does not depend on the threads: sums are made in parts of the images that depend on the shape
/// alone.
TEST_F(Pointwise, IsTheProductOfEachImage) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [images, channels, results, side] : kShapes)
      for (const bool last : {false, true}) {
        SCOPED_TRACE(testing::Message() << images << " x " << channels << " to " << results << " at " << side
                                        << " " << dtype << (last ? ", channels last" : ""));
        const auto tensor = [&, n = images, size = side](int64_t count) {
          const Tensor x = at::randn({n, count, size, size}).to(dtype);
          return last ? channels_last(x) : x;
        };
        const Tensor x = tensor(channels), g = tensor(results), y = at::empty_like(g);
        const Tensor w = at::randn({results, channels, 1, 1}).to(dtype), b = at::randn({results}).to(dtype);
        const auto wide = [](const Tensor& t) { return t.flatten(2).to(at::kDouble); };
        const Tensor matrix = w.view({results, channels}).to(at::kDouble),
                     column = b.view({-1, 1}).to(at::kDouble);

        ASSERT_TRUE(aten::pointwise_convolution::multiply(w, /*turned=*/false, x, b, y));
        test::expect_within_bound(y.flatten(2), matrix.matmul(wide(x)) + column,
                                  matrix.abs().matmul(wide(x).abs()) + column.abs(), channels);
        const Tensor by_input = at::empty_like(x);
        ASSERT_TRUE(aten::pointwise_convolution::multiply(w, /*turned=*/true, g, std::nullopt, by_input));
        test::expect_within_bound(by_input.flatten(2), matrix.t().matmul(wide(g)),
                                  matrix.t().abs().matmul(wide(g).abs()), results);
        const Tensor by_weight = at::empty_like(w);
        ASSERT_TRUE(aten::pointwise_convolution::multiply_pixels(g, x, by_weight));
        test::expect_within_bound(
            by_weight.view({results, channels}), wide(g).matmul(wide(x).transpose(1, 2)).sum(0),
            wide(g).abs().matmul(wide(x).abs().transpose(1, 2)).sum(0), images * side * side);
      }
}

TEST_F(Pointwise, IsDeclined) {
  const auto half = [](at::IntArrayRef sizes) { return at::ones(sizes, at::kHalf); };
  const Tensor w = half({20, 10, 1, 1}), x = half({2, 10, 9, 9}), y = half({2, 20, 9, 9});
  const auto declines = [&](const Tensor& from, const Tensor& to) {
    const bool forward = aten::pointwise_convolution::multiply(w, false, from, std::nullopt, to);
    EXPECT_EQ(forward, aten::pointwise_convolution::multiply(w, true, to, std::nullopt, from));
    EXPECT_EQ(forward, aten::pointwise_convolution::multiply_pixels(to, from, w.clone()));
    return !forward;
  };
  EXPECT_FALSE(declines(x, y));
  // The pixels are not evenly spaced.
  EXPECT_TRUE(declines(half({2, 10, 9, 18}).narrow(3, 0, 9), y));
  EXPECT_TRUE(declines(half({2, 10, 18, 9}).slice(2, 0, 18, 2).slice(3, 0, 9, 1).transpose(2, 3), y));
  // The images are too small for one product each, unless they form one row.
  EXPECT_TRUE(declines(half({9, 10, 3, 3}), half({9, 20, 3, 3})));
  EXPECT_FALSE(declines(channels_last(half({9, 10, 3, 3})), channels_last(half({9, 20, 3, 3}))));
  EXPECT_FALSE(declines(half({1, 10, 3, 3}), half({1, 20, 3, 3})));
  // libtorch's product was chosen. Whether its convolution is chosen as well is a separate decision.
  pin_cpu_kernels("generic,product=libtorch,small_product=libtorch,batched_product=libtorch");
  EXPECT_TRUE(declines(x, y));
}

}  // namespace
}  // namespace mantissa::pointwise_convolution_test
