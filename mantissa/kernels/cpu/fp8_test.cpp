#include "mantissa/kernels/cpu/fp8.h"

#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include <torch/torch.h>

#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::fp8_test {

/// For GoogleTest's messages.
void PrintTo(const Fp8Build& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

constexpr at::ScalarType kInputs[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr int64_t kCounts[] = {0, 1, 7, 8, 15, 16, 17, 31, 33, 255, 256, 257, 1023, 1025, 3000};
constexpr float kInf = std::numeric_limits<float>::infinity();

at::ScalarType dtype_of(Fp8 format) { return format == Fp8::kE4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2; }

class Fp8Kernels : public testing::TestWithParam<Fp8Build> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here";
  }
};
INSTANTIATE_TEST_SUITE_P(EveryBuild, Fp8Kernels, testing::ValuesIn(fp8_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

/// Every value of a 16-bit dtype; for float32 random bits, and with them many NaNs and subnormal numbers.
at::Tensor every_value(at::ScalarType dtype) {
  if (dtype == at::kFloat)
    return torch::randint(std::numeric_limits<int32_t>::max(), {200001}, at::kInt).view(dtype);
  return torch::arange(1 << 16).to(at::kShort).view(dtype);
}

struct Quantized {
  at::Tensor codes;
  Magnitudes magnitudes;
};

Quantized quantized(const Fp8Build& build, const at::Tensor& x, Fp8 format, float scale) {
  at::Tensor codes = torch::full({x.numel() + 1}, 99, at::kByte);
  const Magnitudes found = build.quantize({x.const_data_ptr(), element_of(x.scalar_type()),
                                           codes.mutable_data_ptr<uint8_t>(), x.numel(), format, scale});
  EXPECT_EQ(codes[x.numel()].item<uint8_t>(), 99) << "behind the end";
  return {codes.narrow(0, 0, x.numel()), found};
}

TEST_P(Fp8Kernels, EveryValueIsCastAsTorchDoesAfterSaturation) {
  for (const at::ScalarType input : kInputs)
    for (const Fp8 format : {Fp8::kE4M3, Fp8::kE5M2})
      for (const float scale : {1.0F, 3.1F, 0x1p-20F, 0x1p100F}) {
        const at::Tensor x = every_value(input);
        const float max = format == Fp8::kE4M3 ? 448 : 57344;
        const at::Tensor want =
            (x.to(at::kFloat) * scale).clamp(-max, max).to(dtype_of(format)).view(at::kByte);
        const at::Tensor got = quantized(GetParam(), x, format, scale).codes;
        // The sign of a NaN depends on the CPU's product.
        const at::Tensor numbers = ~x.isnan();
        EXPECT_TRUE(at::equal(got.masked_select(numbers), want.masked_select(numbers))) << input << scale;
        EXPECT_TRUE((got.masked_select(~numbers).bitwise_and(0x7f) == 0x7f).all().item<bool>());
      }
}

TEST_P(Fp8Kernels, EveryByteIsRestoredAsTorchDoes) {
  const at::Tensor codes = torch::arange(256).to(at::kByte).repeat({3});
  for (const Fp8 format : {Fp8::kE4M3, Fp8::kE5M2})
    for (const float scale : {1.0F, 0.3F, 0x1p-120F}) {
      at::Tensor out = torch::empty({codes.numel()});
      GetParam().dequantize(
          {codes.const_data_ptr<uint8_t>(), out.mutable_data_ptr<float>(), codes.numel(), format, scale});
      EXPECT_TRUE(test::same_bits(out, codes.view(dtype_of(format)).to(at::kFloat) * scale)) << scale;
    }
}

TEST_P(Fp8Kernels, EveryLengthHasTheCodesAndMagnitudesOfItsValues) {
  torch::manual_seed(1);
  for (const at::ScalarType input : kInputs)
    for (const int64_t count : kCounts) {
      // An odd start, so that no vector is aligned.
      const at::Tensor x = torch::randn({count + 1}).to(input).narrow(0, 1, count);
      const auto [codes, found] = quantized(GetParam(), x, Fp8::kE4M3, 2);
      EXPECT_TRUE(at::equal(codes, (x.to(at::kFloat) * 2).to(at::kFloat8_e4m3fn).view(at::kByte))) << count;
      const Magnitudes alone = GetParam().find_magnitudes({x.const_data_ptr(), element_of(input), count});
      const float want = count == 0 ? 0 : x.abs().max().item<float>();
      EXPECT_EQ(found.largest, want);
      EXPECT_EQ(alone.largest, want);
      EXPECT_FALSE(found.has_nan || alone.has_nan);
    }
}

TEST_P(Fp8Kernels, MagnitudesSkipNaNAndTellOfIt) {
  for (const at::ScalarType input : kInputs)
    for (const int64_t place : {0, 16, 299, 1234}) {
      at::Tensor x = torch::ones({1300}).to(input);
      x[place] = -std::numeric_limits<float>::quiet_NaN();
      x[(place + 1) % 1300] = -3;
      Magnitudes found = GetParam().find_magnitudes({x.const_data_ptr(), element_of(input), 1300});
      EXPECT_EQ(found.largest, 3);
      EXPECT_TRUE(found.has_nan);
      x[place] = -kInf;
      found = quantized(GetParam(), x, Fp8::kE5M2, 1).magnitudes;
      EXPECT_EQ(found.largest, kInf);
      EXPECT_FALSE(found.has_nan);
    }
}

at::Tensor quantized_e2m1(const Fp8Build& build, const at::Tensor& x, const at::Tensor& factors,
                          bool stochastic) {
  at::Tensor codes = torch::full({x.numel() / 2 + 1}, 99, at::kByte);
  QuantizeE2M1 problem = {
      x.const_data_ptr(), element_of(x.scalar_type()),     codes.mutable_data_ptr<uint8_t>(),
      x.numel(),          factors.const_data_ptr<float>(), stochastic};
  problem.seed = 5, problem.stream = 7, problem.offset = 48;
  build.quantize_e2m1(problem);
  EXPECT_EQ(codes[x.numel() / 2].item<uint8_t>(), 99) << "behind the end";
  return codes.narrow(0, 0, x.numel() / 2);
}

// The last build defines the codes of 4 bits; the tests of the room fp8 compare it with the formulas.
TEST_P(Fp8Kernels, CodesOf4BitsEqualTheGenericOnes) {
  torch::manual_seed(2);
  for (const at::ScalarType input : kInputs)
    for (const int64_t count : {0, 16, 48, 256, 272, 1040})
      for (const bool stochastic : {false, true}) {
        at::Tensor x = torch::randn({count}).mul(3);
        if (count > 16) x[2] = kInf, x[3] = std::numeric_limits<float>::quiet_NaN(), x[4] = -0.0F;
        const at::Tensor factors = torch::rand({count / 16}) * 3, typed = x.to(input);
        EXPECT_TRUE(at::equal(quantized_e2m1(GetParam(), typed, factors, stochastic),
                              quantized_e2m1(fp8_builds().back(), typed, factors, stochastic)))
            << count;
      }
}

// The last build defines the bits; the tests of the room fp8 compare it with the formulas.
TEST_P(Fp8Kernels, BlocksEqualTheGenericOnes) {
  torch::manual_seed(4);
  const int64_t rows = 3, cols = 384, stride = 400;
  const at::Tensor wide = torch::randn({rows, stride}).mul(torch::randn({rows, stride}).exp2());
  wide[1][7] = std::numeric_limits<float>::quiet_NaN(), wide[2][300] = -kInf;
  const auto results_of = [&](const Fp8Build& build, const at::Tensor& x, int64_t width, bool keeps_nan) {
    at::Tensor largest = torch::zeros({cols / width}), codes = torch::zeros({rows, stride}, at::kByte);
    build.find_block_magnitudes({x.const_data_ptr(), element_of(x.scalar_type()), rows, cols, stride, width,
                                 keeps_nan, largest.mutable_data_ptr<float>()});
    const at::Tensor scales = torch::linspace(0.25, 4, cols / width);
    build.quantize_blocks({x.const_data_ptr(), element_of(x.scalar_type()), rows, cols, stride, width,
                           scales.const_data_ptr<float>(), codes.mutable_data_ptr<uint8_t>(), Fp8::kE4M3});
    return std::vector<at::Tensor>{largest, codes};
  };
  for (const at::ScalarType input : kInputs)
    for (const int64_t width : {1, 16, 32, 128})
      for (const bool keeps_nan : {false, true}) {
        const at::Tensor x = wide.to(input);
        const auto got = results_of(GetParam(), x, width, keeps_nan),
                   want = results_of(fp8_builds().back(), x, width, keeps_nan);
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(test::same_bits(got[i], want[i])) << width;
        EXPECT_EQ(want[0].isnan().any().item<bool>(), keeps_nan);
      }
}

TEST_P(Fp8Kernels, RestoredBlocksEqualTheGenericOnes) {
  const int64_t rows = 2, cols = 384, stride = 400;
  const at::Tensor codes = torch::arange(rows * stride).to(at::kByte);
  const auto restored = [&](const Fp8Build& build, CodeFormat format, int64_t width, Element element,
                            const at::Tensor& scales) {
    at::Tensor out = torch::zeros({rows, stride}, element == Element::kFloat32 ? at::kFloat : at::kBFloat16);
    const bool is_exact =
        build.restore_blocks({codes.const_data_ptr<uint8_t>(), format, rows, cols, stride, width,
                              scales.const_data_ptr<float>(), out.mutable_data_ptr(), element});
    return std::pair(out, is_exact);
  };
  for (const CodeFormat format : {CodeFormat::kE4M3, CodeFormat::kE5M2, CodeFormat::kE2M1})
    for (const int64_t width : {1, 16, 32, 128}) {
      const at::Tensor powers = torch::arange(cols / width).remainder(9).to(at::kFloat).exp2();
      const Fp8Build& generic = fp8_builds().back();
      const auto [wide, is_wide] = restored(GetParam(), format, width, Element::kFloat32, powers);
      EXPECT_TRUE(test::same_bits(wide, restored(generic, format, width, Element::kFloat32, powers).first));
      const auto [narrow, is_narrow] = restored(GetParam(), format, width, Element::kBFloat16, powers);
      EXPECT_TRUE(is_wide && is_narrow);
      EXPECT_TRUE(at::equal(narrow.to(at::kFloat).nan_to_num(7), wide.nan_to_num(7))) << width;
      EXPECT_FALSE(restored(GetParam(), format, width, Element::kBFloat16, powers * 1.01).second);
      EXPECT_FALSE(restored(GetParam(), format, width, Element::kBFloat16, powers * 0x1p-140F).second);
    }
}

TEST(Fp8KernelsInParallel, ResultsAreThoseOfOneThread) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({300001});
  const Quantized want = quantized(fp8_builds().back(), x, Fp8::kE4M3, 30);
  at::Tensor codes = torch::empty({x.numel()}, at::kByte), restored = torch::empty({x.numel()});
  const Magnitudes found = quantize_fp8(
      {x.const_data_ptr(), Element::kFloat32, codes.mutable_data_ptr<uint8_t>(), x.numel(), Fp8::kE4M3, 30});
  EXPECT_TRUE(at::equal(codes, want.codes));
  EXPECT_EQ(found.largest, want.magnitudes.largest);
  EXPECT_EQ(find_magnitudes({x.const_data_ptr(), Element::kFloat32, x.numel()}).largest, found.largest);
  dequantize_fp8(
      {codes.const_data_ptr<uint8_t>(), restored.mutable_data_ptr<float>(), x.numel(), Fp8::kE4M3, 0.5});
  EXPECT_TRUE(test::same_bits(restored, codes.view(at::kFloat8_e4m3fn).to(at::kFloat) * 0.5));
}

}  // namespace
}  // namespace mantissa::kernels::cpu::fp8_test
