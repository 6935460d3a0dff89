#include "mantissa/fp8/quantized_fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/test_support_internal.h"
#include "mantissa/io/safetensors.h"

namespace mantissa::quantized_fp8_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

/// What the libtorch operators compute.
at::Tensor codes_by_torch(const at::Tensor& x, at::ScalarType dtype, float scale) {
  return (x.to(at::kFloat) * scale).clamp(-fp8_max(dtype), fp8_max(dtype)).to(dtype);
}

TEST(QuantizeFp8, CodesEqualTorchsOperatorsAndAmaxIsThatOfTheInput) {
  torch::manual_seed(1);
  for (const at::ScalarType input : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const at::ScalarType dtype : kFp8Dtypes)
      for (const float scale : {1.0F, 0.37F, 1024.0F}) {
        const at::Tensor x = wide({37, 101}, input), amax = torch::tensor(0.25F);
        const QuantizedFp8 got = quantize_fp8(x, dtype, torch::tensor(scale), amax);
        EXPECT_TRUE(at::equal(bytes(got.codes), bytes(codes_by_torch(x, dtype, scale))))
            << input << dtype << scale;
        EXPECT_EQ(amax.item<float>(), x.abs().max().item<float>());
        EXPECT_EQ(got.scale_inv.item<float>(), 1 / scale);
        EXPECT_TRUE(same_bits(dequantize_fp8(got), got.codes.to(at::kFloat) * (1 / scale)));
      }
}

TEST(QuantizeFp8, AmaxGrowsOnlyAndSkipsNaN) {
  const at::Tensor amax = torch::tensor(3.0F), scale = torch::tensor(1.0F);
  quantize_fp8(torch::tensor({-2.0F, kNaN}), at::kFloat8_e4m3fn, scale, amax);
  EXPECT_EQ(amax.item<float>(), 3);
  quantize_fp8(torch::tensor({-8.0F, kNaN}), at::kFloat8_e4m3fn, scale, amax);
  EXPECT_EQ(amax.item<float>(), 8);
  quantize_fp8(torch::tensor({-kInf, kNaN}), at::kFloat8_e4m3fn, scale, amax);
  EXPECT_EQ(amax.item<float>(), kInf);
}

