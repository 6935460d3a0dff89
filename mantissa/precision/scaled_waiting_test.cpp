// A loop may run other backward passes, and write to gradients, between unscaling or clipping them and their
// step. They are divided by the scale exactly once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/host_reads_internal.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/precision/registry.h"
#include "mantissa/precision/scaled.h"

namespace mantissa::scaled_waiting_test {
namespace {

/// A weight of 0, stepped by SGD with rate 1.
struct Weight {
  at::Tensor w = torch::zeros({1}).set_requires_grad(true);
  torch::optim::SGD sgd{{w}, 1.0};
  float value() const { return w.item<float>(); }
};

TEST(WaitingGradients, MayBeClippedAndEditedAfterAnotherBackwardPass) {
  for (const char* mode : {"32-true", "16-mixed"}) {
    const auto precision = make_precision(mode, at::kCPU);
    Weight a, b;
    precision->backward(a.w.sum() * 4);
    precision->unscale_gradients(a.sgd);  // for example to log the norm
    precision->backward(b.w.sum() * 4);
    precision->clip_gradients(a.sgd, 1.0);
    a.w.grad().mul_(0.5);
    precision->unscale_gradients(a.sgd);
    precision->optimizer_step(a.sgd);
    precision->clip_gradients(b.sgd, 1.0);
    precision->optimizer_step(b.sgd);
    EXPECT_NEAR(a.value(), -0.5, 1e-3) << mode;
    EXPECT_NEAR(b.value(), -1, 1e-3) << mode;
  }
}

TEST(WaitingGradients, OfFusedOptimizersKeepTheirClipDivisor) {
  const auto precision = make_precision("16-true", at::kCPU, {.loss_scale = "8"});
  const at::Tensor a = torch::zeros({1}, at::kHalf).set_requires_grad(true);
  const at::Tensor b = torch::zeros({1}, at::kHalf).set_requires_grad(true);
  FusedSGD step_a({a}, SGDOptions(1.0));
  precision->backward(a.sum() * 4);
  precision->clip_gradients(step_a, 1.0);
  precision->backward(b.sum() * 4);
  precision->clip_gradients(step_a, 100.0, GradientClipAlgorithm::kValue);
  precision->optimizer_step(step_a);
  EXPECT_NEAR(a.item<float>(), -1, 1e-3);
}

/// fp16 weights of 0 and gradients of 4 and 0.5 at a scale of 8, of an optimizer that unscales in its step.
struct Fused {
  Fused() { precision->backward((w * at::tensor({4.F, 0.5F}).to(at::kHalf)).sum()); }
  bool steps_to(float first, float second) {
    return !precision->optimizer_step(sgd).skipped() &&
           at::allclose(w.detach(), at::tensor({first, second}).to(at::kHalf), 1e-3);
  }
  std::unique_ptr<Precision> precision = make_precision("16-true", at::kCPU, {.loss_scale = "8"});
  at::Tensor w = torch::zeros({2}, at::kHalf).set_requires_grad(true);
  FusedSGD sgd{{w}, SGDOptions(1.0)};
};

TEST(WaitingGradients, OfFusedOptimizersAreClippedByEitherAlgorithm) {
  Fused by_norm, by_value;
  EXPECT_TRUE(by_norm.precision->clip_gradients(by_norm.sgd, 1.0).defined());
  EXPECT_TRUE(by_norm.steps_to(-0.99228F, -0.12404F));
  EXPECT_FALSE(
      by_value.precision->clip_gradients(by_value.sgd, 1.0, GradientClipAlgorithm::kValue).defined());
  EXPECT_TRUE(by_value.steps_to(-1, -0.5));
}

TEST(WaitingGradients, OfFusedOptimizersResumeWithTheirClipDivisor) {
  Fused saved, resumed;
  saved.precision->clip_gradients(saved.sgd, 1.0);
  const StateDict state = saved.precision->gradient_state(saved.sgd);
  resumed.w.mutable_grad() = saved.w.grad().clone();
  resumed.precision->load_gradient_state(resumed.sgd, StateReader(state));
  EXPECT_TRUE(resumed.steps_to(-0.99228F, -0.12404F));
}

TEST(WaitingGradients, OfFusedOptimizersMayBeClippedAgainAfterTheirStepWhileOthersWait) {
  Fused fused;
  const at::Tensor other = torch::zeros({1}, at::kHalf).set_requires_grad(true);
  FusedSGD waits({other}, SGDOptions(1.0));
  fused.precision->backward(other.sum());
  fused.precision->clip_gradients(waits, 100.0);
  EXPECT_TRUE(fused.steps_to(-4, -0.5));
  fused.sgd.zero_grad();
  fused.precision->backward(fused.w.sum());
  fused.precision->clip_gradients(fused.sgd, 100.0);
  EXPECT_TRUE(fused.steps_to(-5, -1.5));
  EXPECT_FALSE(fused.precision->optimizer_step(waits).skipped());
  EXPECT_EQ(other.item<float>(), -1);
}

TEST(WaitingGradients, OfFusedOptimizersLoseTheirClipDivisorWhenTheyAreMadeAnew) {
  const auto precision = make_precision("16-true", at::kCPU, {.loss_scale = "8"});
  const at::Tensor a = torch::zeros({1}, at::kHalf).set_requires_grad(true);
  FusedSGD optimizer({a}, SGDOptions(1.0));
  precision->backward(a.sum() * 4);
  precision->clip_gradients(optimizer, 1.0);
  optimizer.zero_grad();
  precision->backward(a.sum() * 4);
  precision->optimizer_step(optimizer);
  EXPECT_EQ(a.item<float>(), -4);
}

TEST(WaitingGradients, AreNotAddedToOnceTheyAreUnscaled) {
  const auto precision = make_precision("16-mixed", at::kCPU);
  Weight a;
  precision->backward(a.w.sum());
  precision->unscale_gradients(a.sgd);
  precision->backward(a.w.sum() * 2);
  EXPECT_THROW(precision->unscale_gradients(a.sgd), c10::Error);
  EXPECT_THROW(precision->clip_gradients(a.sgd, 1.0), c10::Error);
  EXPECT_THROW(precision->optimizer_step(a.sgd), c10::Error);
  EXPECT_EQ(a.value(), 0) << "instead of a step that has lost the first gradient";
  a.sgd.zero_grad();
  precision->backward(a.w.sum());
  precision->backward(a.w.sum() * 2);
  precision->unscale_gradients(a.sgd);
  precision->optimizer_step(a.sgd);
  EXPECT_EQ(a.value(), -3);
}

/// Every stage has a name in a state; a run that is resumed must refuse the sum, too.
TEST(WaitingGradients, AreStillRefusedAfterTheirStateWasLoaded) {
  const auto precision = make_precision("16-mixed", at::kCPU);
  Weight a;
  precision->backward(a.w.sum());
  precision->unscale_gradients(a.sgd);
  precision->backward(a.w.sum() * 2);
  const StateDict state = precision->gradient_state(a.sgd);
  const auto resumed = make_precision("16-mixed", at::kCPU);
  resumed->load_gradient_state(a.sgd, StateReader(state));
  EXPECT_THROW(resumed->optimizer_step(a.sgd), c10::Error);
  EXPECT_EQ(a.value(), 0);
}

TEST(WaitingGradients, OfAnUnknownStageAreRefused) {
  const auto precision = make_precision("16-mixed", at::kCPU);
  Weight a;
  const StateDict state{{"stage", "halved"}};
  EXPECT_THAT(
      error_of([&] { precision->load_gradient_state(a.sgd, StateReader(state)); }),
      testing::HasSubstr("stage: is 'halved'; scaled, checked, unscaled, mixed or stepped was expected"));
}

TEST(WaitingGradients, OfMasterWeightsAreNotAddedToOnceTheyAreUnscaled) {
  const auto precision = make_precision("16-true", at::kCPU, {.loss_scale = "8", .master_weights = true});
  const at::Tensor half = torch::zeros({1}, at::kHalf).set_requires_grad(true);
  torch::optim::SGD sgd({half}, 1.0);
  precision->setup_optimizer(sgd);
  precision->backward(half.sum());
  precision->unscale_gradients(sgd);
  precision->backward(half.sum());
  EXPECT_THROW(precision->optimizer_step(sgd), c10::Error);
}

/// A scale that halves at an overflow and doubles after each clean step.
std::unique_ptr<Precision> with_moving_scale() {
  return make_precision("16-mixed", at::kCPU, {.init_scale = 1024, .growth_interval = 1});
}

TEST(AccumulatingGradients, FollowTheScaleThatAnotherOptimizersStepsMove) {
  const auto precision = with_moving_scale();
  Weight every, fourth;
  precision->setup_optimizer(every.sgd);
  precision->setup_optimizer(fourth.sgd);
  for (int i = 0; i < 4; ++i) {
    every.sgd.zero_grad();
    precision->backward(every.w.sum() + fourth.w.sum());
    precision->optimizer_step(every.sgd);
  }
  precision->optimizer_step(fourth.sgd);
  EXPECT_EQ(every.value(), -4);
  EXPECT_EQ(fourth.value(), -4) << "the scale has doubled three times meanwhile";
}

TEST(AccumulatingGradients, OfMasterWeightsFollowTheScale) {
  const auto precision = make_precision("O2", at::kCPU, {.init_scale = 1024, .growth_interval = 1});
  const auto without_bias = torch::nn::LinearOptions(1, 1).bias(false);
  torch::nn::Linear every(without_bias), fourth(without_bias);
  for (torch::nn::Linear net : {every, fourth}) {
    net->weight.data().zero_();
    precision->convert_module(*net);
  }
  torch::optim::SGD step_every(every->parameters(), 1.0), step_fourth(fourth->parameters(), 1.0);
  precision->setup_optimizer(step_every);
  precision->setup_optimizer(step_fourth);
  for (int i = 0; i < 4; ++i) {
    step_every.zero_grad();
    precision->backward((every->weight + fourth->weight).to(at::kFloat).sum());
    precision->optimizer_step(step_every);
  }
  precision->optimizer_step(step_fourth);
  EXPECT_EQ(every->weight.item<float>(), -4);
  EXPECT_EQ(fourth->weight.item<float>(), -4);
}

// The second step of `a` ends the iteration while `b` waits, so the scale moves after the backward pass of `a`.
TEST(AccumulatingGradients, OfAnOptimizerThatStepsTwiceWhileAnotherWaits) {
  const auto precision = with_moving_scale();
  Weight a, b;
  precision->backward(a.w.sum() + b.w.sum());
  precision->unscale_gradients(b.sgd);
  precision->optimizer_step(a.sgd);
  a.sgd.zero_grad();
  precision->backward(a.w.sum());
  precision->optimizer_step(a.sgd);
  EXPECT_EQ(a.value(), -2);
  precision->optimizer_step(b.sgd);
  EXPECT_EQ(b.value(), -1);
}

TEST(AccumulatingGradients, OfAFusedOptimizerThatStepsTwiceWhileAnotherWaits) {
  const auto precision = with_moving_scale();
  const at::Tensor twice = torch::zeros({1}).set_requires_grad(true);
  FusedSGD optimizer({twice}, SGDOptions(1.0));
  Weight once;
  precision->setup_optimizer(optimizer);
  precision->setup_optimizer(once.sgd);
  precision->backward(twice.sum() + once.w.sum());
  precision->unscale_gradients(once.sgd);
  for (int i = 1; i <= 2; ++i) {
    precision->optimizer_step(optimizer);
    EXPECT_EQ(twice.item<float>(), -i);
    optimizer.zero_grad();
    precision->backward(twice.sum());
  }
  precision->optimizer_step(once.sgd);
  EXPECT_EQ(once.value(), -1);
}

TEST(AccumulatingGradients, ThatAStepHasUsedStayAsTheyAre) {
  const auto precision = with_moving_scale();
  Weight a;
  precision->setup_optimizer(a.sgd);
  precision->backward(a.w.sum());
  precision->optimizer_step(a.sgd);
  precision->teardown();
  EXPECT_EQ(a.w.grad().item<float>(), 1);
}

// What zero_grad(false) leaves is no accumulated gradient.
TEST(AccumulatingGradients, ThatWereClearedInPlaceAreNotVisited) {
  const auto precision = with_moving_scale();
  Weight a, b;
  for (Weight* const each : {&a, &b}) precision->setup_optimizer(each->sgd);
  precision->backward(a.w.sum() + b.w.sum());
  for (Weight* const each : {&a, &b}) precision->optimizer_step(each->sgd);
  for (Weight* const each : {&a, &b}) each->sgd.zero_grad(/*set_to_none=*/false);
  const auto version = a.w.grad()._version();
  precision->teardown();  // the scale moves
  EXPECT_EQ(a.w.grad()._version(), version);
  EXPECT_EQ(b.w.grad()._version(), version);
}

TEST(AccumulatingGradients, AreNotWrittenWhenTheScaleStays) {
  for (const PrecisionOptions& options :
       {PrecisionOptions{.init_scale = 1024}, PrecisionOptions{.loss_scale = "8"}}) {
    const auto precision = make_precision("16-mixed", at::kCPU, options);
    Weight every, later;
    precision->setup_optimizer(every.sgd);
    precision->setup_optimizer(later.sgd);
    precision->backward(every.w.sum() + later.w.sum());
    precision->optimizer_step(every.sgd);
    const auto version = later.w.grad()._version();
    precision->teardown();
    EXPECT_EQ(later.w.grad()._version(), version);
  }
}

TEST(AccumulatingGradients, FollowTheScaleThatFusedStepsMoveWithoutAHostRead) {
  const auto precision = with_moving_scale();
  const at::Tensor w = torch::zeros({1}).set_requires_grad(true);
  FusedSGD every({w}, SGDOptions(1.0));
  Weight later;
  precision->setup_optimizer(every);
  precision->setup_optimizer(later.sgd);
  precision->backward(w.sum() + later.w.sum());
  precision->optimizer_step(every);
  {
    const HostReads reads;
    precision->teardown();  // the scale moves
    EXPECT_EQ(reads.count(), 0);
  }
  EXPECT_EQ(later.w.grad().item<float>(), 2048);
}

TEST(AccumulatingGradients, ResumeWithTheNextScale) {
  const auto precision = with_moving_scale(), resumed = with_moving_scale();
  Weight every, later;
  precision->setup_optimizer(every.sgd);
  precision->setup_optimizer(later.sgd);
  precision->backward(every.w.sum() + later.w.sum());
  precision->optimizer_step(every.sgd);
  const StateDict state = precision->state_dict(), waiting = precision->gradient_state(later.sgd);

  Weight copy;
  copy.w.mutable_grad() = later.w.grad().clone();
  resumed->setup_optimizer(copy.sgd);
  resumed->load_state_dict(StateReader(state));
  resumed->load_gradient_state(copy.sgd, StateReader(waiting));
  EXPECT_EQ(copy.w.grad().item<float>(), 2048);
  resumed->optimizer_step(copy.sgd);
  EXPECT_EQ(copy.value(), -1);
}

TEST(AccumulatingGradients, ThatWereCheckedResumeWithTheNextScale) {
  const PrecisionOptions moving{.loss_scale = "dynamic", .init_scale = 1024, .growth_interval = 1};
  const auto precision = make_precision("16-true", at::kCPU, moving),
             resumed = make_precision("16-true", at::kCPU, moving);
  const auto weight = [] { return torch::zeros({1}, at::kHalf).set_requires_grad(true); };
  const at::Tensor every = weight(), later = weight(), copy = weight();
  FusedSGD step_every({every}, SGDOptions(1.0)), step_later({later}, SGDOptions(1.0)),
      step_copy({copy}, SGDOptions(1.0));
  precision->backward(every.to(at::kFloat).sum() + later.to(at::kFloat).sum());
  precision->clip_gradients(step_later, 100.0);
  precision->optimizer_step(step_every);
  const StateDict state = precision->state_dict(), waiting = precision->gradient_state(step_later);

  copy.mutable_grad() = later.grad().clone();
  resumed->load_state_dict(StateReader(state));
  resumed->load_gradient_state(step_copy, StateReader(waiting));
  resumed->optimizer_step(step_copy);
  EXPECT_EQ(copy.item<float>(), -1);
  precision->optimizer_step(step_later);
  EXPECT_EQ(later.item<float>(), -1);
}

TEST(AccumulatingGradients, InTheLosssOwnUnitsAreBroughtToTheScale) {
  const auto unscaled = make_precision("32-true", at::kCPU), scaled = make_precision("16-mixed", at::kCPU),
             disabled = make_precision("16-mixed", at::kCPU, {.loss_scale = "none"});
  Weight a;
  scaled->setup_optimizer(a.sgd);
  unscaled->backward(a.w.sum() * 4);
  const StateDict state = unscaled->gradient_state(a.sgd);
  for (const auto* const mode : {&unscaled, &scaled, &disabled})
    EXPECT_TRUE((*mode)->can_take_gradients(StateReader(state))) << (*mode)->name();
  scaled->load_gradient_state(a.sgd, StateReader(state));
  EXPECT_EQ(a.w.grad().item<float>(), 4 * 65536);
  scaled->backward(a.w.sum());
  scaled->optimizer_step(a.sgd);
  EXPECT_EQ(a.value(), -5);
}

TEST(AccumulatingGradients, OfALossScaleAreRefusedWithoutOne) {
  const auto unscaled = make_precision("32-true", at::kCPU), scaled = make_precision("16-mixed", at::kCPU),
             disabled = make_precision("16-mixed", at::kCPU, {.loss_scale = "none"});
  Weight a;
  scaled->backward(a.w.sum());
  for (int unscale = 0; unscale < 2; ++unscale) {
    if (unscale) scaled->unscale_gradients(a.sgd);
    const StateDict state = scaled->gradient_state(a.sgd);
    EXPECT_TRUE(scaled->can_take_gradients(StateReader(state))) << unscale;
    EXPECT_FALSE(unscaled->can_take_gradients(StateReader(state))) << unscale;
    EXPECT_FALSE(disabled->can_take_gradients(StateReader(state))) << unscale;
  }
}

TEST(AccumulatingGradients, OfASharedParameterResumeOnce) {
  const auto precision = with_moving_scale(), resumed = with_moving_scale();
  Weight every, shared;
  torch::optim::SGD second({shared.w}, 1.0);
  for (torch::optim::Optimizer* const optimizer : {&every.sgd, &shared.sgd, &second})
    precision->setup_optimizer(*optimizer);
  precision->backward(every.w.sum() + shared.w.sum());
  precision->optimizer_step(every.sgd);
  const StateDict state = precision->state_dict(), waiting = precision->gradient_state(shared.sgd);
  resumed->load_state_dict(StateReader(state));
  resumed->load_gradient_state(shared.sgd, StateReader(waiting));
  resumed->load_gradient_state(second, StateReader(waiting));
  EXPECT_EQ(shared.w.grad().item<float>(), 2048);
}

TEST(AccumulatingGradients, OfAnOptimizerThatIsGoneAreThoseOfTheOneThatStepped) {
  const auto precision = with_moving_scale();
  Weight a;
  auto first = std::make_unique<torch::optim::SGD>(std::vector{a.w}, 1.0);
  precision->setup_optimizer(*first);
  precision->backward(a.w.sum());
  precision->optimizer_step(*first);
  precision->setup_optimizer(a.sgd);
  first.reset();
  a.w.mutable_grad() = at::Tensor();
  precision->backward(a.w.sum());
  precision->optimizer_step(a.sgd);
  precision->teardown();  // the scale moves
  EXPECT_EQ(a.w.grad().item<float>(), 1) << "used, and in the loss's own units";
}

TEST(AccumulatingGradients, OfAGroupThatIsAddedLaterFollowTheScale) {
  const auto precision = with_moving_scale();
  Weight every, fourth;
  const at::Tensor added = torch::zeros({1}).set_requires_grad(true);
  precision->setup_optimizer(every.sgd);
  precision->setup_optimizer(fourth.sgd);
  fourth.sgd.add_param_group(torch::optim::OptimizerParamGroup({added}));
  precision->setup_optimizer(fourth.sgd);
  for (int i = 0; i < 3; ++i) {
    every.sgd.zero_grad();
    precision->backward(every.w.sum() + fourth.w.sum() + added.sum());
    precision->optimizer_step(every.sgd);
  }
  precision->optimizer_step(fourth.sgd);
  EXPECT_EQ(fourth.value(), -3);
  EXPECT_EQ(added.item<float>(), -3);
}

}  // namespace
}  // namespace mantissa::scaled_waiting_test
