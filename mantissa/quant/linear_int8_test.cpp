#include "mantissa/quant/linear_int8.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

#include "mantissa/kernels/int8.h"
#include "mantissa/quant/test_support_internal.h"

namespace mantissa::linear_int8_test {
namespace {

using quant::recorded;
using testing::HasSubstr;

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }

TEST(LinearInt8, Q30_EqualsBitsandbytesInEvalMode) {
  const auto tensors = recorded("int8");
  const QuantizedInt8 weight = quantize_int8(tensors.at("w"));
  for (const std::string t : {"t0", "t6"}) {
    const at::Tensor y = linear_int8(tensors.at("x"), weight, tensors.at("bias"), t == "t6" ? 6 : 0);
    EXPECT_EQ(y.scalar_type(), at::kHalf);
    EXPECT_TRUE(at::allclose(y.to(at::kFloat), tensors.at(t + "_linear_eval_f16").to(at::kFloat), 2e-3, 5e-3))
        << t;
  }
}

TEST(LinearInt8, Q31_OutlierColumnsReduceTheError) {
  const auto tensors = recorded("int8");
  const QuantizedInt8 weight = quantize_int8(tensors.at("w"));
  const at::Tensor x = tensors.at("x").to(at::kFloat), exact = x.mm(tensors.at("w").to(at::kFloat).t());
  const auto error = [&](double threshold) {
    return (linear_int8(x, weight, {}, threshold) - exact).abs().max().item<double>();
  };
  EXPECT_NEAR(error(0), 0.042, 0.002);
  EXPECT_NEAR(error(6), 0.020, 0.002);
  // Columns that are all outliers leave only the error of the weight.
  const at::Tensor restored = x.mm(dequantize_int8(weight).t());
  EXPECT_TRUE(at::allclose(linear_int8(x, weight, {}, 1e-9), restored, 1e-5, 1e-5));
}

TEST(LinearInt8, TheInputsGradientIsThatOfTheRestoredWeight) {
  const QuantizedInt8 weight = quantize_int8(at::randn({24, 40}));
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{40}, {6, 40}, {2, 3, 40}})
    for (const double threshold : {0.0, 1.5}) {
      const at::Tensor x = leaf(at::randn(sizes)), bias = leaf(at::randn({24}));
      const at::Tensor y = linear_int8(x, weight, bias, threshold);
      const at::Tensor gradient = at::randn(y.sizes());
      y.backward(gradient);
      EXPECT_TRUE(at::allclose(x.grad(), gradient.matmul(dequantize_int8(weight)), 1e-5, 1e-5));
      EXPECT_TRUE(at::allclose(bias.grad(), gradient.reshape({-1, 24}).sum(0), 1e-5, 1e-5));
    }
  const at::Tensor x = leaf(at::randn({3, 40})), g = leaf(at::randn({3, 24}));
  const at::Tensor first = torch::autograd::grad({linear_int8(x, weight)}, {x}, {g}, true, true)[0];
  EXPECT_TRUE(torch::autograd::grad({first.sum()}, {g})[0].defined()) << "the gradient has a derivative";
}

TEST(LinearInt8, IsNearALayerInEachDtypeAndForNoRows) {
  const at::Tensor w = at::randn({24, 40}), bias = at::randn({24});
  const QuantizedInt8 weight = quantize_int8(w);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const double threshold : {0.0, 2.0}) {
      const at::Tensor x = at::randn({6, 40}).to(dtype);
      const at::Tensor y = linear_int8(x, weight, bias, threshold);
      EXPECT_EQ(y.scalar_type(), dtype);
      const at::Tensor want = torch::nn::functional::linear(x.to(at::kFloat), w, bias);
      EXPECT_LE((y.to(at::kFloat) - want).abs().max().item<double>(), 0.02 * want.abs().max().item<double>());
      const at::Tensor none = leaf(at::empty({0, 40}, dtype));
      const at::Tensor empty = linear_int8(none, weight, bias, threshold);
      EXPECT_EQ(empty.sizes(), (std::vector<int64_t>{0, 24}));
      empty.sum().backward();
      EXPECT_EQ(none.grad().sizes(), none.sizes());
    }
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
}

TEST(LinearInt8Training, Q33_FollowsTheFormula) {
  const auto tensors = recorded("int8");
  const at::Tensor x = leaf(tensors.at("x")), weight = leaf(tensors.at("w"));
  const at::Tensor y = linear_int8_training(x, weight, tensors.at("bias"));
  const at::Tensor want = tensors.at("train_y_formula").to(at::kFloat);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), want, 2e-3, 2e-3 * want.abs().max().item<double>()));
  y.backward(tensors.at("train_gy").to(at::kHalf));
  EXPECT_EQ(weight.grad().scalar_type(), at::kHalf);
  const at::Tensor gw = tensors.at("train_gw_formula").to(at::kFloat),
                   gx = tensors.at("train_gx_formula").to(at::kFloat);
  EXPECT_TRUE(at::allclose(weight.grad().to(at::kFloat), gw, 2e-3, 2e-3 * gw.abs().max().item<double>()));
  EXPECT_TRUE(at::allclose(x.grad().to(at::kFloat), gx, 1e-3, 1e-3 * gx.abs().max().item<double>()));
}

