#include "mantissa/fp8/nvfp4.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/hadamard.h"
#include "mantissa/fp8/test_support_internal.h"
#include "mantissa/kernels/fp8.h"

namespace mantissa::nvfp4_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

/// The codes, one in each byte.
at::Tensor unpacked(const at::Tensor& codes) {
  return at::stack({codes.bitwise_and(15), codes.bitwise_right_shift(4)}, -1).flatten(-2);
}

at::Tensor values_of(const at::Tensor& unpacked_codes) {
  return torch::tensor(std::vector<float>(std::begin(kernels::kE2M1Values), std::end(kernels::kE2M1Values)))
      .index({unpacked_codes.to(at::kLong)});
}

/// The nearest magnitudes by distance, where the code of the even number wins.
at::Tensor nearest(const at::Tensor& scaled) {
  const at::Tensor magnitudes = values_of(torch::arange(8));
  const at::Tensor distance = (scaled.abs().to(at::kDouble).unsqueeze(-1) - magnitudes).abs();
  const at::Tensor is_odd = torch::arange(8).remainder(2);
  const at::Tensor is_nearest = distance == distance.amin({-1}, true);
  return at::copysign(magnitudes.index({(is_nearest * (2 - is_odd)).argmax(-1)}), scaled);
}

TEST(NVFP4, F8_45_ScalesAndCodesFollowTheFormulas) {
  torch::manual_seed(1);
  for (const at::ScalarType input : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t height : {1, 16}) {
      const at::Tensor x = torch::randn({32, 80}).mul(torch::randn({32, 1}).exp2()).to(input),
                       x32 = x.to(at::kFloat);
      const QuantizedNVFP4 got = quantize_nvfp4(x, {.two_dimensional = height == 16});
      const float scale = 448 * 6 / x32.abs().max().item<float>();
      EXPECT_EQ(got.scale.item<float>(), scale);
      const at::Tensor amax = x32.abs().view({32 / height, height, 5, 16}).amax({1, 3});
      EXPECT_TRUE(at::equal(bytes(got.block_scale),
                            bytes((amax * (scale / 6)).clamp_max(448).to(at::kFloat8_e4m3fn))));
      const at::Tensor blocks =
          got.block_scale.to(at::kFloat).repeat_interleave(height, 0).repeat_interleave(16, 1);
      const at::Tensor want = nearest((x32 * (got.scale / blocks)).clamp(-6, 6));
      EXPECT_TRUE(same_bits(values_of(unpacked(got.codes)), want)) << input << height;
      EXPECT_TRUE(same_bits(dequantize_fp8(got), want * blocks / got.scale));
    }
}

TEST(NVFP4, F8_45_TiesGoToTheEvenCode) {
  at::Tensor x = torch::tensor({6.0F, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, -0.25F, -0.75F, -1.25F,
                                -1.75F, -2.5F, -3.5F, -5.0F, 5.0000005F})
                     .view({1, 16});
  // A scale of 448 makes the block's scale 448, and so a value its own multiple.
  const at::Tensor want = torch::tensor({6.0F, 0.0F, 1.0F, 1.0F, 2.0F, 2.0F, 4.0F, 4.0F, -0.0F, -1.0F, -1.0F,
                                         -2.0F, -2.0F, -4.0F, -4.0F, 6.0F})
                              .view({1, 16});
  EXPECT_TRUE(same_bits(values_of(unpacked(quantize_nvfp4(x).codes)), want));
}

TEST(NVFP4, F8_45_StochasticRoundingKeepsTheMean) {
  const at::Tensor x = torch::tensor({6.0F, 0.1F, 0.3F, 0.8F, 1.1F, 1.7F, 2.3F, 2.9F, 3.01F, 3.8F, 4.5F, 5.9F,
                                      -0.4F, -2.2F, -5.0F, 0.0F})
                           .view({1, 16});
  constexpr int kDraws = 10000;
  // One row for each draw: the rows have different positions, and so different draws.
  const QuantizedNVFP4 got =
      quantize_nvfp4(x.expand({kDraws, 16}), {.stochastic_rounding = NVFP4Draws{.seed = 3, .stream = 9}});
  const at::Tensor restored = dequantize_fp8(got, at::kDouble);
  const at::Tensor error = restored.mean(0) - x[0], deviation = restored.std(0) / std::sqrt(kDraws);
  EXPECT_TRUE((error.abs() <= 4 * deviation + 1e-4).all().item<bool>()) << error << deviation;
  // A number of the format stays, and others become one of their two neighbours.
  EXPECT_EQ(std::get<0>(at::_unique(restored.select(1, 0))).numel(), 1);
  EXPECT_EQ(std::get<0>(at::_unique(restored.select(1, 4))).numel(), 2);
}

