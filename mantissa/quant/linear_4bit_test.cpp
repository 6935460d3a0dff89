#include "mantissa/quant/linear_4bit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

#include "mantissa/quant/test_support_internal.h"

namespace mantissa::linear_4bit_test {
namespace {

using quant::recorded;
using testing::HasSubstr;

Quantized4Bit weight_of(int64_t out, int64_t in, const Quantize4BitOptions& options = {}) {
  return quantize_4bit(at::randn({out, in}), options);
}

TEST(Linear4Bit, Q20_Q21_Q22_EqualsBitsandbytes) {
  const auto tensors = recorded("quant4");
  const Quantized4Bit weight = quantize_4bit(tensors.at("w_32x64"));
  const at::Tensor x = tensors.at("lin_x").clone().set_requires_grad(true);
  const at::Tensor bias = tensors.at("lin_bias").clone().set_requires_grad(true);
  const at::Tensor y = linear_4bit(x, weight, bias);
  EXPECT_TRUE(at::allclose(y, tensors.at("lin_y_m4"), 1e-5, 1e-6));
  y.backward(tensors.at("lin_gy"));
  EXPECT_TRUE(at::allclose(x.grad(), tensors.at("lin_gx"), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(bias.grad(), tensors.at("lin_gbias"), 1e-5, 1e-6));
  const at::Tensor one = linear_4bit(x.detach().narrow(0, 0, 1), weight, bias.detach());
  EXPECT_TRUE(at::allclose(one, tensors.at("lin_y_m1"), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(one, y.detach().narrow(0, 0, 1), 1e-5, 1e-6));
}

/// One row has a kernel of its own, which does not round the weight to 16 bits.
TEST(Linear4Bit, Q22_OneRowAgreesWithManyInEachDtype) {
  const Quantized4Bit weight = weight_of(96, 256);
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, 1e-5}, std::pair{at::kHalf, 2e-3}, std::pair{at::kBFloat16, 1.6e-2}}) {
    const at::Tensor x = at::randn({8, 256}).to(dtype);
    const at::Tensor many = linear_4bit(x, weight).to(at::kFloat);
    for (int64_t row = 0; row < 8; ++row) {
      const at::Tensor one = linear_4bit(x.narrow(0, row, 1), weight).to(at::kFloat);
      EXPECT_LE((one - many.narrow(0, row, 1)).abs().max().item<double>(),
                tolerance * many.abs().max().item<double>());
    }
  }
}

TEST(Linear4Bit, EqualsALayerWithTheDequantizedWeightInEveryShape) {
  for (const bool nested : {false, true})
    for (const Format format : {Format::kNF4, Format::kFP4})
      for (const auto& sizes :
           std::vector<std::vector<int64_t>>{{64}, {1, 64}, {9, 64}, {2, 3, 64}, {2, 1, 5, 64}}) {
        const Quantized4Bit weight = weight_of(33, 64, {.format = format, .compress_statistics = nested});
        const at::Tensor x = at::randn(sizes).set_requires_grad(true),
                         same = x.detach().clone().set_requires_grad(true);
        const at::Tensor bias = at::randn({33}), dense = dequantize_4bit(weight);
        const at::Tensor got = linear_4bit(x, weight, bias),
                         want = torch::nn::functional::linear(same, dense, bias);
        ASSERT_EQ(got.sizes(), want.sizes());
        EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-5));
        const at::Tensor gradient = at::randn(got.sizes());
        got.backward(gradient);
        want.backward(gradient);
        EXPECT_TRUE(at::allclose(x.grad(), same.grad(), 1e-5, 1e-5));
        EXPECT_TRUE(at::allclose(matmul_4bit(gradient, weight), gradient.matmul(dense), 1e-5, 1e-5));
      }
}

