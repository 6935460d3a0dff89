// Loops that leave out steps, share backward passes and return late to an optimizer: no gradients may be
// divided twice, or not at all.
#include "mantissa/precision/scaled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/step_scaling.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/mixed.h"
#include "mantissa/precision/test_support_internal.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa::scaled_test {
namespace {

/// A weight and a bias that start at 1, stepped by SGD with rate 1; the gradients are the arguments of
/// loss().
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

/// An optimizer whose step changes nothing, as a fused optimizer's does after an overflow.
struct SelfUnscaling : torch::optim::SGD, StepSupportsAmpScaling {
  using SGD::SGD;
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
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
  for (Part& part : parts) EXPECT_FALSE(mode->optimizer_step(part.optimizer).skipped());
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
  EXPECT_FALSE(mode->optimizer_step(b.optimizer).skipped());
  EXPECT_EQ(b.weight(), 0.5);
}

TEST(ScaledPrecision, GradientsThatWereDroppedAndMadeAnewInPartAreUnscaled) {
  for (const bool set_to_none : {false, true}) {
    const auto mode = scaled_by_1024();
    Part part;
    mode->backward(part.loss(0.25, 0.25));
    mode->unscale_gradients(part.optimizer);
    part.optimizer.zero_grad(set_to_none);            // dropped
    mode->backward((part.net->bias * 0.125F).sum());  // the first parameter gets no gradient
    EXPECT_FALSE(mode->optimizer_step(part.optimizer).skipped());
    EXPECT_EQ(part.weight(), 1);
    EXPECT_EQ(part.bias(), 0.875);
  }
}

TEST(ScaledPrecision, AnOptimizerThatIsDestroyedWhileItWaitsIsForgotten) {
  const auto mode = scaled_by_1024();
  Part part;
  for (int i = 0; i < 3; ++i) {
    std::optional<torch::optim::SGD> short_lived(std::in_place, part.net->parameters(), 1.0);
    part.optimizer.zero_grad();
    mode->backward(part.loss(0.25, 0.25));
    mode->unscale_gradients(*short_lived);
    // The next optimizer has other parameters and probably the same address.
    short_lived.emplace(std::vector<at::Tensor>{part.net->bias}, 1.0);
    part.net->bias.mutable_grad() = at::Tensor();
    mode->backward((part.net->bias * 0.125F).sum());
    EXPECT_FALSE(mode->optimizer_step(*short_lived).skipped());
  }
  EXPECT_EQ(part.bias(), 0.625);
}

TEST(ScaledPrecision, ASecondStepWithTheSameGradientsIsRefused) {
  const auto mode = scaled_by_1024();
  Part part;
  mode->backward(part.loss(0.25, 0.25));
  EXPECT_FALSE(mode->optimizer_step(part.optimizer).skipped());
  // Reading the gradients after the step does not divide them again.
  mode->unscale_gradients(part.optimizer);
  EXPECT_NEAR(mode->clip_gradients(part.optimizer, 100.0).item<double>(), std::sqrt(0.125), 1e-6);
  EXPECT_EQ(part.net->weight.grad().item<float>(), 0.25);
  Part other;
  mode->backward(other.loss(1, 1));
  EXPECT_FALSE(mode->optimizer_step(other.optimizer).skipped());
  EXPECT_EQ(part.weight(), 0.75);
}

TEST(ScaledPrecision, StepsOfUsedUpGradientsThrowUntilABackward) {
  const auto mode = scaled_by_1024();
  Part part;
  mode->backward(part.loss(0.25, 0.25));
  mode->optimizer_step(part.optimizer);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(mode->optimizer_step(part.optimizer), c10::Error);
  EXPECT_EQ(part.weight(), 0.75);
  part.optimizer.zero_grad();
  mode->backward(part.loss(0.25, 0.25));
  EXPECT_FALSE(mode->optimizer_step(part.optimizer).skipped());
  EXPECT_EQ(part.weight(), 0.5);
}

TEST(ScaledPrecision, AStepThatThrowsDoesNotMoveTheScale) {
  struct Throws : SelfUnscaling {
    using SelfUnscaling::SelfUnscaling;
    at::Tensor step(LossClosure /*closure*/) override { throw std::runtime_error("step"); }
  };
  const auto mode = scaled_by_1024();
  Part overflowed, clean;
  Throws throws(overflowed.net->parameters(), 1.0);
  mode->backward(overflowed.loss(HUGE_VALF, 0));
  EXPECT_THROW(mode->optimizer_step(throws), std::runtime_error);
  mode->backward(clean.loss(0.25, 0));
  EXPECT_FALSE(mode->optimizer_step(clean.optimizer).skipped());
  EXPECT_EQ(next_scale(*mode), 1024);
}

TEST(ScaledPrecision, AFusedStepThatThrewMayBeRepeated) {
  struct ThrowsOnce : SelfUnscaling {
    using SelfUnscaling::SelfUnscaling;
    at::Tensor step(LossClosure /*closure*/) override {
      if (++calls == 1) throw std::runtime_error("step");
      return {};
    }
    int calls = 0;
  };
  const auto mode = scaled_by_1024();
  Part part;
  ThrowsOnce optimizer(part.net->parameters(), 1.0);
  mode->backward(part.loss(0.25, 0));
  EXPECT_THROW(mode->optimizer_step(optimizer), std::runtime_error);
  EXPECT_FALSE(mode->optimizer_step(optimizer).skipped());
  EXPECT_EQ(optimizer.calls, 2);
}

TEST(ScaledPrecision, ATiedWeightHasItsFirstName) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_parameter("first", torch::ones({1}));
      register_parameter("second", first);
    }
    at::Tensor first;
  } net;
  const auto mode = scaled_by_1024();
  mode->convert_module(net);
  torch::optim::SGD optimizer({net.first}, 1.0);
  mode->backward((net.first * HUGE_VALF).sum());
  EXPECT_EQ(mode->optimizer_step(optimizer).first_nonfinite_parameter(), "first");
}

