#include "mantissa/precision/mixed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/precision/test_support_internal.h"

namespace mantissa::mixed_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Loop {
  explicit Loop(double init_scale = 256)
      : precision(at::kHalf, at::kCPU,
                  std::make_unique<GradScaler>(at::kCPU, GradScalerOptions{.init_scale = init_scale})) {
    net->weight.data().fill_(1);
    net->bias.data().fill_(0);
  }
  /// d loss / d weight is `x` in every element.
  at::Tensor forward_and_backward(float x) {
    optimizer.zero_grad();
    const at::Tensor loss = (net->weight * x).sum() + (net->bias * x).sum();
    precision.backward(loss);
    return loss;
  }
  MixedPrecision precision;
  torch::nn::Linear net{2, 2};
  torch::optim::SGD optimizer{net->parameters(), 1.0};
};

TEST(MixedPrecision, ERR06_ERR07_RefusesOtherDtypesAndAScalerWithBf16) {
  EXPECT_THROW(MixedPrecision(at::kFloat, at::kCPU), c10::ValueError);
  EXPECT_THROW(MixedPrecision(at::kBFloat16, at::kCPU, std::make_unique<GradScaler>(at::kCPU)),
               c10::ValueError);
}

TEST(MixedPrecision, ScalesTheLossOfFp16UnlessItsScalerIsDisabled) {
  const auto scales = [](at::ScalarType dtype, std::unique_ptr<GradScaler> scaler) {
    return MixedPrecision(dtype, at::kCPU, std::move(scaler)).traits().scales_loss;
  };
  EXPECT_TRUE(scales(at::kHalf, nullptr));
  EXPECT_TRUE(scales(at::kHalf, std::make_unique<GradScaler>(at::kCPU)));
  EXPECT_FALSE(
      scales(at::kHalf, std::make_unique<GradScaler>(at::kCPU, GradScalerOptions{.enabled = false})));
  EXPECT_FALSE(scales(at::kBFloat16, nullptr));
  EXPECT_EQ(MixedPrecision(at::kHalf, at::kCPU).name(), "16-mixed");
  EXPECT_EQ(MixedPrecision(at::kBFloat16, at::kCPU).name(), "bf16-mixed");
}

TEST(MixedPrecision, ERR09_RefusesLbfgsOnlyWithAScaler) {
  torch::nn::Linear net(2, 2);
  torch::optim::LBFGS lbfgs(net->parameters(), 0.1);
  const auto closure = [&] {
    lbfgs.zero_grad();
    at::Tensor loss = net(torch::ones({1, 2})).sum();
    loss.backward();
    return loss;
  };
  MixedPrecision half(at::kHalf, at::kCPU), bf16(at::kBFloat16, at::kCPU);
  EXPECT_THROW(half.setup_optimizer(lbfgs), c10::TypeError);
  EXPECT_THROW(half.optimizer_step(lbfgs, closure), c10::TypeError);
  bf16.setup_optimizer(lbfgs);
  EXPECT_FALSE(bf16.optimizer_step(lbfgs, closure).skipped());
}

TEST(Precision, AStepOfLbfgsGoesThroughTheModesOwnStep) {
  struct Counting : Precision {
    Counting() : Precision("counting") {}
    int steps = 0;

   protected:
    StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure) override {
      ++steps;
      return Precision::step(optimizer, closure);
    }
  } mode;
  const at::Tensor x = torch::ones(1, torch::requires_grad());
  torch::optim::LBFGS lbfgs(std::vector{x}, torch::optim::LBFGSOptions(1));
  mode.setup_optimizer(lbfgs);
  int evaluations = 0;
  const auto closure = [&] {
    ++evaluations;
    lbfgs.zero_grad();
    const at::Tensor loss = (x - 3).square().sum();
    mode.backward(loss);
    return loss;
  };
  EXPECT_FALSE(mode.optimizer_step(lbfgs, closure).skipped());
  EXPECT_EQ(mode.steps, 1);
  EXPECT_GT(evaluations, 1);
  EXPECT_NEAR(x.item<float>(), 3, 1e-3);
  EXPECT_THROW(mode.optimizer_step(lbfgs, [] { return at::Tensor(); }), c10::ValueError);
  EXPECT_FALSE(mode.optimizer_step(lbfgs, closure).skipped());
  torch::optim::SGD sgd({x}, 0.5);
  mode.optimizer_step(sgd, [&] { return x.mutable_grad() = at::ones({1}); });
  EXPECT_EQ(mode.steps, 4);
  EXPECT_NEAR(x.item<float>(), 2.5, 1e-3);
}

