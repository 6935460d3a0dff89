#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/amp/iteration_tracker.h"
#include "mantissa/amp/test_support_internal.h"

// What a scaler knows about an optimizer's gradients if the loop does not say where an iteration ends.
namespace mantissa::gradient_record_test {
namespace {

using Net = TrackedNet;

/// A scaler that starts at 4 and doubles after every clean iteration.
TrackedScaler scaler() { return TrackedScaler({.init_scale = 4, .growth_interval = 1}); }

TEST(GradientStage, FollowsTheGradientsThemselves) {
  TrackedScaler s = scaler();
  Net net;
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled);
  tracked_backward(s, net.w.sum());
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled);
  s.begin_step(net.sgd);
  s.unscale_(net.sgd);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled);
  net.w.grad().mul_(0.5);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled) << "clipping writes them";
  EXPECT_TRUE(s.step(net.sgd));
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kStepped);
  EXPECT_EQ(s.get_scale(), 4) << "the iteration has not ended";
  EXPECT_EQ(s.next_state_dict().at("scale").toDouble(), 8);
  EXPECT_EQ(s.state_dict().at("scale").toDouble(), 4);
  EXPECT_EQ(s.get_scale(), 4) << "a const function moves nothing";
  net.sgd.zero_grad();
  tracked_backward(s, net.w.sum());
  EXPECT_EQ(s.get_scale(), 8);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled) << "new ones";
  EXPECT_EQ(net.w.grad()[0].item<float>(), 8);
}

TEST(GradientStage, UsedGradientsStaySoWhenTheIterationEnds) {
  TrackedScaler s = scaler();
  Net net, other;
  tracked_backward(s, net.w.sum());
  s.step(net.sgd);
  tracked_backward(s, other.w.sum());  // ends the iteration
  EXPECT_EQ(s.get_scale(), 8);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kStepped);
  EXPECT_EQ(s.gradient_stage(other.sgd), GradientStage::kScaled);
}

TEST(GradientStage, WaitsThroughAnotherOptimizersBackwardPass) {
  TrackedScaler s = scaler();
  Net net, other;
  tracked_backward(s, net.w.sum());
  s.begin_step(net.sgd);
  s.unscale_(net.sgd);
  for (int i = 0; i < 3; ++i) {
    tracked_backward(s, other.w.sum());
    EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled) << i;
  }
  EXPECT_EQ(s.get_scale(), 4);
  EXPECT_TRUE(s.step(net.sgd));
  s.begin_step(other.sgd);
  EXPECT_TRUE(s.step(other.sgd));
  tracked_backward(s, net.w.sum());
  EXPECT_EQ(s.get_scale(), 8) << "one iteration";
}

TEST(GradientStage, OfClearedAndRecomputedGradientsStartsAfresh) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.begin_step(net.sgd);
  s.unscale_(net.sgd);
  net.sgd.zero_grad();
  for (int i = 0; i < 2; ++i) {
    tracked_backward(s, net.w.sum());
    EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled) << i;
  }
  s.begin_step(net.sgd);
  EXPECT_NO_THROW(s.unscale_(net.sgd)) << "the record was reset";
  EXPECT_EQ(net.w.grad()[0].item<float>(), 2);
  EXPECT_EQ(s.get_scale(), 4) << "a step that was never taken does not move the scale";
}

TEST(GradientStage, TheLoopsOwnWritesAreNoBackwardPass) {
  TrackedScaler s = scaler();
  Net net, other;
  tracked_backward(s, net.w.sum());
  s.begin_step(net.sgd);
  s.unscale_(net.sgd);
  tracked_backward(s, other.w.sum());
  net.w.grad().mul_(0.5);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled);
  tracked_backward(s, other.w.sum());
  net.w.mutable_grad() = net.w.grad() * 0.5;
  s.begin_step(net.sgd);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled);
  s.step(net.sgd);
  EXPECT_EQ(net.w[0].item<float>(), 1 - 0.5F * 0.25F);
}

