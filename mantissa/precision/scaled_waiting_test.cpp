// A loop may run other backward passes, and write to gradients, between unscaling or clipping them and their
// step. They are divided by the scale exactly once.
#include <gtest/gtest.h>

#include <torch/torch.h>

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

}  // namespace
}  // namespace mantissa::scaled_waiting_test