TEST(MixedPrecision, AnOverflowSkipsTheStepSaysWhyAndHalvesTheScale) {
  Loop loop;
  loop.forward_and_backward(kInf);
  const StepResult result = loop.precision.optimizer_step(loop.optimizer);
  EXPECT_TRUE(result.skipped());
  EXPECT_EQ(result.cause(), SkipCause::kNonFiniteGradients);
  EXPECT_TRUE(loop.net->weight.detach().equal(torch::ones({2, 2})));
  EXPECT_EQ(next_scale(loop.precision), 128);
  loop.forward_and_backward(0.25);
  EXPECT_FALSE(loop.precision.optimizer_step(loop.optimizer).skipped());
  EXPECT_TRUE(loop.net->weight.detach().equal(torch::full({2, 2}, 0.75)));
}

TEST(MixedPrecision, ASkippedStepNamesItsFirstNonFiniteParameterAlsoAfterClipping) {
  for (const auto algorithm : {GradientClipAlgorithm::kNorm, GradientClipAlgorithm::kValue}) {
    Loop loop;
    const auto overflow_in_bias = [&] {
      loop.optimizer.zero_grad();
      loop.precision.backward(loop.net->weight.sum() + (loop.net->bias * std::nanf("")).sum());
      loop.precision.clip_gradients(loop.optimizer, 1.0, algorithm);
      return loop.precision.optimizer_step(loop.optimizer).first_nonfinite_parameter();
    };
    EXPECT_EQ(overflow_in_bias(), "group 0, parameter 1");
    loop.precision.convert_module(*loop.net);
    EXPECT_EQ(overflow_in_bias(), "bias");
    EXPECT_TRUE(loop.net->weight.grad().equal(torch::ones({2, 2}))) << "left for a look";
  }
}

TEST(MixedPrecision, NF01_NF02_AnomalyDetectionRaisesAtANanAlsoWhereTheScalerWouldSkip) {
  const auto error = [](float factor) -> std::string {
    Loop loop;
    try {
      const torch::autograd::DetectAnomalyGuard anomaly(/*check_nan=*/true);
      const at::Tensor loss = (loop.net->weight.square().sqrt() * factor).sum();
      loop.precision.backward(loss);
      EXPECT_EQ(loop.precision.optimizer_step(loop.optimizer).skipped(), !std::isfinite(factor));
    } catch (const std::exception& thrown) {
      return thrown.what();
    }
    return "none";
  };
  EXPECT_EQ(error(1), "none");
  EXPECT_EQ(error(kInf), "none");  // inf alone does not throw: the scaler skips the step
  EXPECT_THAT(error(std::nanf("")),
              testing::HasSubstr("'MulBackward1' returned nan values in its 0th output"));
}

TEST(MixedPrecision, CL06_ClipsUnscaledGradientsHoweverOftenTheyAreLookedAt) {
  Loop loop;
  loop.forward_and_backward(3);
  loop.precision.unscale_gradients(loop.optimizer);
  loop.precision.unscale_gradients(loop.optimizer);
  EXPECT_TRUE(loop.net->weight.grad().equal(torch::full({2, 2}, 3.0)));
  const at::Tensor norm = loop.precision.clip_gradients(loop.optimizer, 1.0);
  EXPECT_NEAR(norm.item<float>(), 3 * std::sqrt(6.0F), 1e-5);
  EXPECT_FALSE(loop.precision.clip_gradients(loop.optimizer, 0.5, GradientClipAlgorithm::kValue).defined());
  EXPECT_FALSE(loop.precision.optimizer_step(loop.optimizer).skipped());
  EXPECT_NEAR((1 - loop.net->weight[0][0]).item<float>(), 1 / std::sqrt(6.0F), 1e-5);
}

TEST(MixedPrecision, CL09_ClippingAnOverflowStillSkips) {
  Loop loop;
  loop.forward_and_backward(kInf);
  loop.precision.clip_gradients(loop.optimizer, 1.0);
  EXPECT_TRUE(loop.precision.optimizer_step(loop.optimizer).skipped());
  EXPECT_TRUE(loop.net->weight.detach().equal(torch::ones({2, 2})));
}