TEST(GradientStage, WhatHooksWriteBeforeThePassIsNotOfThePass) {
  TrackedScaler s = scaler();
  Net net, cleared;
  tracked_backward(s, net.w.sum() + cleared.w.sum());
  s.unscale_(net.sgd);
  s.unscale_(cleared.sgd);
  s.begin_backward();
  net.w.grad().mul_(0.5);
  cleared.sgd.zero_grad();
  s.restart_backward();
  s.scale(cleared.w.sum()).backward();
  s.end_backward();
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled);
  EXPECT_EQ(s.gradient_stage(cleared.sgd), GradientStage::kScaled);
}

TEST(GradientStage, OfViewsOfOneBucketIsEachOptimizersOwn) {
  TrackedScaler s = scaler();
  Net a, b;
  const at::Tensor bucket = torch::zeros({4});
  a.w.mutable_grad() = bucket.narrow(0, 0, 2);
  b.w.mutable_grad() = bucket.narrow(0, 2, 2);
  tracked_backward(s, a.w.sum());
  s.unscale_(a.sgd);
  tracked_backward(s, b.w.sum());
  EXPECT_EQ(s.gradient_stage(a.sgd), GradientStage::kUnscaled);
  s.unscale_(b.sgd);
  for (Net* net : {&a, &b}) {
    s.begin_step(net->sgd);
    EXPECT_TRUE(s.step(net->sgd));
    EXPECT_EQ(net->w[0].item<float>(), 0.5);
  }
}

TEST(GradientStage, ASumOfUnscaledAndScaledGradientsIsRefusedUntilItIsCleared) {
  TrackedScaler s = scaler();
  Net net;
  const auto refused = [&](const auto& call) { expect_error(call, "has added scaled gradients"); };
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  tracked_backward(s, net.w.sum());
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kMixed);
  refused([&] { s.begin_step(net.sgd); });
  refused([&] { s.step(net.sgd); });
  refused([&] { s.clip_grad_norm_(net.sgd, 1); });
  tracked_backward(s, net.w.sum());
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kMixed);
  EXPECT_EQ(net.w.grad()[0].item<float>(), 9) << "nothing has changed";
  net.sgd.zero_grad();
  tracked_backward(s, net.w.sum());
  s.begin_step(net.sgd);
  EXPECT_TRUE(s.step(net.sgd));
  EXPECT_EQ(net.w[0].item<float>(), 0.5);
}

TEST(GradientStage, AFirstGradientBesideUnscaledOnesIsAMixture) {
  TrackedScaler s = scaler();
  const at::Tensor a = torch::ones({1}).set_requires_grad(true), b = torch::ones({1}).set_requires_grad(true);
  torch::optim::SGD sgd({a, b}, 0.5);
  tracked_backward(s, a.sum());
  s.unscale_(sgd);
  tracked_backward(s, b.sum());
  EXPECT_EQ(s.gradient_stage(sgd), GradientStage::kMixed);
  a.mutable_grad() = at::Tensor();
  EXPECT_EQ(s.gradient_stage(sgd), GradientStage::kScaled) << "only the new one is left";
}

TEST(GradientStage, AMixtureThatIsNeverSteppedHoldsNothingUp) {
  TrackedScaler s = scaler();
  Net mixed, net;
  tracked_backward(s, mixed.w.sum());
  s.unscale_(mixed.sgd);
  tracked_backward(s, mixed.w.sum() + net.w.sum());
  s.step(net.sgd);
  net.sgd.zero_grad();
  tracked_backward(s, net.w.sum());
  EXPECT_EQ(s.get_scale(), 8);
  EXPECT_EQ(s.gradient_stage(mixed.sgd), GradientStage::kMixed);
}

TEST(GradientStage, ALoopWithoutEndBackwardIsFollowedToo) {
  TrackedScaler s = scaler();
  Net net, other;
  const auto backward = [&](const at::Tensor& loss) {
    s.begin_backward();
    s.scale(loss).backward();
  };
  backward(net.w.sum());
  s.unscale_(net.sgd);
  backward(other.w.sum());
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled);
  net.sgd.zero_grad();
  backward(net.w.sum());
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled);
}