TEST(QuantizeFp8, TakesViewsNumbersAndNothing) {
  const at::Tensor x = torch::randn({5, 7}), scale = torch::tensor(2.0F);
  EXPECT_TRUE(at::equal(bytes(quantize_fp8(x.t(), at::kFloat8_e4m3fn, scale).codes),
                        bytes(quantize_fp8(x, at::kFloat8_e4m3fn, scale).codes).t()));
  EXPECT_EQ(quantize_fp8(torch::empty({0, 4}), at::kFloat8_e5m2, scale).codes.sizes(),
            (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(quantize_fp8_current(torch::empty({4, 0}), at::kFloat8_e5m2).scale_inv.item<float>(), 1);
  EXPECT_EQ(dequantize_fp8(quantize_fp8_current(torch::tensor(3.0F), at::kFloat8_e4m3fn)).item<float>(), 3);
}

TEST(QuantizeFp8, RefusesWhatItCannotQuantize) {
  const at::Tensor scale = torch::tensor(1.0F), x = torch::ones({2});
  EXPECT_THAT(error_of([&] { quantize_fp8(x, at::kHalf, scale); }),
              HasSubstr("use Float8_e4m3fn or Float8_e5m2"));
  EXPECT_THAT(error_of([&] { quantize_fp8(x.to(at::kDouble), at::kFloat8_e5m2, scale); }),
              HasSubstr("got Double; use float32, float16 or bfloat16"));
  EXPECT_THAT(error_of([&] { quantize_fp8({}, at::kFloat8_e5m2, scale); }), HasSubstr("undefined tensor"));
  EXPECT_THAT(error_of([&] { quantize_fp8(x, at::kFloat8_e5m2, x); }),
              HasSubstr("scale must be one float32"));
  EXPECT_THAT(error_of([&] { quantize_fp8(x, at::kFloat8_e5m2, scale, x); }),
              HasSubstr("amax must be one float32"));
  EXPECT_THAT(error_of([&] { quantize_fp8(x.to_sparse(), at::kFloat8_e5m2, scale); }),
              HasSubstr("layout Sparse; convert it with to_dense()"));
  EXPECT_THAT(error_of([&] { quantize_fp8(x.to(at::kMeta), at::kFloat8_e5m2, scale); }),
              HasSubstr("scale must be one float32 on meta"));
}

TEST(CurrentScaling, F8_6_ZerosHaveScale1) {
  const QuantizedFp8 got = quantize_fp8_current(torch::zeros({4, 4}), at::kFloat8_e4m3fn);
  EXPECT_EQ(got.scale_inv.item<float>(), 1);
  EXPECT_FALSE(bytes(got.codes).any().item<bool>());
  EXPECT_FALSE(dequantize_fp8(got).any().item<bool>());
}

TEST(CurrentScaling, F8_7_TheScaleIsTheQuotient) {
  torch::manual_seed(2);
  for (const at::ScalarType dtype : kFp8Dtypes) {
    const at::Tensor x = wide({64, 3});
    const float scale = fp8_max(dtype) / x.abs().max().item<float>();
    const QuantizedFp8 got = quantize_fp8_current(x, dtype);
    EXPECT_EQ(got.scale_inv.item<float>(), 1 / scale);
    EXPECT_TRUE(at::equal(bytes(got.codes), bytes(codes_by_torch(x, dtype, scale))));
  }
}

TEST(CurrentScaling, F8_8_AnAmaxThatGivesNoScale) {
  EXPECT_EQ(fp8_scale(kInf, 448), 1);
  EXPECT_EQ(fp8_scale(kNaN, 448), 1);
  EXPECT_EQ(fp8_scale(1e-45F, 448), std::numeric_limits<float>::max());
  EXPECT_EQ(quantize_fp8_current(torch::tensor({1.0F, kInf}), at::kFloat8_e4m3fn).scale_inv.item<float>(), 1);
  // NaN does not count for amax, and stays.
  const QuantizedFp8 got = quantize_fp8_current(torch::tensor({2.0F, kNaN}), at::kFloat8_e4m3fn);
  EXPECT_EQ(got.scale_inv.item<float>(), 1 / 224.0F);
  EXPECT_TRUE(dequantize_fp8(got)[1].isnan().item<bool>());
}

TEST(CurrentScaling, F8_9_APowerOfTwoIsTheScaleWithoutItsMantissa) {
  for (const float amax : {3.0F, 448.0F, 449.0F, 1e-30F, 1e-45F}) {
    const float scale = fp8_scale(amax, 448), power = fp8_scale(amax, 448, {.power_of_two = true});
    EXPECT_EQ(std::bit_cast<uint32_t>(power), std::bit_cast<uint32_t>(scale) & 0xff800000U) << amax;
  }
  EXPECT_EQ(fp8_scale(0.5F, 448, {.epsilon = 2}), 224);
  EXPECT_EQ(fp8_scale(0, 448, {.epsilon = 2}), 224);
}

TEST(CurrentScaling, F8_10_TheLargestCodeIsTheLargestNumber) {
  torch::manual_seed(3);
  for (int i = 0; i < 50; ++i) {
    const QuantizedFp8 got = quantize_fp8_current(wide({40}), at::kFloat8_e4m3fn);
    EXPECT_EQ(got.codes.to(at::kFloat).abs().max().item<float>(), 448);
  }
}

/// Nothing may be read past the end of what is too short.
TEST(QuantizedFp8, CodesAndScalesThatDoNotFitAreNotRestored) {
  const auto error = [](auto quantized, const auto& change) {
    change(quantized);
    return error_of([&] { dequantize_fp8(quantized); });
  };
  const at::Tensor x = torch::randn({128, 256});
  const at::ScalarType dtype = at::kFloat8_e4m3fn;
  const QuantizedFp8 plain = quantize_fp8_current(x, dtype);
  EXPECT_THAT(error(plain, [](auto& q) { q.scale_inv = at::Tensor(); }),
              HasSubstr("the scale must be one float32"));
  EXPECT_THAT(error(plain, [](auto& q) { q.scale_inv = at::ones({0}); }), HasSubstr("it is Float [0]"));
  EXPECT_THAT(error(plain, [](auto& q) { q.codes = q.codes.to(at::kFloat); }),
              HasSubstr("have dtype Float;"));
  const QuantizedFp8Blocks blocks = quantize_fp8_blocks(x, dtype, Fp8Block::k1x128);
  EXPECT_THAT(error(blocks, [](auto& q) { q.scale_inv = q.scale_inv.narrow(0, 0, 1); }),
              HasSubstr("need 256 contiguous scales on cpu; they have [1, 2]"));
  EXPECT_THAT(error(blocks, [](auto& q) { q.block = Fp8Block::k128x128; }),
              HasSubstr("need 2 contiguous scales"));
  EXPECT_THAT(error(blocks, [](auto& q) { q.codes = q.codes.narrow(1, 0, 100); }),
              HasSubstr("no whole blocks"));
  const QuantizedMXFP8 mx = quantize_mxfp8(x);
  EXPECT_THAT(error(mx, [](auto& q) { q.exponents = q.exponents.narrow(0, 0, 3); }),
              HasSubstr("need 1024 contiguous"));
  EXPECT_THAT(error(mx,
                    [](auto& q) {
                      q.exponents = at::ones({128, 8});
                    }),
              HasSubstr("they are Float8_e8m0fnu"));
  EXPECT_THAT(error(mx, [](auto& q) { q.block_rows = 0; }), HasSubstr("blocks have 0 rows"));
  const QuantizedNVFP4 nv = quantize_nvfp4(x);
  EXPECT_THAT(error(nv, [](auto& q) { q.block_scale = q.block_scale.narrow(0, 0, 3); }),
              HasSubstr("need 2048 contiguous"));
  EXPECT_THAT(error(nv, [](auto& q) { q.scale = at::Tensor(); }), HasSubstr("the scale must be one float32"));
}

TEST(CurrentScaling, OperandsOfTheRecordedLayerHaveItsBytes) {
  const auto tensors = load_safetensors(test_data("fp8_linear_emulated.safetensors")).tensors;
  int i = 0;
  for (const std::string name : {"x", "w", "dy"}) {
    const at::ScalarType dtype = name == "dy" ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
    const QuantizedFp8 got = quantize_fp8_current(tensors.at(name), dtype);
    EXPECT_TRUE(at::equal(bytes(got.codes), tensors.at(name + "_q"))) << name;
    EXPECT_EQ(got.scale_inv.item<float>(), tensors.at("scale_invs")[i++].item<float>()) << name;
  }
}

}  // namespace
}  // namespace mantissa::quantized_fp8_test
