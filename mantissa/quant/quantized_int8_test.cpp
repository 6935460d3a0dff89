#include "mantissa/quant/quantized_int8.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/quant/test_support_internal.h"

namespace mantissa::quantized_int8_test {
namespace {

using quant::recorded;
using test::same_bits;
using testing::HasSubstr;

TEST(QuantizedInt8, Q27_RowsEqualBitsandbytes) {
  const auto tensors = recorded("int8");
  const QuantizedInt8 weight = quantize_int8(tensors.at("w")), x = int8_vectorwise_quant(tensors.at("x"));
  EXPECT_TRUE(at::equal(weight.codes, tensors.at("CB")));
  EXPECT_TRUE(same_bits(weight.scales, tensors.at("SCB")));
  EXPECT_TRUE(at::equal(x.codes, tensors.at("t0_CA")));
  EXPECT_TRUE(same_bits(x.scales, tensors.at("t0_SCA").to(at::kFloat)));
  EXPECT_TRUE(at::allclose(dequantize_int8(weight), tensors.at("w_dequant_f32"), 2e-7, 0));
}

TEST(QuantizedInt8, Q30_OutlierColumnsEqualBitsandbytes) {
  const auto tensors = recorded("int8");
  const QuantizedInt8 x = int8_vectorwise_quant(tensors.at("x"), 6);
  EXPECT_TRUE(at::equal(x.outlier_cols, tensors.at("t6_outlier_cols")));
  EXPECT_TRUE(at::equal(x.outlier_cols, at::tensor({5, 40}, at::kLong)));
  EXPECT_TRUE(at::equal(x.codes, tensors.at("t6_CA")));
  EXPECT_TRUE(same_bits(x.scales, tensors.at("t6_SCA").to(at::kFloat)));
  EXPECT_EQ(x.codes.index_select(1, x.outlier_cols).abs().sum().item<int>(), 0);
  EXPECT_EQ(int8_vectorwise_quant(tensors.at("x"), 1000).outlier_cols.numel(), 0);
}

TEST(QuantizedInt8, Q28_Q29_ProductsEqualBitsandbytes) {
  const auto tensors = recorded("int8");
  const QuantizedInt8 weight = quantize_int8(tensors.at("w"));
  for (const std::string t : {"t0", "t6"}) {
    const QuantizedInt8 x = int8_vectorwise_quant(tensors.at("x"), t == "t6" ? 6 : 0);
    EXPECT_TRUE(at::equal(int8_matmul(x.codes, weight.codes), tensors.at(t + "_i32")));
    const at::Tensor exact = tensors.at(t + "_mm_dequant_f32_exact");
    const at::Tensor wide = int8_scaled_matmul(x, weight, {}, at::kFloat);
    EXPECT_TRUE(at::allclose(wide, exact, 1e-6, 0));
    const at::Tensor half = int8_scaled_matmul(x, weight, {}, at::kHalf).to(at::kFloat);
    EXPECT_TRUE(at::allclose(half, exact, 0x1p-10, 0x1p-24)) << "one unit in the last place of float16";
    // The peer's constant is 1.8e-5 too large, and it rounds to float16.
    EXPECT_TRUE(at::allclose(half, tensors.at(t + "_mm_dequant_f16_cpu").to(at::kFloat), 1e-3, 1e-6));
  }
}

TEST(QuantizedInt8, ABiasIsAddedBeforeTheOneRounding) {
  const QuantizedInt8 x = int8_vectorwise_quant(at::randn({5, 96})),
                      weight = quantize_int8(at::randn({40, 96}));
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const at::Tensor bias = at::randn({40}).to(dtype);
    const at::Tensor want = int8_scaled_matmul(x, weight, {}, at::kFloat) + bias.to(at::kFloat);
    EXPECT_TRUE(same_bits(int8_scaled_matmul(x, weight, bias, at::kFloat), want));
    EXPECT_TRUE(same_bits(int8_scaled_matmul(x, weight, bias, at::kHalf), want.to(at::kHalf)));
  }
}

TEST(QuantizedInt8, ZerosNothingAndValuesThatAreNotFinite) {
  const QuantizedInt8 zeros = int8_vectorwise_quant(at::zeros({3, 5}));
  EXPECT_TRUE(at::equal(zeros.codes, at::zeros({3, 5}, at::kChar)));
  EXPECT_TRUE(at::equal(dequantize_int8(zeros), at::zeros({3, 5})));
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{0, 5}, {5, 0}, {0, 0}})
    for (const double threshold : {0.0, 6.0}) {
      const QuantizedInt8 empty = int8_vectorwise_quant(at::empty(sizes), threshold);
      EXPECT_EQ(empty.codes.sizes(), sizes);
      EXPECT_TRUE(at::equal(empty.scales, at::zeros({sizes[0]})));
      const QuantizedInt8 other = int8_vectorwise_quant(at::randn({2, sizes[1]}));
      EXPECT_TRUE(
          at::equal(int8_scaled_matmul(empty, other, at::ones({2}), at::kFloat), at::ones({sizes[0], 2})));
    }
  at::Tensor x = at::randn({4, 6});
  x[1][2] = NAN;
  x[2][2] = -HUGE_VALF;
  const at::Tensor y =
      int8_scaled_matmul(int8_vectorwise_quant(x), quantize_int8(at::ones({3, 6})), {}, at::kFloat);
  for (const int64_t row : {0, 1, 2, 3})
    EXPECT_EQ(y[row].isfinite().all().item<bool>(), row == 0 || row == 3) << row;
}

