#include "mantissa/fp8/mxfp8.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::mxfp8_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;

/// The exponent of a block of 32 values of which one is `amax`.
int exponent_of(float amax) {
  at::Tensor x = torch::zeros({1, 32});
  x[0][5] = amax;
  return bytes(quantize_mxfp8(x).exponents).item<uint8_t>();
}

TEST(MXFP8, F8_44_ExponentsRoundUp) {
  EXPECT_EQ(exponent_of(448), 127);
  EXPECT_EQ(exponent_of(-448), 127);
  EXPECT_EQ(exponent_of(449), 128);
  EXPECT_EQ(exponent_of(0), 0);
  EXPECT_EQ(exponent_of(kInf), 254);
  EXPECT_EQ(exponent_of(0x1p-130F), 0);
}

TEST(MXFP8, F8_44_EightBitsOfExponentCoverFloat32) {
  EXPECT_EQ(e8m0_up(1), 127);
  EXPECT_EQ(e8m0_up(0x1.000002p0F), 128);
  EXPECT_EQ(e8m0_up(0x1p-126F), 1);
  EXPECT_EQ(e8m0_up(0x1p-127F), 0);
  EXPECT_EQ(e8m0_up(0x1.000004p-127F), 1);
  EXPECT_EQ(e8m0_up(0x1p127F), 254);
  EXPECT_EQ(e8m0_up(0x1.8p127F), 254);
  EXPECT_EQ(e8m0_up(kNaN), 255);
}

TEST(MXFP8, F8_44_CodesAreThoseOfThePowerOfTwoAndNoneSaturates) {
  torch::manual_seed(1);
  for (const at::ScalarType input : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const bool two_dimensional : {false, true})
      for (const at::ScalarType dtype : kFp8Dtypes) {
        const at::Tensor x = wide({64, 96}, input), x32 = x.to(at::kFloat);
        const QuantizedMXFP8 got = quantize_mxfp8(x, dtype, two_dimensional);
        const int64_t height = two_dimensional ? 32 : 1;
        const at::Tensor exponents =
            bytes(got.exponents).to(at::kFloat).repeat_interleave(height, 0).repeat_interleave(32, 1);
        const at::Tensor scaled = x32 * (127 - exponents).exp2();
        EXPECT_TRUE(at::equal(bytes(got.codes), bytes(scaled.to(dtype)))) << input << dtype;
        // The amax is at most the largest number times one rounding of the factor.
        EXPECT_LE(scaled.abs().max().item<float>(), fp8_max(dtype) * (1 + 0x1p-23F));
        EXPECT_TRUE(same_bits(dequantize_fp8(got), got.codes.to(at::kFloat) * (exponents - 127).exp2()));
        // One step finer, some value of each block would be too large.
        const at::Tensor finer = x32 * (128 - exponents).exp2();
        const at::Tensor largest = finer.abs().view({64 / height, height, 3, 32}).amax({1, 3});
        EXPECT_TRUE(((largest > fp8_max(dtype)) | (bytes(got.exponents) == 0)).all().item<bool>());
      }
}

TEST(MXFP8, NaNAndInfStayInTheirPlaces) {
  at::Tensor x = torch::ones({1, 64});
  x[0][3] = kNaN, x[0][40] = kInf;
  const at::Tensor got = dequantize_fp8(quantize_mxfp8(x));
  EXPECT_TRUE(got[0][3].isnan().item<bool>());
  EXPECT_EQ(got.isnan().sum().item<int64_t>(), 1);
  EXPECT_EQ(got[0][40].item<float>(), kInf) << "448 * 2^127";
  EXPECT_EQ(got[0][2].item<float>(), 1);
}

// The largest codes of these blocks stand for 2^128. Below, every finite value is restored as one.
TEST(MXFP8, WhatRoundsTo2To128IsRestoredAsInf) {
  const auto restored = [](float value, at::ScalarType dtype) {
    at::Tensor x = torch::zeros({1, 32});
    x[0][5] = value;
    const QuantizedMXFP8 got = quantize_mxfp8(x, dtype);
    EXPECT_LT(got.codes.to(at::kFloat).max().item<float>(), fp8_max(dtype));
    return dequantize_fp8(got)[0][5].item<float>();
  };
  EXPECT_EQ(restored(0x1.efffp127F, kE4M3), 0x1.ep127F);
  EXPECT_EQ(restored(0x1.fp127F, kE4M3), kInf);
  EXPECT_EQ(restored(0x1.dfffp127F, at::kFloat8_e5m2), 0x1.cp127F);
  EXPECT_EQ(restored(0x1.ep127F, at::kFloat8_e5m2), kInf);
}

TEST(MXFP8, OtherShapesAreRefused) {
  EXPECT_THAT(error_of([] { quantize_mxfp8(torch::ones({2, 33})); }), HasSubstr("no whole blocks of 1 x 32"));
  EXPECT_THAT(error_of([] {
                quantize_mxfp8(torch::ones({2, 32}), kE4M3, true);
              }),
              HasSubstr("no whole blocks of 32 x 32"));
}

TEST(MXFP8, BlocksOfAnUnknownWidthAreRefused) {
  QuantizedMXFP8 quantized = quantize_mxfp8(torch::ones({1, 256}));
  for (const int64_t width : {-32, 0, 8, 64, 256}) {
    quantized.block_cols = width;
    EXPECT_THAT(error_of([&] { dequantize_fp8(quantized); }), HasSubstr("give block_cols as it was returned"))
        << width;
  }
}

TEST(MXFP8, ColumnsHaveTheCodesOfTheTransposedMatrix) {
  torch::manual_seed(3);
  const at::Tensor x = wide({64, 700});
  for (const at::ScalarType dtype : kFp8Dtypes) {
    const QuantizedMXFP8 got = quantize_mxfp8_columns(x, dtype), want = quantize_mxfp8(x.t(), dtype);
    EXPECT_TRUE(at::equal(bytes(got.codes), bytes(want.codes).t()));
    EXPECT_TRUE(at::equal(bytes(got.exponents), bytes(want.exponents).t()));
    EXPECT_TRUE(at::equal(dequantize_fp8(got), dequantize_fp8(want).t()));
  }
}

}  // namespace
}  // namespace mantissa::mxfp8_test
