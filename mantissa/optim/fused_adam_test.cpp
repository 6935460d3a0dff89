#include "mantissa/optim/fused_adam.h"

#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::fused_adam_test {
namespace {

const std::vector<AdamOptions> kOptions = {
    AdamOptions(0.01), AdamOptions(0.02).weight_decay(0.05).betas({0.8, 0.95}),
    AdamOptions(0.01).amsgrad(true).maximize(true).weight_decay(0.1).eps(1e-4)};

/// Returns the largest distance relative to the largest weight.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor reference = b.detach().to(at::kDouble);
  return ((a.detach().to(at::kDouble) - reference).abs().max() / reference.abs().max()).item<double>();
}

// The kernels compute m * beta1 + (1 - beta1) * g where Adam interpolates, and fold the step size into other
// products. In 25 updates each is off by some rounding errors of lr * m / sqrt(v).
constexpr double kFloatError = 2e-6, kDoubleError = 1e-14;

TEST(FusedAdam, FollowsAdam) {
  for (const AdamOptions& options : kOptions) {
    for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor p = large_parameter(dtype), q = twin(p), r = twin(p), s = twin(p);
      FusedAdam fused({p}, options);
      Adam plain({q}, options);
      FusedAdamW fused_decoupled({r}, options);
      AdamW plain_decoupled({s}, options);
      for (torch::optim::Optimizer* optimizer : std::initializer_list<torch::optim::Optimizer*>{
               &fused, &plain, &fused_decoupled, &plain_decoupled})
        take_noisy_steps(*optimizer, 0, 25);
      const double error = dtype == at::kFloat ? kFloatError : kDoubleError;
      EXPECT_LT(distance(p, q), error);
      EXPECT_LT(distance(r, s), error);
      if (options.weight_decay() != 0) {
        EXPECT_GT(distance(p, r), 1e-3) << "decay goes two ways";
      }
    }
  }
}

TEST(FusedAdamW, PE06_FollowsLibtorchsAdamW) {
  const at::Tensor p = large_parameter(at::kFloat), q = twin(p);
  FusedAdamW fused({p}, AdamWOptions(0.01).weight_decay(0.1));
  torch::optim::AdamW stock({q}, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  take_noisy_steps(fused, 0, 25);
  take_noisy_steps(stock, 0, 25);
  EXPECT_LT(distance(p, q), kFloatError);
}

TEST(FusedAdamW, Computes16BitsInFloat32) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor p = large_parameter(dtype), q = p.detach().to(at::kFloat).set_requires_grad(true);
    FusedAdamW half({p}, AdamWOptions(0.01));
    FusedAdamW full({q}, AdamWOptions(0.01));
    take_noisy_steps(half, 0, 1);
    take_noisy_steps(full, 0, 1);
    EXPECT_TRUE(p.isfinite().all().item<bool>()) << "an eps of 1e-8 would be 0 in float16";
    EXPECT_LT(distance(p, q), dtype == at::kHalf ? 0x1p-11 : 0x1p-8) << "half a last place";
  }
}

TEST(FusedAdam, TakesOverFromAdamAndHandsBack) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor p = large_parameter(dtype);
    AdamW plain({p}, kOptions[2]);
    take_noisy_steps(plain, 0, 4);
    const at::Tensor q = twin(p), r = twin(p);
    FusedAdamW fused({q}, AdamWOptions(123));
    save_and_load(plain, fused);
    AdamW again({r}, AdamWOptions(123));
    save_and_load(fused, again);
    EXPECT_EQ(fused.param_groups()[0].options().get_lr(), 0.01);
    take_noisy_steps(plain, 4, 6);
    take_noisy_steps(fused, 4, 6);
    take_noisy_steps(again, 4, 6);
    EXPECT_TRUE(at::equal(r, p)) << "nothing is lost on the way";
    EXPECT_LT(distance(q, p), dtype == at::kFloat ? kFloatError : 0x1p-6);
    const auto& state = static_cast<const AdamParamState&>(*fused.state().begin()->second);
    EXPECT_EQ(state.step().item<float>(), 6);
    EXPECT_EQ(state.exp_avg().scalar_type(), dtype);
  }
}

TEST(FusedAdam, TakesOverWhatLibtorchsAdamWSaved) {
  const at::Tensor p = large_parameter(at::kFloat);
  torch::optim::AdamW stock({p}, torch::optim::AdamWOptions(0.01).weight_decay(0.5));
  take_noisy_steps(stock, 0, 5);
  const at::Tensor q = twin(p);
  FusedAdamW fused({q});
  save_and_load(stock, fused);
  take_noisy_steps(stock, 5, 9);
  take_noisy_steps(fused, 5, 9);
  EXPECT_LT(distance(q, p), kFloatError);
}