TEST(QuantizedInt8, AWeightThatIsNotFiniteIsRefusedByName) {
  at::Tensor weight = at::randn({4, 6});
  weight[1][2] = NAN;
  EXPECT_THAT(error_of([&] { quantize_int8(weight, "'layer.weight'"); }),
              HasSubstr("'layer.weight' has 1 values that are inf or nan, the first at index 8 of 24"));
  weight[1][2] = 70000;
  EXPECT_THAT(error_of([&] { quantize_int8(weight, "'layer.weight'"); }),
              HasSubstr("'layer.weight' has values that float16 cannot hold"));
  EXPECT_THAT(error_of([] { quantize_int8(at::ones({3}), "'w'"); }), HasSubstr("'w' is no matrix"));
  EXPECT_THAT(error_of([] {
                quantize_int8(at::ones({3, 3}, at::kInt), "'w'");
              }),
              HasSubstr("'w' has dtype Int"));
}

/// Kernels would read past the end of what is too short, and libtorch would repeat a single scale.
TEST(QuantizedInt8, ScalesAndABiasThatDoNotFitAreRefused) {
  const QuantizedInt8 whole = quantize_int8(at::ones({4, 8}));
  for (const at::Tensor& scales :
       {at::ones({3}), at::ones({1}), at::ones({4, 1}), at::ones({4}, at::kHalf), at::Tensor()}) {
    QuantizedInt8 torn = whole;
    torn.scales = scales;
    EXPECT_THAT(error_of([&] { dequantize_int8(torn); }), HasSubstr("need float32 [4]"));
    EXPECT_THAT(error_of([&] { int8_scaled_matmul(torn, whole, {}, at::kFloat); }),
                HasSubstr("need float32 [4]"));
    EXPECT_THAT(error_of([&] { int8_scaled_matmul(whole, torn, {}, at::kFloat); }),
                HasSubstr("need float32 [4]"));
  }
  EXPECT_THAT(error_of([&] { int8_scaled_matmul(whole, whole, at::ones({3}), at::kFloat); }),
              HasSubstr("bias has the shape [3]; it has to be [4]"));
}

TEST(QuantizedInt8, WhatDoesNotFitIsRefused) {
  const at::Tensor a = at::ones({2, 3}, at::kChar);
  EXPECT_THAT(error_of([&] { int8_matmul(a, at::ones({2, 4}, at::kChar)); }), HasSubstr("[m, k] and [n, k]"));
  EXPECT_THAT(error_of([&] { int8_matmul(a, at::ones({2, 3})); }), HasSubstr("both have to be int8"));
  const at::Tensor deep = at::ones({1, 140000}, at::kChar);
  EXPECT_THAT(error_of([&] { int8_matmul(deep, deep); }), HasSubstr("may overflow int32"));
  EXPECT_THAT(error_of([] { int8_vectorwise_quant(at::ones({3})); }), HasSubstr("give a matrix"));
  EXPECT_THAT(error_of([] { int8_vectorwise_quant(at::ones({3, 3}), -1); }), HasSubstr("threshold is -1"));
  EXPECT_THAT(error_of([] {
                int8_vectorwise_quant(at::ones({3, 3}, at::kDouble));
              }),
              HasSubstr("dtype Double"));
}

}  // namespace
}  // namespace mantissa::quantized_int8_test