TEST(LinearInt8Training, OutlierColumnsGiveTheirGradientInFloat) {
  at::Tensor values = at::randn({50, 32});
  values.select(1, 3).mul_(30);
  const at::Tensor x = leaf(values), weight = leaf(at::randn({24, 32})), gradient = at::randn({50, 24});
  linear_int8_training(x, weight, {}, 6).backward(gradient);
  const at::Tensor exact = gradient.t().mm(values);
  EXPECT_TRUE(at::allclose(weight.grad().select(1, 3), exact.select(1, 3), 1e-5, 1e-3));
  EXPECT_LE(largest_difference(weight.grad(), exact), 0.01 * exact.abs().max().item<double>());
  EXPECT_GT(largest_difference(weight.grad().narrow(1, 4, 28), exact.narrow(1, 4, 28)), 1e-4)
      << "8-bit elsewhere";
}

TEST(LinearInt8Training, Q34_UsesTheCodesThatItIsGiven) {
  const at::Tensor x = at::randn({5, 32}), weight = at::randn({8, 32});
  const QuantizedInt8 codes = quantize_int8(weight);
  const at::Tensor before = linear_int8_training(x, weight, {}, 0, codes);
  EXPECT_TRUE(at::equal(linear_int8_training(x, weight), before));
  weight.mul_(1.5);
  EXPECT_TRUE(at::equal(linear_int8_training(x, weight, {}, 0, codes), before)) << "between micro-batches";
  EXPECT_FALSE(at::equal(linear_int8_training(x, weight), before)) << "after a step";
  EXPECT_THAT(error_of([&] {
                linear_int8_training(x, at::randn({9, 32}), {}, 0, codes);
              }),
              HasSubstr("the codes have the shape [8, 32]"));
}

TEST(LinearInt8Training, ABatchOfAnySizeHasAGradient) {
  const int64_t rows = kernels::kMaxInt8Depth + 3;
  // The largest sums that there are, all of one sign: they overflow int32 beyond the limit.
  const at::Tensor x = at::ones({rows, 2}), weight = leaf(at::ones({3, 2}));
  linear_int8_training(x, weight).backward(at::ones({rows, 3}));
  EXPECT_TRUE(at::allclose(weight.grad(), at::full({3, 2}, static_cast<double>(rows)), 1e-5));
}

TEST(LinearInt8Training, ItsGradientHasNoDerivative) {
  const at::Tensor x = leaf(at::randn({5, 32})), weight = leaf(at::randn({8, 32}));
  const at::Tensor loss = linear_int8_training(x, weight).sum();
  EXPECT_THAT(error_of([&] { torch::autograd::grad({loss}, {weight}, {}, true, /*create_graph=*/true); }),
              HasSubstr("call backward() without create_graph"));
}

TEST(LinearInt8Training, OnlyWhatNeedsAGradientIsComputed) {
  const at::Tensor x = at::randn({5, 32}), weight = leaf(at::randn({8, 32})), bias = leaf(at::randn({8}));
  linear_int8_training(x, weight, bias).sum().backward();
  EXPECT_TRUE(at::equal(bias.grad(), at::full({8}, 5.0)));
  const at::Tensor input = leaf(x);
  linear_int8_training(input, weight.detach()).sum().backward();
  EXPECT_TRUE(input.grad().defined());
  const at::Tensor none = leaf(at::empty({0, 32}));
  weight.mutable_grad() = at::Tensor();
  linear_int8_training(none, weight).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros({8, 32})));
}

TEST(LinearInt8, NegativeViewsAreTheValuesTheyShow) {
  const at::Tensor x = at::_neg_view(at::randn({9, 64})), bias = at::_neg_view(at::randn({33})),
                   values = at::_neg_view(at::randn({33, 64}).to(at::kHalf));
  const QuantizedInt8 weight = quantize_int8(values.resolve_neg());
  EXPECT_TRUE(at::equal(quantize_int8(values).codes, weight.codes));
  for (const double threshold : {0.0, 1.0})
    EXPECT_TRUE(at::equal(linear_int8(x, weight, bias, threshold),
                          linear_int8(x.resolve_neg(), weight, bias.resolve_neg(), threshold)));
  const at::Tensor a = at::_neg_view(at::randint(-9, 9, {4, 8}, at::kChar));
  EXPECT_TRUE(at::equal(int8_matmul(a, a), int8_matmul(a.resolve_neg(), a.resolve_neg())));
}

TEST(LinearInt8, WhatDoesNotFitIsRefused) {
  const QuantizedInt8 weight = quantize_int8(at::randn({8, 32}));
  EXPECT_THAT(error_of([&] { linear_int8(at::randn({3, 31}), weight); }), HasSubstr("has to be 32"));
  EXPECT_THAT(error_of([&] {
                linear_int8(at::randn({3, 32}), weight, at::randn({7}));
              }),
              HasSubstr("to be [8]"));
  EXPECT_THAT(error_of([&] {
                linear_int8(at::randn({3, 32}).to(at::kDouble), weight);
              }),
              HasSubstr("dtype Double"));
  EXPECT_THAT(error_of([&] {
                linear_int8(at::randn({3, 32}), weight, {}, -6);
              }),
              HasSubstr("threshold is -6"));
}

}  // namespace
}  // namespace mantissa::linear_int8_test