TEST(FusedAdam, Float32MomentsOfStochasticRoundingGoBackTo16Bits) {
  const at::Tensor p = large_parameter(at::kBFloat16);
  FusedAdamW rounding({p}, AdamWOptions(0.01), {.stochastic_rounding = true});
  take_noisy_steps(rounding, 0, 3);
  EXPECT_EQ(static_cast<const AdamParamState&>(*rounding.state().begin()->second).exp_avg().scalar_type(),
            at::kFloat);
  const at::Tensor q = twin(p), r = twin(p);
  AdamW plain({q});
  FusedAdamW nearest({r});
  save_and_load(rounding, plain);
  save_and_load(rounding, nearest);
  take_noisy_steps(plain, 3, 5);
  take_noisy_steps(nearest, 3, 5);
  take_noisy_steps(rounding, 3, 5);
  for (const at::Tensor& weight : {q, r}) EXPECT_LT(distance(weight, p), 0x1p-6);
  EXPECT_EQ(static_cast<const AdamParamState&>(*nearest.state().begin()->second).exp_avg().scalar_type(),
            at::kBFloat16);
}

/// Returns weights that start at 1 after 1000 updates of about `update` each.
template <typename Optimizer>
at::Tensor after_small_updates(Optimizer&& optimizer, double gradient) {
  at::Tensor& weight = optimizer.param_groups()[0].params()[0];
  weight.mutable_grad() = at::full_like(weight, gradient).detach();
  for (int i = 0; i < 1000; ++i) optimizer.step();
  return weight.detach().to(at::kDouble);
}

// Rounding to nearest loses every update. With stochastic rounding the mean of 4096 weights moves as in
// float32. One weight's distance from the mean is a random walk of 1000 draws, whose standard deviation is
// sqrt(1000 * 0.026 * 0.974) last places, which are 2^-8 for weights below 1.
TEST(FusedAdamW, SmallUpdatesArriveWithStochasticRoundingOnly) {
  const auto weight = [] { return at::ones({4096}, at::kBFloat16).set_requires_grad(true); };
  for (double direction : {1.0, -1.0}) {
    const AdamOptions adam = AdamOptions(1e-4);
    EXPECT_TRUE(after_small_updates(FusedAdamW({weight()}, adam), direction).eq(1).all().item<bool>());
    const at::Tensor moved =
        after_small_updates(FusedAdamW({weight()}, adam, {.stochastic_rounding = true}), direction);
    EXPECT_NEAR(moved.mean().item<double>(), 1 - 0.1 * direction, 1e-3);
    EXPECT_LT((moved - (1 - 0.1 * direction)).abs().max().item<double>(), 0.15);

    const SGDOptions sgd = SGDOptions(1e-4);
    EXPECT_TRUE(after_small_updates(FusedSGD({weight()}, sgd), direction).eq(1).all().item<bool>());
    EXPECT_NEAR(after_small_updates(FusedSGD({weight()}, sgd, {.stochastic_rounding = true}), direction)
                    .mean()
                    .item<double>(),
                1 - 0.1 * direction, 1e-3);
  }
}

TEST(FusedAdamW, SmallGradientsIn16BitsNeedFloat32Moments) {
  const auto after_two_steps = [](const FusedOptions& options) {
    const at::Tensor p = at::ones({64}, at::kHalf).set_requires_grad(true);
    FusedAdamW optimizer({p}, AdamOptions(0.01), options);
    for (double gradient : {1e-3, 0.0}) {
      p.mutable_grad() = at::full_like(p, gradient).detach();
      optimizer.step();
    }
    return p.detach().to(at::kFloat);
  };
  EXPECT_TRUE(at::allclose(after_two_steps({.stochastic_rounding = true}), at::full({64}, 0.983), 0, 2e-3));
  EXPECT_GT((after_two_steps({}) - 1).abs().min().item<float>(), 10) << "as Python's, where 1e-6 * 1e-3 is 0";
}

TEST(FusedAdam, NamesItselfInErrors) {
  const at::Tensor p = start_parameter(at::kFloat);
  EXPECT_THAT(value_error([&] { FusedAdam({p}, AdamOptions(-1)); }),
              testing::HasSubstr("FusedAdam: learning rate -1"));
  EXPECT_THAT(value_error([&] {
                FusedAdamW({p}, AdamOptions().betas({2, 0}));
              }),
              testing::HasSubstr("FusedAdamW: first beta 2"));
}

}  // namespace
}  // namespace mantissa::fused_adam_test