TEST(GradientStage, ASecondStepEndsTheIterationAndThoseThatWaitGoOnWaiting) {
  TrackedScaler s = scaler();
  Net fast, slow;
  tracked_backward(s, fast.w.sum() + slow.w.sum());
  s.begin_step(slow.sgd);
  s.unscale_(slow.sgd);
  s.begin_step(fast.sgd);
  s.step(fast.sgd);
  fast.sgd.zero_grad();
  tracked_backward(s, fast.w.sum());
  EXPECT_EQ(s.get_scale(), 4) << "one still waits";
  s.begin_step(fast.sgd);
  EXPECT_EQ(s.get_scale(), 8);
  EXPECT_EQ(s.gradient_stage(slow.sgd), GradientStage::kUnscaled);
  s.begin_step(slow.sgd);
  EXPECT_TRUE(s.step(slow.sgd));
  EXPECT_EQ(slow.w[0].item<float>(), 0.5) << "not divided twice";
}

TEST(GradientStage, GradientsThatAddUpFollowTheScaleThatAnothersStepMoves) {
  TrackedScaler s = scaler();
  Net steps, adds_up;
  s.watch(adds_up.sgd);  // before its first step, the scaler has not met it
  for (int pass = 0; pass < 2; ++pass) {
    steps.sgd.zero_grad();
    tracked_backward(s, steps.w.sum() + adds_up.w.sum());
    EXPECT_EQ(s.get_scale(), pass == 0 ? 4 : 8);
    s.step(steps.sgd);
  }
  EXPECT_EQ(adds_up.w.grad()[0].item<float>(), 2 * 8) << "both passes, by the newer scale";
  EXPECT_TRUE(s.step(adds_up.sgd));
  EXPECT_EQ(adds_up.w[0].item<float>(), 0);
}

TEST(GradientStage, AnothersSelfUnscaledStepIsNotReadForGradientsThatAddUp) {
  TrackedScaler s = scaler();
  Net adds_up;
  const at::Tensor p = with_grad({1.F});
  KernelSgd steps({p}, 1.0);
  tracked_backward(s, p.sum() + adds_up.w.sum());
  s.step(steps);
  s.step(adds_up.sgd);
  adds_up.sgd.zero_grad();
  steps.zero_grad();
  tracked_backward(s, p.sum() + adds_up.w.sum());
  s.step(steps);
  steps.zero_grad();
  const HostReads reads;
  tracked_backward(s, p.sum() + adds_up.w.sum());
  EXPECT_EQ(reads.count(), 0) << "whether the scale has moved is known on the device alone";
}

TEST(GradientStage, ClippedFp16GradientsKeepTheirDivisorWhileTheyWait) {
  TrackedScaler s = scaler();
  const at::Tensor p = with_grad({16.F}, at::kHalf);
  KernelSgd waits({p}, 1.0);
  Net other;
  tracked_backward(s, other.w.sum());
  s.clip_grad_norm_(waits, 1.0);  // from 16 / 4
  s.step(other.sgd);
  other.sgd.zero_grad();
  tracked_backward(s, other.w.sum());
  s.clip_grad_value_(waits, 100.0);
  EXPECT_EQ(s.gradient_stage(waits), GradientStage::kChecked);
  s.begin_step(other.sgd);
  EXPECT_EQ(s.get_scale(), 8) << "the gradients that wait carry 4";
  s.begin_step(waits);
  s.step(waits);
  EXPECT_NEAR(p.item<float>(), 0, 1e-3);
}