TEST(MixedPrecision, AClosureThatThrowsAfterUnscalingDoesNotSpoilTheNextStep) {
  Loop loop;
  const auto failing = [&]() -> at::Tensor {
    loop.forward_and_backward(1);
    loop.precision.clip_gradients(loop.optimizer, 100);
    throw std::runtime_error("out of memory");
  };
  EXPECT_THROW(loop.precision.optimizer_step(loop.optimizer, failing), std::runtime_error);
  const auto good = [&] {
    const at::Tensor loss = loop.forward_and_backward(0.5);
    loop.precision.clip_gradients(loop.optimizer, 100);
    return loss;
  };
  EXPECT_FALSE(loop.precision.optimizer_step(loop.optimizer, good).skipped());
  EXPECT_TRUE(loop.net->weight.detach().equal(torch::full({2, 2}, 0.5)));
  EXPECT_EQ(next_scale(loop.precision), 256);
}

TEST(MixedPrecision, AStepThatTheLoopDropsDoesNotSpoilTheNext) {
  for (const bool set_to_none : {true, false}) {
    Loop loop;
    loop.forward_and_backward(7);
    loop.precision.clip_gradients(loop.optimizer, 100);  // unscales, then the loop decides against the step
    loop.optimizer.zero_grad(set_to_none);
    loop.precision.backward((loop.net->weight * 3).sum() + (loop.net->bias * 3).sum());
    EXPECT_NEAR(loop.precision.clip_gradients(loop.optimizer, 100).item<float>(), 3 * std::sqrt(6.0F), 1e-4);
    EXPECT_FALSE(loop.precision.optimizer_step(loop.optimizer).skipped());
    EXPECT_TRUE(loop.net->weight.detach().equal(torch::full({2, 2}, -2.0)));
  }
  Loop loop;
  loop.forward_and_backward(7);
  loop.precision.clip_gradients(loop.optimizer, 100);
  loop.optimizer.zero_grad();
  EXPECT_EQ(loop.precision.optimizer_step(loop.optimizer).cause(), SkipCause::kNoGradients);
  loop.forward_and_backward(3);
  loop.precision.clip_gradients(loop.optimizer, 100);
  loop.precision.optimizer_step(loop.optimizer);
  EXPECT_TRUE(loop.net->weight.detach().equal(torch::full({2, 2}, -2.0)));
}

/// Two weights, two optimizers, one backward pass: d/da = x, d/db = 3.
struct TwoOptimizers {
  void forward_and_backward(float x) {
    first.zero_grad();
    second.zero_grad();
    precision.backward((a * x).sum() + (b * 3).sum());
  }
  MixedPrecision precision{at::kHalf, at::kCPU,
                           std::make_unique<GradScaler>(at::kCPU, GradScalerOptions{.init_scale = 256})};
  at::Tensor a = torch::zeros(1, at::requires_grad()), b = torch::zeros(1, at::requires_grad());
  torch::optim::SGD first{std::vector<at::Tensor>{a}, 1.0}, second{std::vector<at::Tensor>{b}, 1.0};
};

TEST(MixedPrecision, SeveralOptimizersOfOneBackwardPassShareItsScaleAndMoveItOnce) {
  TwoOptimizers two;
  two.forward_and_backward(kInf);
  EXPECT_TRUE(two.precision.optimizer_step(two.first).skipped());
  EXPECT_FALSE(two.precision.optimizer_step(two.second).skipped());
  EXPECT_EQ(two.b.item<float>(), -3);  // upstream gets -6, because it unscales by the halved scale
  EXPECT_EQ(next_scale(two.precision), 128);
  two.forward_and_backward(1);
  two.precision.clip_gradients(two.first, 100);
  two.precision.clip_gradients(two.second, 100);
  two.precision.optimizer_step(two.first);
  two.precision.optimizer_step(two.second);
  EXPECT_EQ(two.a.item<float>(), -1);
  EXPECT_EQ(two.b.item<float>(), -6);
  EXPECT_EQ(scaler_state(two.precision).at("_growth_tracker").toLong(), 1);
}

TEST(MixedPrecision, UnscaledGradientsWaitForTheirStepThroughAnothersBackward) {
  TwoOptimizers two;
  two.precision.backward((two.a * 2).sum());
  two.precision.clip_gradients(two.first, 100);
  two.precision.backward((two.b * 5).sum());
  two.precision.optimizer_step(two.first);
  two.precision.optimizer_step(two.second);
  EXPECT_EQ(two.a.item<float>(), -2);
  EXPECT_EQ(two.b.item<float>(), -5);
}