TEST(NVFP4, DrawsDependOnPositionStreamAndSeedOnly) {
  const at::Tensor x = torch::randn({64, 64});
  const auto codes = [&](const at::Tensor& values, NVFP4Draws draws) {
    return quantize_nvfp4(values, {.stochastic_rounding = draws}).codes;
  };
  const at::Tensor whole = codes(x, {.seed = 1, .stream = 2});
  EXPECT_TRUE(at::equal(whole, codes(x, {.seed = 1, .stream = 2})));
  EXPECT_FALSE(at::equal(whole, codes(x, {.seed = 2, .stream = 2})));
  EXPECT_FALSE(at::equal(whole, codes(x, {.seed = 1, .stream = 3})));
  EXPECT_FALSE(at::equal(whole, codes(x, {.seed = 1, .stream = 2, .offset = 16})));
  const at::Tensor same = x.narrow(0, 0, 1).expand({2, 64});
  const at::Tensor shifted = codes(same, {.seed = 1, .stream = 2, .offset = 64});
  EXPECT_TRUE(at::equal(codes(same, {.seed = 1, .stream = 2})[1], shifted[0]));
}

TEST(NVFP4, ZerosNaNAndInfHaveDefinedResults) {
  at::Tensor x = torch::ones({2, 32});
  x[0].narrow(0, 0, 16).zero_();
  x[1][3] = kNaN;
  const QuantizedNVFP4 got = quantize_nvfp4(x);
  const at::Tensor restored = dequantize_fp8(got);
  EXPECT_EQ(got.scale.item<float>(), 448 * 6);
  EXPECT_FALSE(restored[0].narrow(0, 0, 16).any().item<bool>());
  EXPECT_TRUE(restored[1].narrow(0, 0, 16).isnan().all().item<bool>()) << "the whole block says so";
  EXPECT_EQ(restored.isnan().sum().item<int64_t>(), 16);
  EXPECT_EQ(quantize_nvfp4(torch::zeros({1, 16})).scale.item<float>(), 1);
  EXPECT_EQ(quantize_nvfp4(torch::full({1, 16}, kInf)).scale.item<float>(), 1);
  EXPECT_EQ(dequantize_fp8(quantize_nvfp4(torch::full({1, 16}, kInf)))[0][0].item<float>(), 6 * 448);
}

TEST(NVFP4, OtherInputIsRefused) {
  EXPECT_THAT(error_of([] { quantize_nvfp4(torch::ones({2, 24})); }), HasSubstr("no whole blocks of 1 x 16"));
  EXPECT_THAT(error_of([] {
                quantize_nvfp4(torch::ones({2, 16}), {.two_dimensional = true});
              }),
              HasSubstr("no whole blocks of 16 x 16"));
  EXPECT_THAT(
      error_of([] { quantize_nvfp4(torch::ones({16}), {.stochastic_rounding = NVFP4Draws{.offset = 8}}); }),
      HasSubstr("use a multiple of 16"));
}

TEST(HadamardTransform, MultipliesByAnOrthogonalMatrixOfQuarters) {
  const at::Tensor matrix = hadamard_transform(torch::eye(16));
  EXPECT_TRUE((matrix.abs() == 0.25).all().item<bool>());
  EXPECT_TRUE(at::equal(matrix.matmul(matrix.t()), torch::eye(16)));
  // Sylvester's first row and column are ones, so column 0 holds the signs.
  const at::Tensor signs =
      torch::tensor({1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1}).to(at::kFloat);
  EXPECT_TRUE(at::equal(matrix.select(1, 0) * 4, signs));
  EXPECT_TRUE(at::equal(matrix[0] * 4, torch::ones({16})));
  EXPECT_TRUE(at::equal(matrix[1] * 4, torch::tensor({1.0F, -1.0F}).repeat({8})));
}

TEST(HadamardTransform, KeepsProductsSpreadsOutliersAndIsUndone) {
  torch::manual_seed(4);
  const at::Tensor a = torch::randn({5, 3, 32}), b = torch::randn({7, 32}).to(at::kBFloat16);
  const at::Tensor got = hadamard_transform(a).matmul(hadamard_transform(b).t());
  EXPECT_TRUE(at::allclose(got, a.matmul(b.to(at::kFloat).t()), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(inverse_hadamard_transform(hadamard_transform(a)), a, 1e-5, 1e-6));
  at::Tensor outlier = torch::zeros({1, 16});
  outlier[0][7] = 100;
  EXPECT_EQ(hadamard_transform(outlier).abs().max().item<float>(), 25);
  EXPECT_THAT(error_of([] {
                hadamard_transform(torch::ones({2, 17}));
              }),
              HasSubstr("no whole blocks of 1 x 16"));
}

TEST(NVFP4, ColumnsHaveTheValuesOfTheTransposedMatrix) {
  torch::manual_seed(3);
  at::Tensor x = wide({64, 720});
  const at::Tensor turned = hadamard_transform(x.t().contiguous());
  EXPECT_TRUE(at::equal(hadamard_transform_columns(x), turned.t()));
  x[3][5] = kNaN;
  const QuantizedNVFP4 got = quantize_nvfp4(x, {.by_columns = true}), want = quantize_nvfp4(x.t());
  EXPECT_TRUE(at::equal(bytes(got.block_scale), bytes(want.block_scale).t()));
  EXPECT_TRUE(at::equal(dequantize_fp8(got).nan_to_num(7), dequantize_fp8(want).t().nan_to_num(7)));
}

}  // namespace
}  // namespace mantissa::nvfp4_test