TEST(Linear4Bit, ComputesInTheDtypeOfXAndCastsTheBias) {
  const Quantized4Bit weight = weight_of(16, 64);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const at::Tensor x = at::randn({5, 64}).to(dtype).set_requires_grad(true);
    const at::Tensor bias = at::randn({16}).set_requires_grad(true);
    const at::Tensor y = linear_4bit(x, weight, bias);
    EXPECT_EQ(y.scalar_type(), dtype);
    const at::Tensor exact = torch::nn::functional::linear(x.detach().to(at::kDouble),
                                                           dequantize_4bit(weight, dtype).to(at::kDouble),
                                                           bias.detach().to(dtype).to(at::kDouble));
    const double ulp = dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 1e-6;
    EXPECT_TRUE(at::allclose(y.to(at::kDouble), exact, ulp, 2e-5));
    y.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), dtype);
    EXPECT_EQ(bias.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(bias.grad(), at::full({16}, 5.0)));
  }
}

TEST(Linear4Bit, Q25_AnEmptyBatchGivesAnEmptyResultAndGradient) {
  const Quantized4Bit weight = weight_of(16, 64);
  const at::Tensor x = at::empty({0, 64}).set_requires_grad(true),
                   bias = at::randn({16}).set_requires_grad(true);
  const at::Tensor y = linear_4bit(x, weight, bias);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 16}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), (std::vector<int64_t>{0, 64}));
  EXPECT_TRUE(at::equal(bias.grad(), at::zeros({16})));
  // A layer without inputs returns its bias; one without outputs returns nothing.
  EXPECT_TRUE(at::equal(linear_4bit(at::empty({3, 0}), weight_of(4, 0), at::ones({4})), at::ones({3, 4})));
  EXPECT_EQ(linear_4bit(at::randn({3, 4}), weight_of(0, 4)).sizes(), (std::vector<int64_t>{3, 0}));
}

TEST(Linear4Bit, Q26_AnAdapterBesideItTrainsAsBesideADenseWeight) {
  const Quantized4Bit weight = weight_of(48, 64);
  const at::Tensor x = at::randn({7, 64}), dense = dequantize_4bit(weight);
  const at::Tensor a = at::randn({4, 64}), b = at::randn({48, 4});
  const auto gradients = [&](const auto& base) {
    const at::Tensor down = a.clone().set_requires_grad(true), up = b.clone().set_requires_grad(true);
    const at::Tensor hidden = at::tanh(base(x) + x.mm(down.t()).mm(up.t()));
    (base(hidden.narrow(1, 0, 48).mm(at::ones({48, 64}))) * hidden).sum().backward();
    return std::vector<at::Tensor>{down.grad(), up.grad()};
  };
  const auto got = gradients([&](const at::Tensor& v) { return linear_4bit(v, weight); });
  const auto want = gradients([&](const at::Tensor& v) { return v.mm(dense.t()); });
  // The gradients are sums of large terms, so that the tolerance is that of the largest.
  for (size_t i = 0; i < 2; ++i)
    EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), 1e-5 * want[i].abs().max().item<double>());
}

TEST(Linear4Bit, TheGradientOfTheGradientIsThatOfAProduct) {
  const Quantized4Bit weight = weight_of(8, 32);
  const at::Tensor x = at::randn({3, 32}).set_requires_grad(true),
                   g = at::randn({3, 8}).set_requires_grad(true);
  const at::Tensor first = torch::autograd::grad({linear_4bit(x, weight)}, {x}, {g}, /*retain_graph=*/true,
                                                 /*create_graph=*/true)[0];
  const at::Tensor v = at::randn({3, 32});
  const at::Tensor second = torch::autograd::grad({first}, {g}, {v})[0];
  EXPECT_TRUE(at::allclose(second, v.mm(dequantize_4bit(weight).t()), 1e-5, 1e-5));
}

