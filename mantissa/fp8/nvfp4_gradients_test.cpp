// Tests what stochastic rounding is for: a weight's gradient that is right on average.
#include <cstdint>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/fp8/linear_test_support_internal.h"

namespace mantissa::nvfp4_gradients_test {
namespace {

using namespace fp8;

struct Layer {
  at::Tensor x, w, dy;
  at::Tensor exact() const { return at::matmul(dy.to(at::kDouble).t(), x.to(at::kDouble)); }
};

/// Returns the error of the mean of the weight's gradient over `draws` passes, relative to the exact gradient.
double error_of_mean(const Layer& layer, const NVFP4BlockScaling& recipe, uint64_t draws) {
  at::Tensor sum = at::zeros_like(layer.w, at::kDouble);
  for (uint64_t seed = 0; seed < draws; ++seed)
    sum += pass(layer.x, layer.w, {}, layer.dy, state_of(recipe, seed)).dw.to(at::kDouble);
  const at::Tensor exact = layer.exact();
  return ((sum / static_cast<double>(draws) - exact).norm() / exact.norm()).item<double>();
}

/// In each block of 16 tokens one gradient is large, and those of the other tokens are below half of the smallest code above 0. The
/// large ones cancel each other in the weight's gradient, which the small ones make up. The layer's input has codes alone.
Layer with_small_gradients() {
  torch::manual_seed(1);
  at::Tensor x = at::randint(-2, 3, {256, 32}, at::kFloat);
  at::Tensor dy = at::matmul(x, torch::randn({32, 32})) * 1e-3;
  for (int64_t token = 0; token < 256; token += 16) {
    x.select(0, token).fill_(6);
    dy.select(0, token).fill_(token % 32 == 0 ? 1 : -1);
  }
  return {x, torch::randn({32, 32}) * 0.1, dy};
}

TEST(NVFP4Gradients, RoundingToNearestLosesSmallOnesAndDrawsKeepTheirMean) {
  const Layer layer = with_small_gradients();
  const NVFP4BlockScaling drawn{.random_hadamard_transform = false},
      nearest{.stochastic_rounding = false, .random_hadamard_transform = false};
  const double rounded = error_of_mean(layer, nearest, 1);
  EXPECT_GT(rounded, 0.99) << "nothing is left";
  EXPECT_DOUBLE_EQ(error_of_mean(layer, nearest, 4), rounded) << "and no mean brings it back";
  const double few = error_of_mean(layer, drawn, 16), many = error_of_mean(layer, drawn, 256);
  EXPECT_NEAR(few / many, 4, 1) << "the error of a mean of 16 times as many draws is a quarter";
  EXPECT_LT(many, 0.35);
}

}  // namespace
}  // namespace mantissa::nvfp4_gradients_test
