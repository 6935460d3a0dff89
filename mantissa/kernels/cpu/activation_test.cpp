#include "mantissa/kernels/cpu/activation.h"

#include <gtest/gtest.h>
#include <limits>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::activation_test {

/// For GoogleTest's messages.
void PrintTo(const ActivationBuild& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16};
constexpr Activation kGelus[] = {Activation::kGelu, Activation::kGeluTanh};

/// Returns all 16-bit values, or as many values of float32.
at::Tensor every_value(at::ScalarType dtype) {
  const at::Tensor bits = at::arange(-32768, 32768, at::kInt);
  if (dtype == at::kFloat) return bits.mul(65536 / 16).add(12345).to(at::kFloat).div(1 << 20);
  return bits.to(at::kShort).view(dtype);
}

/// Returns the activation's result, its derivative and the scale of the derivative's error, in float64,
/// without the cancellation of 1 + erf.
std::tuple<at::Tensor, at::Tensor, at::Tensor> exact(Activation activation, const at::Tensor& values) {
  const at::Tensor x = values.to(at::kDouble);
  if (activation == Activation::kGelu) {
    const at::Tensor share = at::erfc(x * -M_SQRT1_2) * 0.5;
    const at::Tensor density = x * at::exp(x * x * -0.5) * (M_2_SQRTPI * M_SQRT1_2 * 0.5);
    return {x * share, share + density, share + density.abs()};
  }
  const double k = M_2_SQRTPI * M_SQRT2;  // 2 sqrt(2 / pi)
  const at::Tensor share = at::sigmoid((x + x * x * x * 0.044715) * k);
  const at::Tensor rest = at::sigmoid((x + x * x * x * 0.044715) * -k);
  const at::Tensor bend = x * (x * x * (3 * 0.044715) + 1) * share * rest * k;
  return {x * share, share + bend, share + bend.abs()};
}

/// Expects `got` to be as near to `want` as Activation promises: within a share of `size`, one rounding of
/// its dtype, and float32's underflow.
void expect_near(const at::Tensor& got, const at::Tensor& x_in, const at::Tensor& want,
                 const at::Tensor& size) {
  const at::Tensor x = x_in.to(at::kDouble);

  const bool is_bf16 = got.scalar_type() == at::kBFloat16, is_fp16 = got.scalar_type() == at::kHalf;
  const double half_ulp = is_bf16 ? 0x1p-8 : is_fp16 ? 0x1p-11 : 0x1p-24;
  const at::Tensor allowed =
      size.abs() * (x * x + 20) * 0x1p-23 + want.abs() * half_ulp * 1.01 + (is_fp16 ? 0x1p-25 : 0x1p-118);
  const at::Tensor error = (got.to(at::kDouble) - want).abs();
  const at::Tensor finite = want.isfinite() & (want.abs() < (is_fp16 ? 65504 : 3.3e38));
  const at::Tensor wrong = finite & ~(error <= allowed);
  EXPECT_FALSE(wrong.any().item<bool>())
      << wrong.sum().item<int64_t>() << " out of bound, the worst by a factor of "
      << (error / allowed).masked_fill(~wrong, 0).max().item<double>() << " at "
      << (error / allowed).masked_fill(~wrong, 0).argmax().item<int64_t>();
}

class ActivationTest : public testing::TestWithParam<ActivationBuild> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here (or MANTISSA_MAX_ISA rules it out)";
  }
  static at::Tensor activated(Activation activation, const at::Tensor& x) {
    at::Tensor out = at::full_like(x, -7);
    GetParam().run(activation, element_of(x.scalar_type()), x.const_data_ptr(), out.mutable_data_ptr(),
                   x.numel());
    return out;
  }
  static at::Tensor gradient(Activation activation, const at::Tensor& gradient, const at::Tensor& x) {
    at::Tensor out = at::full_like(x, -7);
    GetParam().run_backward(activation, element_of(x.scalar_type()), gradient.const_data_ptr(),
                            x.const_data_ptr(), out.mutable_data_ptr(), x.numel());
    return out;
  }
};