TEST(Linear4Bit, WorksWithoutAutograd) {
  const Quantized4Bit weight = weight_of(8, 32);
  const at::Tensor x = at::randn({3, 32}).set_requires_grad(true);
  const at::Tensor want = linear_4bit(x, weight).detach();
  {
    const torch::NoGradGuard guard;
    EXPECT_FALSE(linear_4bit(x, weight).requires_grad());
    EXPECT_TRUE(at::equal(linear_4bit(x, weight), want));
  }
  const c10::InferenceMode guard;
  EXPECT_TRUE(at::equal(linear_4bit(x, weight), want));
}

TEST(Linear4Bit, TheGraphKeepsTheCodesAlone) {
  at::Tensor x = at::randn({512, 64}).set_requires_grad(true);
  const at::Tensor hidden = x * 1;
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(hidden.getIntrusivePtr());
  at::Tensor y;
  {
    const Quantized4Bit weight = weight_of(32, 64);
    y = linear_4bit(hidden, weight);
  }
  EXPECT_EQ(watched.use_count(), 1U) << "the function does not keep its input";
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Linear4Bit, WhatDoesNotFitIsRefused) {
  const Quantized4Bit weight = weight_of(16, 64);
  EXPECT_THAT(
      error_of([&] {
        linear_4bit(at::randn({3, 63}), weight);
      }),
      HasSubstr("linear_4bit: x has the shape [3, 63], and the weight has [16, 64]; the last dimension of x "
                "has to be 64"));
  Quantized4Bit spread = weight;
  spread.codes = at::stack({weight.codes, weight.codes}, 1).select(1, 0);
  EXPECT_THAT(error_of([&] {
                linear_4bit(at::randn({3, 64}), spread);
              }),
              HasSubstr("linear_4bit: the codes have the strides [2, 1]; call contiguous() on them"));
  EXPECT_THAT(error_of([&] { matmul_4bit(at::randn({3, 64}), weight); }), HasSubstr("has to be 16"));
  EXPECT_THAT(error_of([&] { linear_4bit(at::randn({}), weight); }), HasSubstr("has to be 64"));
  EXPECT_THAT(error_of([&] {
                linear_4bit(at::randn({3, 64}), weight, at::randn({15}));
              }),
              HasSubstr("it has to be [16]"));
  EXPECT_THAT(error_of([&] {
                linear_4bit(at::ones({3, 64}, at::kInt), weight);
              }),
              HasSubstr("x has dtype Int"));
  EXPECT_THAT(error_of([&] {
                linear_4bit(at::randn({3, 64}), quantize_4bit(at::randn({64})));
              }),
              HasSubstr("the weight has 1 dimensions"));
}

TEST(Linear4Bit, NegativeViewsAreTheValuesTheyShow) {
  const Quantized4Bit weight = weight_of(33, 64);
  const at::Tensor x = at::_neg_view(at::randn({9, 64})), bias = at::_neg_view(at::randn({33}));
  EXPECT_TRUE(
      at::equal(linear_4bit(x, weight, bias), linear_4bit(x.resolve_neg(), weight, bias.resolve_neg())));
}

TEST(Linear4Bit, CodesAndScalesThatDoNotFitTheShapeAreRefused) {
  const at::Tensor x = at::randn({2, 64});
  const Quantized4Bit whole = weight_of(32, 64, {.compress_statistics = true});
  const auto error = [&](at::Tensor Quantized4Bit::*part, int64_t length) {
    Quantized4Bit torn = whole;
    torn.*part = (torn.*part).narrow(0, 0, length);
    return error_of([&] { linear_4bit(x, torn); });
  };
  EXPECT_THAT(error(&Quantized4Bit::codes, 1023), HasSubstr("linear_4bit: the codes have 1023 bytes"));
  EXPECT_THAT(error(&Quantized4Bit::absmax, 31), HasSubstr("linear_4bit: there are 31 scales"));
  EXPECT_THAT(error(&Quantized4Bit::nested_absmax, 0), HasSubstr("linear_4bit: there are 0 scales of 32"));
}

}  // namespace
}  // namespace mantissa::linear_4bit_test