TEST(ScaledPrecision, WarnsAboutManySkipsInARowWithTheLayersName) {
  const auto train = [](auto&& optimizer, Part& part) {
    const auto mode = scaled_by_1024();
    mode->convert_module(*part.net);
    const Warnings warnings;
    for (int i = 0; i < 10; ++i) {
      optimizer.zero_grad();
      mode->backward(part.loss(1, HUGE_VALF));
      EXPECT_TRUE(mode->optimizer_step(optimizer).skipped());
    }
    ASSERT_EQ(warnings.texts.size(), 1U);
    EXPECT_NE(warnings.texts[0].find("10 overflows in a row"), std::string::npos) << warnings.texts[0];
    EXPECT_NE(warnings.texts[0].find("bias"), std::string::npos) << warnings.texts[0];
  };
  Part plain, fused;
  train(plain.optimizer, plain);
  train(SelfUnscaling(fused.net->parameters(), 1.0), fused);
}

TEST(ScaledPrecision, AParametersNameDiesWithIt) {
  const auto mode = scaled_by_1024();
  for (int i = 0; i < 20; ++i) {
    auto named = std::make_unique<Part>();
    mode->convert_module(*named->net);
    named.reset();
    Part other;  // probably at the address of the named one
    mode->backward(other.loss(HUGE_VALF, 0));
    EXPECT_EQ(mode->optimizer_step(other.optimizer).first_nonfinite_parameter(), "group 0, parameter 0");
  }
}

TEST(ScaledPrecision, WarnsOnceAboutDividingFp16GradientsInFp16) {
  const auto mode_of = [] {
    return TrueDtype(at::kHalf, {.scaler = std::make_unique<GradScaler>(
                                     at::kCPU, GradScalerOptions{.allow_fp16_gradients = true})});
  };
  const auto step_twice = [](TrueDtype& mode, Part& part, torch::optim::Optimizer& optimizer) {
    mode.convert_module(*part.net);
    const Warnings warnings;
    for (int i = 0; i < 2; ++i) {
      mode.backward(part.loss(0x1p-10F, 0x1p-10F));
      mode.optimizer_step(optimizer);
    }
    return warnings.texts;
  };
  Part plain, fused;
  TrueDtype divides_in_fp16 = mode_of(), leaves_it = mode_of();
  const auto texts = step_twice(divides_in_fp16, plain, plain.optimizer);
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_NE(texts[0].find("FusedAdamW"), std::string::npos) << texts[0];
  SelfUnscaling self_unscaling(fused.net->parameters(), 1.0);
  EXPECT_TRUE(step_twice(leaves_it, fused, self_unscaling).empty());
}

TEST(ScaledPrecision, BackwardShowsTheLossWhosePassComesNext) {
  const auto scaled = scaled_by_1024();
  MixedPrecision plain(at::kBFloat16, at::kCPU);
  for (auto* mode : {static_cast<Precision*>(scaled.get()), static_cast<Precision*>(&plain)}) {
    Part part;
    std::vector<double> seen;
    mode->backward(part.loss(0.25, 0.5), [&](const at::Tensor& loss) {
      seen.push_back(loss.item<double>());
      EXPECT_FALSE(part.net->weight.grad().defined()) << "before the pass";
    });
    EXPECT_EQ(seen, std::vector<double>{mode == &plain ? 0.75 : 0.75 * 1024});
  }
}

TEST(ScaledPrecision, GradientsThatAHookEditsBeforeAPassAreStillUnscaled) {
  const auto mode = scaled_by_1024();
  Part waits, other;
  mode->backward(waits.loss(0.5, 1));
  mode->unscale_gradients(waits.optimizer);
  mode->backward(other.loss(0.25, 0.5), [&](const at::Tensor&) { waits.net->weight.grad().mul_(0.5); });
  EXPECT_FALSE(mode->optimizer_step(waits.optimizer).skipped());
  EXPECT_EQ(waits.weight(), 0.75);
}