TEST_P(ActivationTest, GeluIsWithinTheBoundAtEveryValue) {
  for (const Activation activation : kGelus)
    for (const auto dtype : kDtypes) {
      SCOPED_TRACE(dtype);
      const at::Tensor x = every_value(dtype);
      const auto [value, slope, size] = exact(activation, x);
      expect_near(activated(activation, x), x, value, value);
      expect_near(gradient(activation, at::ones_like(x), x), x, slope, size);
    }
}

TEST_P(ActivationTest, ReluIsExactAndKeepsNan) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = every_value(dtype);
    EXPECT_TRUE(at::equal(at::nan_to_num(activated(Activation::kRelu, x), 7), at::nan_to_num(x.relu(), 7)));
    EXPECT_TRUE(at::equal(gradient(Activation::kRelu, at::ones_like(x), x), (x > 0).to(dtype)));
    EXPECT_TRUE(test::same_bits(activated(Activation::kNone, x), x));
  }
}

TEST_P(ActivationTest, InfinitiesAndNanAreAsInLibtorchsFormula) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : kDtypes) {
    // Enough of each value to fill vectors, and a tail.
    const at::Tensor x =
        at::tensor({inf, -inf, nan}, at::kDouble).to(dtype).view({3, 1}).expand({3, 101}).contiguous();
    for (const bool is_tanh : {false, true}) {
      const at::Tensor y = activated(is_tanh ? Activation::kGeluTanh : Activation::kGelu, x);
      EXPECT_TRUE((y[0] == inf).all().item<bool>());
      EXPECT_TRUE(y[1].isnan().all().item<bool>());
      EXPECT_TRUE(y[2].isnan().all().item<bool>());
    }
  }
}

TEST_P(ActivationTest, EveryNanStaysOneAlsoOfTheGradient) {
  for (const Activation activation :
       {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh})
    for (const auto dtype : kDtypes) {
      const at::Tensor bits = every_value(dtype), x = at::randn(bits.sizes()).to(dtype);
      EXPECT_TRUE(activated(activation, bits).masked_select(bits.isnan()).isnan().all().item<bool>());
      EXPECT_TRUE(gradient(activation, bits, x).masked_select(bits.isnan()).isnan().all().item<bool>());
    }
}

TEST_P(ActivationTest, ResultsMayTakeTheirOperandsPlace) {
  for (const Activation activation : kGelus)
    for (const auto dtype : kDtypes)
      for (const int64_t count : {5, 16, 70}) {
        const at::Tensor x = at::randn({count}).to(dtype), g = at::randn({count}).to(dtype);
        const at::Tensor value = activated(activation, x), slope = gradient(activation, g, x);
        const at::Tensor over_x = x.clone(), by_x = x.clone(), by_g = g.clone();
        const auto element = element_of(dtype);
        GetParam().run(activation, element, over_x.const_data_ptr(), over_x.mutable_data_ptr(), count);
        GetParam().run_backward(activation, element, g.const_data_ptr(), by_x.const_data_ptr(),
                                by_x.mutable_data_ptr(), count);
        GetParam().run_backward(activation, element, by_g.const_data_ptr(), x.const_data_ptr(),
                                by_g.mutable_data_ptr(), count);
        EXPECT_TRUE(test::same_bits(over_x, value));
        EXPECT_TRUE(test::same_bits(by_x, slope));
        EXPECT_TRUE(test::same_bits(by_g, slope));
      }
}

TEST_P(ActivationTest, GradientsOfAnySizeAndEveryTail) {
  for (const Activation activation : kGelus)
    for (const auto dtype : kDtypes)
      for (const int64_t count : {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 100}) {
        const at::Tensor x = at::randn({count + 1}).to(dtype).slice(0, 0, count);
        const at::Tensor g = (at::randn({count + 1}) * 50).to(dtype).slice(0, 0, count);
        const auto [value, slope, size] = exact(activation, x);
        expect_near(activated(activation, x), x, value, value);
        const at::Tensor wide = g.to(at::kDouble);
        expect_near(gradient(activation, g, x), x, wide * slope, wide * size);
      }
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, ActivationTest, testing::ValuesIn(activation_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

}  // namespace
}  // namespace mantissa::kernels::cpu::activation_test