TEST(GradientStage, EndAndAbandonDifferInTheScale) {
  TrackedScaler s = scaler();
  Net net, waits;
  tracked_backward(s, net.w.sum() + waits.w.sum());
  s.step(net.sgd);
  s.unscale_(waits.sgd);
  s.abandon_iteration();
  EXPECT_EQ(s.get_scale(), 4);
  EXPECT_NO_THROW(s.end_iteration()) << "nothing to end";
  EXPECT_EQ(s.get_scale(), 4);
  net.sgd.zero_grad();
  tracked_backward(s, net.w.sum());
  s.step(net.sgd);
  s.end_iteration();
  EXPECT_EQ(s.get_scale(), 8);
}

TEST(GradientStage, TheEndOfAnIterationDropsThoseThatWaitEvenIfNoneStepped) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  s.end_iteration();
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled);
  EXPECT_NO_THROW(s.unscale_(net.sgd));
  EXPECT_EQ(s.get_scale(), 4) << "no step, no growth";
}

TEST(GradientStage, WaitsInASecondIterationAsInTheFirst) {
  TrackedScaler s = scaler();
  Net net, other;
  for (int iteration = 0; iteration < 2; ++iteration) {
    net.sgd.zero_grad();
    tracked_backward(s, net.w.sum());
    s.unscale_(net.sgd);
    tracked_backward(s, other.w.sum());
    tracked_backward(s, other.w.sum());
    EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled) << iteration;
    EXPECT_TRUE(s.step(net.sgd));
    s.update();
  }
}

/// What a checkpoint would restore: gradients, stage and divisor in new objects.
struct Loaded {
  Loaded(const TrackedScaler& s, const Net& saved) {
    net.w.mutable_grad() = saved.w.grad().clone();
    loaded.load_state_dict(s.next_state_dict());
    loaded.restore_gradient_stage(net.sgd, s.gradient_stage(saved.sgd), s.clip_divisor(saved.sgd));
  }
  TrackedScaler loaded = scaler();
  Net net;
};

TEST(RestoredGradientStage, ScaledAndUnscaledGradientsTakeTheStepThatWasDue) {
  for (const bool is_unscaled : {false, true}) {
    TrackedScaler s = scaler();
    Net net;
    tracked_backward(s, net.w.sum());
    if (is_unscaled) s.unscale_(net.sgd);
    Loaded again(s, net);
    EXPECT_EQ(again.loaded.gradient_stage(again.net.sgd), s.gradient_stage(net.sgd));
    tracked_backward(again.loaded, torch::ones({1}).set_requires_grad(true).sum());
    again.loaded.begin_step(again.net.sgd);
    EXPECT_TRUE(again.loaded.step(again.net.sgd));
    EXPECT_EQ(again.net.w[0].item<float>(), 0.5) << is_unscaled;
    again.loaded.end_iteration();
    EXPECT_EQ(again.loaded.get_scale(), 8);
  }
}

TEST(RestoredGradientStage, ScaledGradientsFollowTheScaleAlsoAfterAStep) {
  TrackedScaler s = scaler();
  Net net, other;
  s.watch(other.sgd);
  tracked_backward(s, net.w.sum() + other.w.sum());
  s.step(net.sgd);
  s.end_iteration();
  net.w.mutable_grad() = torch::full({2}, 8.F);
  s.restore_gradient_stage(net.sgd, GradientStage::kScaled, {});
  s.step(other.sgd);
  s.end_iteration();
  EXPECT_EQ(s.get_scale(), 16);
  EXPECT_EQ(net.w.grad()[0].item<float>(), 16);
}

TEST(RestoredGradientStage, UsedGradientsStayUsed) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.step(net.sgd);
  Loaded again(s, net);
  EXPECT_EQ(again.loaded.gradient_stage(again.net.sgd), GradientStage::kStepped);
  again.loaded.end_iteration();
  EXPECT_EQ(again.loaded.get_scale(), 8) << "the saved state has already moved with that step";
}

TEST(RestoredGradientStage, AMixtureStaysRefused) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  tracked_backward(s, net.w.sum());
  Loaded again(s, net);
  EXPECT_EQ(again.loaded.gradient_stage(again.net.sgd), GradientStage::kMixed);
}

