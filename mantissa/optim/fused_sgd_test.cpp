#include "mantissa/optim/fused_sgd.h"

#include "mantissa/optim/test_support_internal.h"

namespace mantissa::fused_sgd_test {
namespace {

const std::vector<SGDOptions> kOptions = {
    SGDOptions(0.05), SGDOptions(0.02).momentum(0.9).weight_decay(0.01),
    SGDOptions(0.05).momentum(0.7).dampening(0.3).weight_decay(0.05).maximize(true),
    SGDOptions(0.03).momentum(0.95).weight_decay(0.1).nesterov(true)};

// The kernel contracts other products and sums; in 25 updates each is off by some rounding errors.
TEST(FusedSGD, FollowsSGD) {
  for (const SGDOptions& options : kOptions) {
    for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor p = large_parameter(dtype), q = twin(p);
      FusedSGD fused({p}, options);
      SGD plain({q}, options);
      take_noisy_steps(fused, 0, 25);
      take_noisy_steps(plain, 0, 25);
      EXPECT_TRUE(at::allclose(p, q, 1e-6, dtype == at::kFloat ? 4e-6 : 1e-14)) << (p - q).abs().max();
    }
  }
}

TEST(FusedSGD, Computes16BitsInFloat32) {
  for (const SGDOptions& options : kOptions) {
    for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const at::Tensor p = large_parameter(dtype), q = p.detach().to(at::kFloat).set_requires_grad(true);
      FusedSGD half({p}, options);
      FusedSGD full({q}, options);
      take_noisy_steps(half, 0, 1);
      take_noisy_steps(full, 0, 1);
      EXPECT_TRUE(at::equal(p, q.detach().to(dtype))) << "one rounding, to nearest";
      take_noisy_steps(half, 1, 4);
      take_noisy_steps(full, 1, 4);
      EXPECT_TRUE(at::allclose(p.to(at::kFloat), q, dtype == at::kHalf ? 2e-3 : 2e-2,
                               dtype == at::kHalf ? 2e-3 : 2e-2));
    }
  }
}

TEST(FusedSGD, WithoutMomentumRemembersNothing) {
  const at::Tensor p = large_parameter(at::kFloat);
  FusedSGD fused({p}, kOptions[0]);
  take_noisy_steps(fused, 0, 2);
  EXPECT_TRUE(fused.state().empty());
}

// The gradient has no part in later buffers then, so that a buffer of zeros would stay as it is.
TEST(FusedSGD, AFirstStepThatIsDroppedLeavesNoTraceWithDampening1) {
  const at::Tensor straight = large_parameter(at::kFloat), dropped = large_parameter(at::kFloat);
  const SGDOptions options = SGDOptions(0.05).momentum(0.9).dampening(1);
  FusedSGD want({straight}, options), optimizer({dropped}, options);
  dropped.mutable_grad() = at::full_like(dropped, NAN).detach();
  optimizer.found_inf = at::ones({});
  optimizer.step();
  optimizer.found_inf = at::zeros({});
  take_noisy_steps(want, 0, 3);
  take_noisy_steps(optimizer, 0, 3);
  EXPECT_TRUE(at::equal(dropped, straight));
}

TEST(FusedSGD, TakesOverFromSGDAndHandsBack) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor p = large_parameter(dtype);
    SGD plain({p}, kOptions[2]);
    take_noisy_steps(plain, 0, 4);
    const at::Tensor q = twin(p), r = twin(p);
    FusedSGD fused({q}, 123.0);
    save_and_load(plain, fused);
    SGD again({r}, 123.0);
    save_and_load(fused, again);
    take_noisy_steps(plain, 4, 6);
    take_noisy_steps(fused, 4, 6);
    take_noisy_steps(again, 4, 6);
    EXPECT_TRUE(at::equal(r, p)) << "nothing is lost on the way";
    const double error = dtype == at::kFloat ? 4e-6 : 2e-2;
    EXPECT_TRUE(at::allclose(q.to(at::kFloat), p.to(at::kFloat), error, error));
  }
}

TEST(FusedSGD, Float32MomentumOfStochasticRoundingGoesBackTo16Bits) {
  const at::Tensor p = large_parameter(at::kHalf);
  FusedSGD rounding({p}, kOptions[1], {.stochastic_rounding = true});
  take_noisy_steps(rounding, 0, 3);
  const at::Tensor q = twin(p);
  SGD plain({q});
  save_and_load(rounding, plain);
  take_noisy_steps(plain, 3, 4);
  const auto& state = dynamic_cast<const SGDParamState&>(*plain.state().at(q.unsafeGetTensorImpl()));
  EXPECT_EQ(state.momentum_buffer().scalar_type(), at::kHalf);
  take_noisy_steps(rounding, 3, 4);
  EXPECT_TRUE(at::allclose(q.to(at::kFloat), p.to(at::kFloat), 2e-3, 2e-3));
}

TEST(FusedSGD, NamesItselfInErrors) {
  const at::Tensor p = start_parameter(at::kFloat);
  EXPECT_THAT(value_error([&] { FusedSGD({p}, SGDOptions().nesterov(true)); }),
              testing::HasSubstr("FusedSGD: nesterov with momentum 0"));
}

}  // namespace
}  // namespace mantissa::fused_sgd_test
