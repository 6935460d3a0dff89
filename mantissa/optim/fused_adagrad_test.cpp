#include "mantissa/optim/fused_adagrad.h"

#include "mantissa/optim/test_support_internal.h"

namespace mantissa::fused_adagrad_test {
namespace {

const AdagradOptions kOptions =
    AdagradOptions(0.1).lr_decay(0.2).weight_decay(0.05).initial_accumulator_value(0.25).eps(1e-6);

TEST(FusedAdagrad, FollowsItsFormula) {
  for (bool maximize : {false, true}) {
    const at::Tensor p = large_parameter(at::kDouble);
    at::Tensor want = p.detach().clone(), sum = at::full_like(want, 0.25);
    FusedAdagrad optimizer({p}, AdagradOptions(kOptions).maximize(maximize));
    take_noisy_steps(optimizer, 0, 5);
    for (int64_t step = 0; step < 5; ++step) {
      const at::Tensor grad = noise(step, p.sizes(), at::kDouble) * (maximize ? -1 : 1) + 0.05 * want;
      sum = sum + grad * grad;
      want = want - 0.1 / (1 + 0.2 * static_cast<double>(step)) * grad / (sum.sqrt() + 1e-6);
    }
    EXPECT_TRUE(at::allclose(p, want, 1e-12, 1e-12));
  }
}

TEST(FusedAdagrad, FollowsLibtorchsAndTakesOverWhatItSaved) {
  const at::Tensor p = large_parameter(at::kFloat), q = twin(p);
  torch::optim::Adagrad stock(
      {p},
      torch::optim::AdagradOptions(0.1).lr_decay(0.2).weight_decay(0.05).initial_accumulator_value(0.25).eps(
          1e-6));
  FusedAdagrad fused({q}, kOptions);
  take_noisy_steps(stock, 0, 5);
  take_noisy_steps(fused, 0, 5);
  EXPECT_TRUE(at::allclose(q, p, 1e-6, 1e-6)) << (p - q).abs().max();
  const at::Tensor r = twin(p);
  FusedAdagrad resumed({r}, 123.0);
  save_and_load(stock, resumed);
  take_noisy_steps(stock, 5, 8);
  take_noisy_steps(resumed, 5, 8);
  EXPECT_TRUE(at::allclose(r, p, 1e-6, 1e-6)) << (p - r).abs().max();
  EXPECT_EQ(static_cast<const AdagradParamState&>(*resumed.state().begin()->second).step().item<float>(), 8);
}

TEST(FusedAdagrad, AParameterWithoutAStateStartsAsTheSavedOptionsSay) {
  const at::Tensor p = large_parameter(at::kFloat), q = twin(p);
  FusedAdagrad straight({p}, kOptions), loaded({q}, 123.0);
  save_and_load(straight, loaded);
  take_noisy_steps(straight, 0, 2);
  take_noisy_steps(loaded, 0, 2);
  EXPECT_TRUE(at::equal(p, q));
}

TEST(FusedAdagrad, RefusesOptionsOutOfRangeByNameAndValue) {
  const at::Tensor p = start_parameter(at::kFloat);
  const auto error = [&](const AdagradOptions& options) {
    return value_error([&] { FusedAdagrad({p}, options); });
  };
  EXPECT_THAT(error(AdagradOptions(-1)), testing::HasSubstr("FusedAdagrad: lr -1"));
  EXPECT_THAT(error(AdagradOptions(NAN)), testing::HasSubstr("lr nan"));
  EXPECT_THAT(error(AdagradOptions().lr_decay(-2)), testing::HasSubstr("lr_decay -2"));
  EXPECT_THAT(error(AdagradOptions().weight_decay(-3)), testing::HasSubstr("weight_decay -3"));
  EXPECT_THAT(error(AdagradOptions().initial_accumulator_value(-4)),
              testing::HasSubstr("initial_accumulator_value -4"));
  EXPECT_THAT(error(AdagradOptions().eps(-5)), testing::HasSubstr("eps -5"));
}

}  // namespace
}  // namespace mantissa::fused_adagrad_test