TEST(RestoredGradientStage, FindsAnOverflowAgain) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, (net.w * kInf).sum());
  s.unscale_(net.sgd);
  Loaded again(s, net);
  EXPECT_FALSE(again.loaded.step(again.net.sgd));
}

TEST(RestoredGradientStage, TheSavedScaleHasMovedOnlyWithStepsThatWereTaken) {
  TrackedScaler s = scaler();
  Net stepped, waits;
  tracked_backward(s, stepped.w.sum() + (waits.w * kInf).sum());
  s.unscale_(waits.sgd);
  s.step(stepped.sgd);
  Loaded again(s, waits);
  EXPECT_EQ(again.loaded.get_scale(), 8);
  EXPECT_FALSE(again.loaded.step(again.net.sgd));
  again.loaded.end_iteration();
  EXPECT_EQ(again.loaded.get_scale(), 4);
}

TEST(RestoredGradientStage, OfClippedFp16GradientsHasTheirDivisor) {
  TrackedScaler s({.init_scale = 4});
  s.scale(torch::zeros({}));
  const at::Tensor saved = with_grad({16.F}, at::kHalf), loaded = with_grad({16.F}, at::kHalf);
  KernelSgd sgd({saved}, 1.0), loaded_sgd({loaded}, 1.0);
  s.clip_grad_norm_(sgd, 1.0);
  EXPECT_EQ(s.gradient_stage(sgd), GradientStage::kChecked);
  TrackedScaler again({.init_scale = 4});
  again.restore_gradient_stage(loaded_sgd, s.gradient_stage(sgd), s.clip_divisor(sgd));
  s.step(sgd);
  again.step(loaded_sgd);
  EXPECT_TRUE(at::equal(loaded, saved));
  EXPECT_NEAR(loaded.item<float>(), 0, 1e-3);
}

TEST(RestoredGradientStage, RefusesADivisorThatItsStageDoesNotHave) {
  TrackedScaler s = scaler();
  Net net;
  expect_error<c10::ValueError>(
      [&] { s.restore_gradient_stage(net.sgd, GradientStage::kUnscaled, torch::ones({})); }, "clip_divisor");
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled);
}

TEST(LastStep, IsKnownOfAPlainOptimizerAndNamesTheParameter) {
  TrackedScaler s({.init_scale = 4});
  s.set_parameter_name([](const at::Tensor&) { return std::string("fc.weight"); });
  Net net;
  EXPECT_FALSE(s.last_step(net.sgd).skipped()) << "no step yet";
  tracked_backward(s, (net.w * std::numeric_limits<float>::infinity()).sum());
  EXPECT_FALSE(s.step(net.sgd));
  const StepResult step = s.last_step(net.sgd);
  EXPECT_EQ(step.cause(), SkipCause::kNonFiniteGradients);
  EXPECT_EQ(step.first_nonfinite_parameter(), "fc.weight");
  net.sgd.zero_grad();
  EXPECT_EQ(s.last_step(net.sgd).first_nonfinite_parameter(), "") << "the gradients are gone";
  EXPECT_TRUE(s.last_step(net.sgd).skipped());
}

TEST(GradientStage, OfParametersThatWereAddedAfterAStepAndTrainAlone) {
  TrackedScaler s = scaler();
  Net net;
  const at::Tensor added = torch::ones({2}, at::requires_grad());
  const auto iterate = [&](const at::Tensor& weight) {
    net.sgd.zero_grad();
    tracked_backward(s, weight.sum());
    ASSERT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled);
    s.begin_step(net.sgd);
    s.step(net.sgd);
    EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kStepped);
  };
  iterate(net.w);
  net.w.set_requires_grad(false);
  net.sgd.add_param_group(torch::optim::OptimizerParamGroup(std::vector{added}));
  for (int i = 0; i < 3; ++i) iterate(added);
  EXPECT_EQ(net.w[0].item<float>(), 0.5);
  EXPECT_EQ(added[0].item<float>(), -0.5);
}

}  // namespace
}  // namespace mantissa::gradient_record_test
