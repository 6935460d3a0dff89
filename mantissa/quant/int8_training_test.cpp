#include "mantissa/quant/int8_training.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "mantissa/quant/linear_int8.h"
#include "mantissa/quant/test_support_internal.h"

namespace mantissa::int8_training_test {
namespace {

using test::same_bits;
using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<const Int8TrainingRule> train_in_int8(const at::Tensor& weight, double threshold = 0) {
  auto rule = std::make_shared<Int8TrainingRule>(threshold, "'fc.weight'");
  mark_weight(weight, rule);
  return rule;
}

/// Returns an ordinary tensor with the values of a marked one.
at::Tensor plain(const at::Tensor& weight) {
  at::Tensor copy = weight.detach().clone();
  unmark_weight(copy);
  return copy;
}

TEST(Int8Training, APlainLinearTrains) {
  torch::manual_seed(0);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const double threshold : {0.0, 1.5})
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{40}, {6, 40}, {2, 3, 40}, {0, 40}}) {
        torch::nn::Linear layer(40, 24);
        layer->to(dtype);
        const at::Tensor weight = plain(layer->weight).set_requires_grad(true),
                         bias = layer->bias.detach().clone().set_requires_grad(true);
        train_in_int8(layer->weight, threshold);
        const at::Tensor x = at::randn(sizes).to(dtype).set_requires_grad(true),
                         same = x.detach().clone().set_requires_grad(true);
        const at::Tensor got = layer(x), want = linear_int8_training(same, weight, bias, threshold);
        // libtorch adds the bias of a layer to inputs of other dimensions than two, after the rounding.
        if (x.dim() == 2) {
          EXPECT_TRUE(same_bits(got, want));
        } else {
          EXPECT_TRUE(at::allclose(got, want, 1.6e-2, 1.6e-2));
        }
        const at::Tensor gradient = at::randn(got.sizes()).to(dtype);
        got.backward(gradient);
        want.backward(gradient);
        EXPECT_TRUE(same_bits(layer->weight.grad(), weight.grad())) << dtype << sizes;
        EXPECT_TRUE(same_bits(x.grad(), same.grad()));
        EXPECT_TRUE(at::allclose(layer->bias.grad(), bias.grad(), 1e-2, 1e-2));
        EXPECT_EQ(layer->weight.grad().scalar_type(), dtype);
      }
}

TEST(Int8Training, Q34_QuantizesAgainWhenTheWeightHasChangedAndNotBetweenMicroBatches) {
  torch::manual_seed(0);
  torch::nn::Linear layer(40, 24);
  const auto rule = train_in_int8(layer->weight);
  torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.5));
  const at::Tensor x = at::randn({6, 40});
  const at::Tensor before = layer(x).detach();
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) layer(x).square().sum().backward();
  EXPECT_EQ(rule->quantizations(), 1);
  optimizer.step();  // through data(), which bumps no version
  const at::Tensor after = layer(x).detach();
  EXPECT_EQ(rule->quantizations(), 2);
  EXPECT_FALSE(at::equal(before, after));
  EXPECT_TRUE(same_bits(after, linear_int8_training(x, plain(layer->weight), layer->bias)));
  // Each way of changing one value is noticed.
  const at::NoGradGuard no_grad;
  layer->weight.data_ptr<float>()[17] += 1;
  layer(x);
  EXPECT_EQ(rule->quantizations(), 3);
  layer->weight.data().view({-1})[959] += 1;
  layer(x);
  EXPECT_EQ(rule->quantizations(), 4);
  layer->weight.set_data(at::randn({24, 40}));
  EXPECT_TRUE(same_bits(layer(x), linear_int8_training(x, plain(layer->weight), layer->bias)));
  EXPECT_EQ(rule->quantizations(), 5);
}

TEST(Int8Training, TheGraphKeepsTheCodesOfItsForwardPass) {
  torch::manual_seed(0);
  torch::nn::Linear layer(40, 24);
  train_in_int8(layer->weight);
  const at::Tensor x = at::randn({6, 40}).set_requires_grad(true);
  const at::Tensor restored = dequantize_int8(quantize_int8(plain(layer->weight)));
  const at::Tensor y = layer(x);
  {
    const at::NoGradGuard no_grad;
    layer->weight.zero_();
    layer(x);
  }
  y.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), at::ones({6, 24}).mm(restored), 1e-5, 1e-5));
}