TEST(MixedPrecision, AnOptimizerThatThrowsDoesNotSpoilTheNextStep) {
  struct Failing : torch::optim::SGD {
    using SGD::SGD;
    at::Tensor step(LossClosure closure = nullptr) override {
      if (fails) throw std::runtime_error("out of memory");
      return SGD::step(std::move(closure));
    }
    bool fails = true;
  };
  Loop loop;
  Failing optimizer(loop.net->parameters(), 1.0);
  loop.forward_and_backward(1);
  EXPECT_THROW(loop.precision.optimizer_step(optimizer), std::runtime_error);
  optimizer.fails = false;
  loop.forward_and_backward(3);
  loop.precision.clip_gradients(optimizer, 100);
  loop.precision.optimizer_step(optimizer);
  EXPECT_TRUE(loop.net->weight.detach().equal(torch::full({2, 2}, -2.0)));
}

TEST(MixedPrecision, AWeightThatTwoModulesShareIsUnscaledAndClippedOnce) {
  MixedPrecision precision(at::kHalf, at::kCPU);
  const at::Tensor w = torch::zeros(1, at::requires_grad());
  torch::optim::SGD optimizer(std::vector<at::Tensor>{w, w}, 0.5);
  precision.backward((w * 3).sum());
  EXPECT_FLOAT_EQ(precision.clip_gradients(optimizer, 100).item<float>(), 3);
  EXPECT_EQ(w.grad().item<float>(), 3);
}

TEST(MixedPrecision, AStepWithoutAnyGradientChangesNothing) {
  Loop loop;
  const StepResult result = loop.precision.optimizer_step(loop.optimizer, [] { return at::Tensor(); });
  EXPECT_TRUE(result.skipped());
  EXPECT_EQ(result.cause(), SkipCause::kNoGradients);
}

TEST(MixedPrecision, AutocastIsOnInsideTheContextAndOffOutside) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const MixedPrecision precision(dtype, at::kCPU);
    const at::Tensor a = torch::ones({2, 2});
    try {
      const Scope scope = precision.forward_context();
      EXPECT_EQ(a.mm(a).scalar_type(), dtype);
      throw std::runtime_error("body");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(a.mm(a).scalar_type(), at::kFloat);
    EXPECT_EQ(precision.convert_output(a.to(dtype)).scalar_type(), at::kFloat);
    EXPECT_EQ(precision.convert_input(a).scalar_type(), at::kFloat);
  }
}

/// Whether the region's cast of the weight is the one that libtorch's cache should have.
bool is_cast_fresh(const at::Tensor& weight) {
  return at::equal(at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU), weight.to(at::kBFloat16));
}

// A loop may keep the region open over its steps.
TEST(MixedPrecision, AStepDropsTheCastsOfTheWeightsThatItChanges) {
  for (const bool line_search : {false, true}) {
    MixedPrecision mode(at::kBFloat16, at::kCPU);
    torch::nn::Linear net(1, 1);
    std::unique_ptr<torch::optim::Optimizer> optimizer =
        std::make_unique<torch::optim::SGD>(net->parameters(), 0.5);
    if (line_search) optimizer = std::make_unique<torch::optim::LBFGS>(net->parameters(), 0.5);
    const Scope region = mode.forward_context();
    EXPECT_TRUE(is_cast_fresh(net->weight));
    mode.optimizer_step(*optimizer, [&] {
      EXPECT_TRUE(is_cast_fresh(net->weight));
      optimizer->zero_grad();
      at::Tensor loss = (net->weight - 3).square().sum();
      mode.backward(loss);
      return loss;
    });
    EXPECT_TRUE(is_cast_fresh(net->weight)) << line_search;
  }
}

TEST(MixedPrecision, StateResumes) {
  Loop loop, resumed(8);
  loop.forward_and_backward(kInf);
  loop.precision.optimizer_step(loop.optimizer);
  const StateDict state = loop.precision.state_dict();
  EXPECT_THAT(resumed.precision.load_state_dict(StateReader(state)), testing::IsEmpty());
  EXPECT_EQ(next_scale(resumed.precision), 128);
  EXPECT_TRUE(MixedPrecision(at::kBFloat16, at::kCPU).state_dict().empty());
}

}  // namespace
}  // namespace mantissa::mixed_test
