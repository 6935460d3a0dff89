#include "mantissa/amp/iteration_tracker.h"

#include <vector>

#include "mantissa/amp/test_support_internal.h"

// Loops that leave out a step, or a backward pass that fails.
namespace mantissa::iteration_tracker_test {
namespace {

using Net = TrackedNet;

/// A scaler that starts at 4 and doubles after every clean iteration.
TrackedScaler scaler() { return TrackedScaler({.init_scale = 4, .growth_interval = 1}); }

TEST(IterationTracker, ABackwardPassThatFailedIsStillCountedWhenTheNextOneBegins) {
  TrackedScaler s = scaler();
  Net net, other;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  s.begin_backward();
  s.scale(net.w.sum()).backward();  // the loop's exception keeps end_backward() from being called
  tracked_backward(s, other.w.sum());
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kMixed);
}

TEST(IterationTracker, NewGradientsOfAnOptimizerWhoseStepWasLeftOutFollowTheScale) {
  TrackedScaler s = scaler();
  Net left_out, other;
  tracked_backward(s, left_out.w.sum());
  s.unscale_(left_out.sgd);
  left_out.sgd.zero_grad();
  tracked_backward(s, left_out.w.sum() + other.w.sum());
  s.begin_backward();
  s.end_backward();
  s.step(other.sgd);
  tracked_backward(s, left_out.w.sum());  // the scale has moved from 4 to 8
  EXPECT_EQ(left_out.w.grad()[0].item<float>(), 16) << "two passes at the scale 8";
}

TEST(IterationTracker, GradientsThatAddUpFollowTheScaleAlsoAfterAStepOfTheirOwn) {
  TrackedScaler s = scaler();
  Net adds_up, other;
  tracked_backward(s, adds_up.w.sum());
  s.step(adds_up.sgd);
  adds_up.sgd.zero_grad();
  tracked_backward(s, adds_up.w.sum() + other.w.sum());
  ASSERT_EQ(s.get_scale(), 8);
  s.step(other.sgd);
  tracked_backward(s, adds_up.w.sum());
  ASSERT_EQ(s.get_scale(), 16);
  EXPECT_EQ(adds_up.w.grad()[0].item<float>(), 32) << "two passes at the scale 16";
}

TEST(IterationTracker, AParameterWithoutAGradientDoesNotKeepTheOthersFromFollowingTheScale) {
  TrackedScaler s = scaler();
  const at::Tensor w = torch::ones({2}, at::requires_grad()), unused = torch::ones({2}, at::requires_grad());
  torch::optim::SGD adds_up({unused, w}, 0.5);
  Net other;
  s.watch(adds_up);
  tracked_backward(s, w.sum() + other.w.sum());
  s.step(other.sgd);
  tracked_backward(s, w.sum());
  EXPECT_EQ(w.grad()[0].item<float>(), 16) << "two passes at the scale 8";
  EXPECT_FALSE(unused.grad().defined());
}

TEST(IterationTracker, AnAbandonedMixtureIsForgotten) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  tracked_backward(s, net.w.sum());
  ASSERT_EQ(s.gradient_stage(net.sgd), GradientStage::kMixed);
  s.abandon_iteration();
  net.sgd.zero_grad();
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled);
}

TEST(IterationTracker, AnIterationThatIsAbandonedInItsBackwardPassIsForgotten) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  s.begin_backward();
  s.abandon_iteration();
  net.sgd.zero_grad();
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled);
}

TEST(IterationTracker, GradientsThatTheLoopWritesAfterTheirStepDoNotFollowTheScale) {
  TrackedScaler s = scaler();
  Net net, other;
  tracked_backward(s, net.w.sum() + other.w.sum());
  s.step(net.sgd);
  net.w.grad().fill_(3);
  s.step(other.sgd);
  tracked_backward(s, torch::ones({}, at::requires_grad()).sum());
  ASSERT_EQ(s.get_scale(), 8);
  EXPECT_EQ(net.w.grad()[0].item<float>(), 3);
}

TEST(IterationTracker, GradientsThatAddUpAreNotWrittenWhileTheScaleStays) {
  TrackedScaler s({.init_scale = 4});
  Net adds_up, other;
  s.watch(adds_up.sgd);
  tracked_backward(s, adds_up.w.sum() + other.w.sum());
  s.step(other.sgd);
  const auto version = adds_up.w.grad()._version();
  s.begin_backward();
  EXPECT_EQ(adds_up.w.grad()._version(), version);
}

TEST(IterationTracker, UnscaledGradientsOfASharedParameterDoNotFollowTheScale) {
  TrackedScaler s = scaler();
  const at::Tensor shared = torch::ones({2}, at::requires_grad()),
                   own = torch::ones({2}, at::requires_grad());
  torch::optim::SGD waits({shared}, 0.5), adds_up({shared, own}, 0.5);
  Net other;
  s.watch(adds_up);
  tracked_backward(s, shared.sum() + own.sum() + other.w.sum());
  s.unscale_(waits);
  s.step(other.sgd);
  s.begin_step(other.sgd);  // a second step ends the iteration of the first
  ASSERT_EQ(s.get_scale(), 8);
  EXPECT_EQ(shared.grad()[0].item<float>(), 1);
  EXPECT_EQ(own.grad()[0].item<float>(), 8);
}

TEST(RestoredGradientStage, ScaledGradientsThatWereSavedAtAnotherScaleFollowItOnce) {
  TrackedScaler s = scaler();
  const at::Tensor w = torch::ones({2}, at::requires_grad());
  torch::optim::SGD sgd({w}, 0.5), shares({w}, 0.5);
  set_grad(w, 16);
  const at::Tensor saved_scale = torch::full({}, 2.F);
  s.restore_gradient_stage(sgd, GradientStage::kScaled, {}, saved_scale);
  EXPECT_EQ(w.grad()[0].item<float>(), 32) << "from the scale 2 to 4";
  s.restore_gradient_stage(shares, GradientStage::kScaled, {}, saved_scale);
  EXPECT_EQ(w.grad()[0].item<float>(), 32) << "another optimizer has them too";
  s.load_state_dict(s.state_dict());
  w.grad().fill_(16);
  s.restore_gradient_stage(sgd, GradientStage::kScaled, {}, saved_scale);
  EXPECT_EQ(w.grad()[0].item<float>(), 32) << "those of a second checkpoint";
}

TEST(RestoredGradientStage, CheckedGradientsThatWereSavedAtAnotherScaleAreDividedByThat) {
  TrackedScaler s = scaler();
  const at::Tensor saved_scale = torch::full({}, 2.F);
  const at::Tensor half = with_grad({1.F}, at::kHalf), plain = with_grad({1.F});
  KernelSgd checked({half}, 1.0);
  torch::optim::SGD unscaled({plain}, 1.0);
  s.restore_gradient_stage(checked, GradientStage::kChecked, {}, saved_scale);
  s.restore_gradient_stage(unscaled, GradientStage::kUnscaled, {}, saved_scale);
  EXPECT_FALSE(s.clip_divisor(unscaled).defined());
  s.step(checked);
  EXPECT_EQ(half.item<float>(), 0.5);
}

}  // namespace
}  // namespace mantissa::iteration_tracker_test
