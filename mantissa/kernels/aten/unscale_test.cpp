#include <functional>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_native.h>
#include <torch/torch.h>

#include "mantissa/kernels/aten/unscale_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::unscale_test {

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
  kernels::aten::unscale::non_finite_check_and_unscale_(gradients, found,
                                                        at::full({}, inv_scale, at::kFloat));
  return found.item<float>();
}

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
  check([] { return at::arange(12, at::kFloat).slice(0, 0, 12, 2); });  // has gaps, so libtorch's kernel runs
  check([] { return at::arange(12, at::kDouble); });
  EXPECT_EQ(ours({}, 0.5), 0);
}

TEST(NonFiniteCheckAndUnscale, AFlagThatIsSetStays) {
  at::Tensor found = at::ones({}), x = at::ones({3});
  kernels::aten::unscale::non_finite_check_and_unscale_({x}, found, at::full({}, 0.5));
  EXPECT_EQ(found.item<float>(), 1);
  EXPECT_EQ(x[0].item<float>(), 0.5);
}

TEST(NonFiniteCheckAndUnscale, ErrorsAreLibtorchs) {
  at::Tensor found = at::zeros({}), x = at::ones({3});
  EXPECT_THROW(kernels::aten::unscale::non_finite_check_and_unscale_({x}, found, at::ones({2})), c10::Error);
  EXPECT_THROW(kernels::aten::unscale::non_finite_check_and_unscale_({x}, found, at::ones({}, at::kDouble)),
               c10::Error);
  EXPECT_TRUE(at::equal(x, at::ones({3})));
}

}  // namespace
}  // namespace mantissa::unscale_test
