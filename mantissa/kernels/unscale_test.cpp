#include "mantissa/kernels/unscale.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_native.h>
#include <torch/torch.h>

#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::unscale_test {

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

float ours(std::vector<at::Tensor> gradients, double inv_scale) {
  at::Tensor found = at::zeros({});
  non_finite_check_and_unscale_(gradients, found, at::full({}, inv_scale, at::kFloat));
  return found.item<float>();
}

class Unscale : public testing::TestWithParam<UnscaleBuild> {};

TEST_P(Unscale, AFactorThatIsAnyNanMakesNan) {
  const auto [tier, run] = GetParam();
  if (tier > cpu_tier()) GTEST_SKIP() << "no " << tier_name(tier) << " here";
  for (const uint32_t bits : {0x7fffffffU, 0xffffffffU, 0x7fc00000U, 0x7f800001U}) {
    at::Tensor x = at::ones({70}, at::kBFloat16);
    EXPECT_FALSE(run(x.mutable_data_ptr(), cpu::Element::kBFloat16, 70, c10::bit_cast<float>(bits)));
    EXPECT_TRUE(x.isnan().all().item<bool>()) << bits;
  }
}

TEST_P(Unscale, EqualsLibtorchAtEveryTailAndPlaceOfAnInfinity) {
  const auto [tier, run] = GetParam();
  if (tier > cpu_tier()) GTEST_SKIP() << "no " << tier_name(tier) << " here";
  for (const auto dtype : kDtypes) {
    const auto element = dtype == at::kFloat  ? cpu::Element::kFloat32
                         : dtype == at::kHalf ? cpu::Element::kFloat16
                                              : cpu::Element::kBFloat16;
    for (const int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100}) {
      for (int64_t bad = -1; bad < count; ++bad) {
        for (const float value : {HUGE_VALF, -HUGE_VALF, NAN}) {
          if (bad < 0 && std::isnan(value)) continue;
          for (const float inv_scale : {1.0F, 0x1p-16F, 0.3F, HUGE_VALF}) {
            at::Tensor x = at::linspace(-3e4, 3e4, count, at::kFloat).to(dtype);
            if (count > 2) x[1] = -0.0, x[2] = 1e-7;  // a denormal number of fp16
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
  if (tier > cpu_tier()) GTEST_SKIP() << "no " << tier_name(tier) << " here";
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto element = dtype == at::kHalf ? cpu::Element::kFloat16 : cpu::Element::kBFloat16;
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

TEST(NonFiniteCheckAndUnscale, TakesManyTensorsOfEverySizeAndDtypeAtOnce) {
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    for (const int64_t bad : {-1, 0, 3, 7, 11}) {
      std::vector<at::Tensor> gradients, want;
      at::manual_seed(1);
      for (const int64_t size : {0, 1, 5, 100'000, 0, 33, 70'001, 0}) {
        for (const auto dtype : kDtypes) gradients.push_back(at::randn({size}).to(dtype));
      }
      if (bad >= 0 && gradients[bad].numel() > 0) gradients[bad][gradients[bad].numel() - 1] = NAN;
      for (const at::Tensor& gradient : gradients) want.push_back(gradient.clone());
      EXPECT_EQ(ours(gradients, 0.1), stock(want, 0.1)) << bad;
      for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bits(gradients[i], want[i])) << i;
    }
  }
  at::set_num_threads(threads);
}

TEST(NonFiniteCheckAndUnscale, TakesAnyLayoutAndTheDtypesThatAreLibtorchsOwn) {
  const auto check = [](const std::function<at::Tensor()>& make) {
    const at::Tensor got = make(), want = make();
    EXPECT_EQ(ours({got}, 0.25), stock({want}, 0.25));
    EXPECT_TRUE(same_bits(got, want));
  };
  check([] { return at::arange(12, at::kFloat).view({3, 4}).t(); });
  check([] { return at::arange(24, at::kHalf).view({1, 2, 3, 4}).to(at::MemoryFormat::ChannelsLast); });
  check([] { return at::arange(12, at::kFloat).slice(0, 0, 12, 2); });  // gaps: libtorch's
  check([] { return at::arange(12, at::kDouble); });
  EXPECT_EQ(ours({}, 0.5), 0);
}

TEST(NonFiniteCheckAndUnscale, AFlagThatIsSetStays) {
  at::Tensor found = at::ones({}), x = at::ones({3});
  non_finite_check_and_unscale_({x}, found, at::full({}, 0.5));
  EXPECT_EQ(found.item<float>(), 1);
  EXPECT_EQ(x[0].item<float>(), 0.5);
}

TEST(NonFiniteCheckAndUnscale, ErrorsAreLibtorchs) {
  at::Tensor found = at::zeros({}), x = at::ones({3});
  EXPECT_THROW(non_finite_check_and_unscale_({x}, found, at::ones({2})), c10::Error);
  EXPECT_THROW(non_finite_check_and_unscale_({x}, found, at::ones({}, at::kDouble)), c10::Error);
  EXPECT_TRUE(at::equal(x, at::ones({3})));
}

}  // namespace
}  // namespace mantissa::unscale_test