TEST(ScaledPrecision, AnOptimizerWhoseCheckedGradientsWereClearedHoldsNothingUp) {
  for (const bool unscales_itself : {false, true}) {
    TrueDtype mode(at::kHalf,
                   {.scaler = std::make_unique<GradScaler>(
                        at::kCPU, GradScalerOptions{
                                      .init_scale = 4, .growth_interval = 1, .allow_fp16_gradients = true})});
    Part steps, cleared;
    for (Part* part : {&steps, &cleared}) mode.convert_module(*part->net);
    SelfUnscaling fused(cleared.net->parameters(), 1.0);
    torch::optim::Optimizer& optimizer =
        unscales_itself ? static_cast<torch::optim::Optimizer&>(fused) : cleared.optimizer;
    mode.backward(steps.loss(0.25, 0.5) + cleared.loss(0.25, 0.5));
    mode.clip_gradients(optimizer, 100.0);
    optimizer.zero_grad();
    EXPECT_EQ(mode.optimizer_step(optimizer).cause(), SkipCause::kNoGradients);
    mode.optimizer_step(steps.optimizer);
    steps.optimizer.zero_grad();
    mode.backward(steps.loss(0.25, 0.5));
    EXPECT_EQ(mode.loss_scale().item<float>(), 8) << "of a new iteration";
  }
}

TEST(ScaledPrecision, SaysWhetherGradientsAreScaled) {
  const auto mode = scaled_by_1024();
  Part part;
  mode->backward(part.loss(0.25, 0.5));
  EXPECT_TRUE(mode->are_gradients_scaled(part.optimizer));
  mode->unscale_gradients(part.optimizer);
  EXPECT_FALSE(mode->are_gradients_scaled(part.optimizer));
  mode->optimizer_step(part.optimizer);
  EXPECT_FALSE(mode->are_gradients_scaled(part.optimizer));

  Part fused;
  TrueDtype half(at::kHalf,
                 {.scaler = std::make_unique<GradScaler>(
                      at::kCPU, GradScalerOptions{.init_scale = 1024, .allow_fp16_gradients = true})});
  half.convert_module(*fused.net);
  SelfUnscaling divides(fused.net->parameters(), 1.0);
  half.backward(fused.loss(0.25, 0.5));
  half.clip_gradients(divides, 0.125);
  EXPECT_TRUE(half.are_gradients_scaled(divides)) << "clipped, but divided in the step";
  EXPECT_FALSE(MixedPrecision(at::kBFloat16, at::kCPU).are_gradients_scaled(part.optimizer));
}

TEST(ScaledPrecision, ClipsByValueUnlessAnOverflowDropsTheStep) {
  for (const float weight_gradient : {4.F, HUGE_VALF}) {
    const auto mode = scaled_by_1024();
    Part part;
    mode->backward(part.loss(weight_gradient, 2));
    EXPECT_FALSE(mode->clip_gradients(part.optimizer, 0.5, GradientClipAlgorithm::kValue).defined());
    const bool overflows = weight_gradient == HUGE_VALF;
    EXPECT_EQ(part.net->weight.grad().item<float>(), overflows ? HUGE_VALF : 0.5F);
    EXPECT_EQ(mode->optimizer_step(part.optimizer).skipped(), overflows);
    EXPECT_EQ(part.bias(), overflows ? 1 : 0.5);
  }
}

TEST(ScaledPrecision, AStateWithoutAScaleStartsTheScaleAnew) {
  const auto mode = scaled_by_1024();
  Part part;
  for (int step = 0; step < 2; ++step) {
    part.optimizer.zero_grad();
    mode->backward(part.loss(step == 0 ? HUGE_VALF : 1, 0));
    mode->optimizer_step(part.optimizer);
  }
  EXPECT_EQ(next_scale(*mode), 512);
  const StateDict none;
  EXPECT_THAT(mode->load_state_dict(StateReader(none)),
              testing::ElementsAre("it has no loss scale, so the scale starts at its initial value"));
  EXPECT_EQ(next_scale(*mode), 1024);
  EXPECT_EQ(mode->scaler()->get_growth_tracker(), 0);
}

TEST(ScaledPrecision, SaysWhetherTheScaleIsFixed) {
  const auto is_fixed = [](const GradScalerOptions& options) {
    return MixedPrecision(at::kHalf, at::kCPU, std::make_unique<GradScaler>(at::kCPU, options))
        .is_loss_scale_fixed();
  };
  EXPECT_FALSE(is_fixed({}));
  EXPECT_TRUE(is_fixed({.init_scale = 8, .min_scale = 8, .max_scale = 8}));
  EXPECT_FALSE(is_fixed({.init_scale = 8, .enabled = false, .min_scale = 8, .max_scale = 8}));
  EXPECT_FALSE(MixedPrecision(at::kBFloat16, at::kCPU).is_loss_scale_fixed());
}

TEST(ScaledPrecision, ALineSearchIsRefusedEvenWithoutGradients) {
  const auto mode = scaled_by_1024();
  Part part;
  torch::optim::LBFGS lbfgs(part.net->parameters(), 0.1);
  EXPECT_THROW(mode->optimizer_step(lbfgs), c10::TypeError);
}

}  // namespace
}  // namespace mantissa::scaled_test
