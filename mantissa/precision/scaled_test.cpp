// Loops that leave steps out, share backward passes and come back late: nobody's gradients are divided twice or not at all.
#include "mantissa/precision/scaled.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/precision/mixed.h"

namespace mantissa {
namespace {

/// A weight and a bias that start at 1, stepped by SGD with rate 1; gradients are what backward() is told.
struct Part {
  Part() {
    net->weight.data().fill_(1);
    net->bias.data().fill_(1);
  }
  at::Tensor loss(float weight_gradient, float bias_gradient) {
    return (net->weight * weight_gradient).sum() + (net->bias * bias_gradient).sum();
  }
  float weight() { return net->weight.item<float>(); }
  float bias() { return net->bias.item<float>(); }
  torch::nn::Linear net{1, 1};
  torch::optim::SGD optimizer{net->parameters(), 1.0};
};

std::unique_ptr<MixedPrecision> scaled_by_1024() {
  return std::make_unique<MixedPrecision>(
      at::kHalf, at::kCPU, std::make_unique<GradScaler>(at::kCPU, GradScalerOptions{.init_scale = 1024}));
}

TEST(ScaledPrecision, OptimizersMayAllLookBeforeAnyOfThemSteps) {
  const auto mode = scaled_by_1024();
  std::vector<Part> parts(4);
  for (Part& part : parts) {
    mode->backward(part.loss(0.25, 0.5));
    mode->clip_gradients(part.optimizer, 100.0);
  }
  for (Part& part : parts) EXPECT_FALSE(mode->optimizer_step(part.optimizer).skipped);
  for (Part& part : parts) EXPECT_NEAR(part.weight(), 0.75, 1e-6);
}

TEST(ScaledPrecision, AnOptimizerThatIsLeftOutDoesNotStopTheOthers) {
  const auto mode = scaled_by_1024();
  Part a, b;
  for (int iteration = 0; iteration < 3; ++iteration) {
    a.optimizer.zero_grad();
    b.optimizer.zero_grad();
    mode->backward(a.loss(0.25, 0) + b.loss(0.25, 0));
    mode->unscale_gradients(a.optimizer);
    mode->unscale_gradients(b.optimizer);
    mode->optimizer_step(a.optimizer);  // b is not stepped
  }
  EXPECT_EQ(a.weight(), 0.25);
  EXPECT_EQ(b.weight(), 1);
  b.optimizer.zero_grad();
  mode->backward(b.loss(0.5, 0));
  EXPECT_FALSE(mode->optimizer_step(b.optimizer).skipped);
  EXPECT_EQ(b.weight(), 0.5);
}

TEST(ScaledPrecision, GradientsThatWereDroppedAndMadeAnewInPartAreUnscaled) {
  for (const bool set_to_none : {false, true}) {
    const auto mode = scaled_by_1024();
    Part part;
    mode->backward(part.loss(0.25, 0.25));
    mode->unscale_gradients(part.optimizer);
    part.optimizer.zero_grad(set_to_none);            // dropped
    mode->backward((part.net->bias * 0.125F).sum());  // the first parameter has no part in it
    EXPECT_FALSE(mode->optimizer_step(part.optimizer).skipped);
    EXPECT_EQ(part.weight(), 1);
    EXPECT_EQ(part.bias(), 0.875);
  }
}

}  // namespace
}  // namespace mantissa