// A hash of 4 bytes at a time must not miss the last value of an odd number of 16-bit values.
TEST(Int8Training, OddSizesAreHashedToTheEnd) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 1}, {3, 3}, {1, 3}, {5, 7}}) {
    const at::Tensor weight = at::ones(sizes, at::kHalf), x = at::ones({2, sizes[1]}, at::kHalf);
    const auto rule = train_in_int8(weight);
    const at::Tensor before = torch::linear(x, weight);
    EXPECT_TRUE(same_bits(torch::linear(x, weight), before));
    EXPECT_EQ(rule->quantizations(), 1);
    weight.view({-1})[weight.numel() - 1] = 2;
    EXPECT_FALSE(at::equal(torch::linear(x, weight), before)) << sizes;
    EXPECT_EQ(rule->quantizations(), 2);
  }
}

TEST(Int8Training, EmptyWeightsAndViewsWithGapsWork) {
  torch::manual_seed(0);
  const at::Tensor none = at::empty({0, 4}), thin = at::empty({4, 0});
  train_in_int8(none);
  train_in_int8(thin);
  EXPECT_EQ(torch::linear(at::ones({2, 4}), none).sizes(), (std::vector<int64_t>{2, 0}));
  EXPECT_TRUE(at::equal(torch::linear(at::ones({2, 0}), thin), at::zeros({2, 4})));
  const at::Tensor weight = at::randn({24, 40});
  const at::Tensor values = plain(weight), x = at::randn({3, 24}), narrow = at::randn({3, 7});
  const auto rule = train_in_int8(weight);
  EXPECT_TRUE(same_bits(x.matmul(weight), linear_int8_training(x, values.t())));
  EXPECT_TRUE(same_bits(torch::linear(narrow, weight.slice(1, 3, 10)),
                        linear_int8_training(narrow, values.slice(1, 3, 10))));
  EXPECT_EQ(rule->quantizations(), 2);
}

TEST(Int8Training, InferenceModeAndTrainingShareCodes) {
  torch::manual_seed(0);
  torch::nn::Linear layer(40, 24);
  const auto rule = train_in_int8(layer->weight);
  const at::Tensor x = at::randn({6, 40});
  {
    const c10::InferenceMode inference;
    layer(x);
  }
  layer(x).sum().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
  EXPECT_EQ(rule->quantizations(), 1);
}

TEST(Int8Training, ItsGradientHasNoDerivativeAndSaysSo) {
  torch::nn::Linear layer(4, 3);
  train_in_int8(layer->weight);
  const at::Tensor x = at::randn({2, 4}).set_requires_grad(true);
  EXPECT_THAT(error_of([&] { torch::autograd::grad({layer(x).sum()}, {x}, {}, true, true); }),
              HasSubstr("its gradient has no derivative"));
}

TEST(Int8Training, WhatCannotBeQuantizedIsNamed) {
  torch::nn::Linear layer(4, 3);
  train_in_int8(layer->weight);
  const at::Tensor x = at::randn({2, 4});
  const at::NoGradGuard no_grad;
  layer->weight.view({-1})[5] = NAN;
  EXPECT_THAT(error_of([&] { layer(x); }), AllOf(HasSubstr("'fc.weight' has 1 values that are inf or nan")));
  layer->weight.view({-1})[5] = 1e6;
  EXPECT_THAT(error_of([&] { layer(x); }), HasSubstr("'fc.weight' has values that float16 cannot hold"));
  layer->weight.view({-1})[5] = 1;
  EXPECT_NO_THROW(layer(x)) << "nothing of the failed calls is left";
  layer->to(at::kDouble);
  EXPECT_THAT(error_of([&] { layer(x.to(at::kDouble)); }), HasSubstr("dtype Double"));
  EXPECT_THAT(error_of([] { Int8TrainingRule(-1); }), HasSubstr("the threshold is -1"));
  EXPECT_THROW(Int8TrainingRule rule(NAN), c10::ValueError);
}

TEST(Int8Training, ACopysRuleHasTheSameSettings) {
  const Int8TrainingRule rule(2.5, "'w'");
  const auto copy = std::dynamic_pointer_cast<const Int8TrainingRule>(rule.for_copy());
  EXPECT_EQ(copy->threshold(), 2.5);
  EXPECT_NE(copy.get(), &rule);
  const at::Tensor bad = at::full({2, 2}, INFINITY);
  EXPECT_THAT(error_of([&] { copy->linear(at::ones({1, 2}), bad, {}); }), HasSubstr("'w' has 4 values"));
}

}  // namespace
}  // namespace mantissa::int8_training_test
