#include "mantissa/kernels/cpu/unscale.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_native.h>
#include <torch/torch.h>

#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::unscale_test {

/// For GoogleTest's messages.
void PrintTo(const UnscaleBuild& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

using test::same_bits;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16};

float stock(std::vector<at::Tensor> gradients, double inv_scale) {
  at::Tensor found = at::zeros({});
  at::native::_amp_foreach_non_finite_check_and_unscale_cpu_(gradients, found,
                                                             at::full({}, inv_scale, at::kFloat));
  return found.item<float>();
}

class Unscale : public testing::TestWithParam<UnscaleBuild> {};

TEST_P(Unscale, AFactorThatIsAnyNanMakesNan) {
  const auto [tier, run] = GetParam();
  if (!cpu_features().includes(features_of(tier))) GTEST_SKIP() << "no " << tier_name(tier) << " here";
  for (const uint32_t bits : {0x7fffffffU, 0xffffffffU, 0x7fc00000U, 0x7f800001U}) {
    at::Tensor x = at::ones({70}, at::kBFloat16);
    EXPECT_FALSE(run(x.mutable_data_ptr(), Element::kBFloat16, 70, c10::bit_cast<float>(bits)));
    EXPECT_TRUE(x.isnan().all().item<bool>()) << bits;
  }
}

TEST_P(Unscale, EqualsLibtorchAtEveryTailAndPlaceOfAnInfinity) {
  const auto [tier, run] = GetParam();
  if (!cpu_features().includes(features_of(tier))) GTEST_SKIP() << "no " << tier_name(tier) << " here";
  for (const auto dtype : kDtypes) {
    const auto element = dtype == at::kFloat  ? Element::kFloat32
                         : dtype == at::kHalf ? Element::kFloat16
                                              : Element::kBFloat16;
    for (const int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100}) {
      for (int64_t bad = -1; bad < count; ++bad) {
        for (const float value : {HUGE_VALF, -HUGE_VALF, NAN}) {
          if (bad < 0 && std::isnan(value)) continue;
          for (const float inv_scale : {1.0F, 0x1p-16F, 0.3F, HUGE_VALF}) {
            at::Tensor x = at::linspace(-3e4, 3e4, count, at::kFloat).to(dtype);
            if (count > 2) x[1] = -0.0, x[2] = 1e-7;  // an fp16 denormal
            if (bad >= 0) x[bad] = value;
            const at::Tensor want = x.clone();
            EXPECT_EQ(run(x.mutable_data_ptr(), element, count, inv_scale), bad >= 0) << count << " " << bad;
            EXPECT_EQ(stock({want}, inv_scale), bad >= 0 ? 1 : 0);
            ASSERT_TRUE(same_bits(x, want)) << dtype << " " << count << " * " << inv_scale;
          }
        }
      }
    }
  }
}

TEST_P(Unscale, FindsEveryNonFiniteNumberOf16BitsAndNoOther) {
  const auto [tier, run] = GetParam();
  if (!cpu_features().includes(features_of(tier))) GTEST_SKIP() << "no " << tier_name(tier) << " here";
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto element = dtype == at::kHalf ? Element::kFloat16 : Element::kBFloat16;
    const at::Tensor all = at::arange(65536, at::kInt).to(at::kShort).view(dtype);
    const at::Tensor finite = all.masked_select(all.isfinite()).contiguous();
    EXPECT_FALSE(run(finite.mutable_data_ptr(), element, finite.numel(), 1));
    const at::Tensor others = all.masked_select(all.isfinite().logical_not());
    for (int64_t i = 0; i < others.numel(); ++i) {
      const at::Tensor one = others[i].clone();
      ASSERT_TRUE(run(one.mutable_data_ptr(), element, 1, 1)) << i;
    }
    const at::Tensor want = finite.clone();
    EXPECT_FALSE(run(finite.mutable_data_ptr(), element, finite.numel(), 0.7F));
    stock({want}, 0.7F);
    EXPECT_TRUE(same_bits(finite, want));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, Unscale, testing::ValuesIn(unscale_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

}  // namespace
}  // namespace mantissa::kernels::cpu::unscale_test
