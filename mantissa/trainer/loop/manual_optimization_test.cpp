#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/precision/registry.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::manual_optimization_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

torch::nn::Linear weight_of(float value) {
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
  linear->weight.data().fill_(value);
  return linear;
}

/// Has two weights with an optimizer each, and one loss for both: a * x + b * x.
class Pair : public Task {
 public:
  Pair() {
    both->push_back(a);
    both->push_back(b);
  }
  torch::nn::Module& module() override { return *both; }
  bool automatic_optimization() const override { return false; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::SGD>(a->parameters(), 1.0)},
            {std::make_shared<torch::optim::SGD>(b->parameters(), 1.0)}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    optimizers(0).zero_grad();
    optimizers(1).zero_grad();
    const float x = batch.data.item<float>();
    const at::Tensor loss = (a->weight * (x < 0 ? kInf : x)).sum() + (b->weight * std::abs(x)).sum();
    manual_backward(loss);
    autocast_in_hook |= autocast_seen;
    if (clip > 0) norm = optimizers(0).clip_gradients(clip).item<double>();
    first.push_back(optimizers(0).step());
    second.push_back(optimizers(1).step());
    return loss;
  }
  void on_before_zero_grad(torch::optim::Optimizer&) override { trace += "z"; }
  void on_before_backward(const at::Tensor& loss) override {
    trace += "b";
    scaled = loss.item<double>();
    autocast_seen = at::autocast::is_autocast_enabled(at::kCPU);
  }
  void on_after_backward() override { trace += "a"; }
  void on_before_optimizer_step(torch::optim::Optimizer& optimizer) override {
    trace += "s";
    const at::Tensor& first_gradient = optimizer.param_groups()[0].params()[0].grad();
    if (first_gradient.defined()) gradient = first_gradient.item<float>();
  }

  torch::nn::Linear a = weight_of(0), b = weight_of(0);
  torch::nn::Sequential both;
  std::vector<StepResult> first, second;
  std::string trace;
  double clip = 0, norm = 0, scaled = 0;
  float gradient = 0;
  bool autocast_seen = false, autocast_in_hook = false;
};

TEST(ManualOptimization, OneScaleServesSeveralOptimizersAndMovesOnceABatch) {
  Pair task;
  Trainer trainer({.precision = "16-mixed", .precision_options = {.init_scale = 1024}, .device = "cpu"});
  ListLoader train = loader_of({1, -2, 3});  // in the second batch only a's gradient overflows
  const FitResult result = trainer.fit(task, train);
  EXPECT_EQ(result.steps, 6) << "every step counts, as in Lightning";
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_TRUE(task.first[1].skipped());
  EXPECT_EQ(task.first[1].first_nonfinite_parameter(), "0.weight");
  EXPECT_FALSE(task.second[1].skipped());
  EXPECT_DOUBLE_EQ(task.a->weight.item<double>(), -1 - 3);
  // Lightning would unscale b's gradient by the scale that a's overflow has halved, and step twice as far.
  EXPECT_DOUBLE_EQ(task.b->weight.item<double>(), -1 - 2 - 3);
  const GradScalerState state = scaler_state(trainer.precision());
  EXPECT_EQ(state.at("scale").toDouble(), 512);
  EXPECT_EQ(state.at("_growth_tracker").toLong(), 1) << "once a batch, not once a step";
}

TEST(ManualOptimization, HooksComeInLightningsOrderAndBackwardRunsOutsideAutocast) {
  Pair task;
  ListLoader train = loader_of({2});
  Trainer({.precision = "16-mixed", .device = "cpu"}).fit(task, train);
  EXPECT_EQ(task.trace, "zzbass");
  EXPECT_EQ(task.gradient, 2) << "unscaled before the step";
  EXPECT_FALSE(task.autocast_in_hook);
}

TEST(ManualOptimization, ClipsGradientsInTheLosssOwnUnits) {
  for (const char* precision : {"32-true", "16-mixed", "bf16-mixed"}) {
    Pair task;
    task.clip = 0.5;
    ListLoader train = loader_of({4});
    Trainer({.precision = precision, .device = "cpu"}).fit(task, train);
    EXPECT_EQ(task.norm, 4) << precision;
    EXPECT_NEAR(task.a->weight.item<double>(), -0.5, 1e-6) << precision;
    EXPECT_EQ(task.b->weight.item<double>(), -4) << precision;
  }
}

TEST(ManualOptimization, ALaterForwardOfTheBatchSeesTheNewWeightUnderAutocast) {
  struct Twice : Task {
    torch::nn::Module& module() override { return *conv; }
    bool automatic_optimization() const override { return false; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(conv->parameters(), 1.0)}};
    }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      const at::Tensor x = batch.data.reshape({1, 1, 1});
      manual_backward(conv(x).sum());
      optimizers().step();
      after = conv(x).item<float>();
      return {};
    }
    torch::nn::Conv1d conv{torch::nn::Conv1dOptions(1, 1, 1).bias(false)};
    float after = 0;
  } task;
  task.conv->weight.data().fill_(1);
  ListLoader train = loader_of({2});
  Trainer({.precision = "bf16-mixed", .device = "cpu"}).fit(task, train);
  EXPECT_EQ(task.after, -2) << "a cast that was kept from before the step would give 2";
}

TEST(ManualOptimization, EachEvaluationOfLbfgsSeesTheNewWeightUnderAutocast) {
  struct Lbfgs : Task {
    torch::nn::Module& module() override { return *conv; }
    bool automatic_optimization() const override { return false; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::LBFGS>(conv->parameters(), torch::optim::LBFGSOptions(0.25))}};
    }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      const at::Tensor x = batch.data.reshape({1, 1, 1});
      optimizers().step([&] {
        optimizers().zero_grad();
        const at::Tensor y = conv(x);
        computed.push_back(y.item<float>());
        expected.push_back((conv->weight.to(at::kBFloat16) * x.to(at::kBFloat16)).item<float>());
        const at::Tensor loss = (y.to(at::kFloat) - 8).square().sum();
        manual_backward(loss);
        return loss;
      });
      return {};
    }
    torch::nn::Conv1d conv{torch::nn::Conv1dOptions(1, 1, 1).bias(false)};
    std::vector<float> computed, expected;
  } task;
  task.conv->weight.data().fill_(1);
  ListLoader train = loader_of({2});
  Trainer({.precision = "bf16-mixed", .device = "cpu"}).fit(task, train);
  EXPECT_GT(task.computed.size(), 2U);
  EXPECT_NE(task.computed.front(), task.computed.back());
  EXPECT_EQ(task.computed, task.expected);
}

/// Toggles its first optimizer, and notes what the second one's weight looks like meanwhile.
struct Toggles final : Pair {
  Toggles() { b->weight.data().fill_(3); }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    {
      const Scope only_a = toggle_optimizer(optimizers(0));
      a_wants_gradients = a->weight.requires_grad();
      b_wants_gradients = b->weight.requires_grad();
      manual_backward((a->weight * b->weight * batch.data.to(b->weight.scalar_type())).sum());
      optimizers(0).step();
    }
    b_again = b->weight.requires_grad();
    b_has_gradient = has_gradients(optimizers(1).optimizer());
    return {};
  }
  bool a_wants_gradients = false, b_wants_gradients = true, b_again = false, b_has_gradient = true;
};

void expect_toggle_works(const TrainerOptions& options, const std::string& name) {
  Toggles task;
  ListLoader train = loader_of({2});
  Trainer(options).fit(task, train);
  EXPECT_EQ(task.a->weight.item<double>(), -6) << name;
  EXPECT_TRUE(task.a_wants_gradients) << name;
  EXPECT_FALSE(task.b_wants_gradients) << name;
  EXPECT_TRUE(task.b_again) << name;
  EXPECT_FALSE(task.b_has_gradient) << name;
}

TEST(ManualOptimization, ToggleLeavesTheOthersParametersAloneInEveryMode) {
  for (const Mode& mode : modes()) {
    if (mode.traits.frozen_weights) continue;  // the task has no other parameter
    TrainerOptions options{.precision = mode.name, .device = "cpu"};
    if (mode.traits.scales_loss) options.precision_options.loss_scale = "8";  // no step overflows
    expect_toggle_works(options, mode.name);
    if (mode.traits.weights != Format::kFloat16 && mode.traits.weights != Format::kBFloat16) continue;
    options.precision_options.master_weights = true;
    expect_toggle_works(options, mode.name + " with master weights");
  }
}

TEST(ManualOptimization, ClosuresRunInEveryModeThatCanAndLbfgsConverges) {
  struct Lbfgs : Pair {
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::LBFGS>(a->parameters(), torch::optim::LBFGSOptions(1))}};
    }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      optimizers().step([&] {
        optimizers().zero_grad();
        const at::Tensor loss = (a->weight * batch.data - 1).square().sum();
        manual_backward(loss);
        return loss;
      });
      return {};
    }
  };
  for (const char* precision : {"32-true", "bf16-mixed", "64-true"}) {
    Lbfgs task;
    ListLoader train = loader_of({2, 2, 2});
    Trainer({.precision = precision, .device = "cpu"}).fit(task, train);
    EXPECT_NEAR(task.a->weight.item<double>(), 0.5, 1e-3) << precision;
  }
  Lbfgs task;
  ListLoader train = loader_of({2});
  EXPECT_THAT(error_of([&] { Trainer({.precision = "16-mixed", .device = "cpu"}).fit(task, train); }),
              HasSubstr("LBFGS"));
}

TEST(ManualOptimization, GS24_AStepWithoutAnyGradientIsSkippedAndNoError) {
  struct Never : Pair {
    at::Tensor training_step(const Batch&, int64_t) override {
      first.push_back(optimizers(0).step());
      return {};
    }
  };
  for (const char* precision : {"32-true", "16-mixed"}) {
    Never task;
    ListLoader train = loader_of({1});
    EXPECT_EQ(Trainer({.precision = precision, .device = "cpu"}).fit(task, train).skipped_steps, 1);
    EXPECT_EQ(task.first[0].cause(), SkipCause::kNoGradients) << precision;
  }
}

TEST(ManualOptimization, ERR11_ERR12_ERR13_RefusesWhatIsForAutomaticOptimization) {
  Pair task;
  ListLoader train = loader_of({1});
  const auto error = [&](Task& of, const TrainerOptions& options) {
    return error_of([&] { Trainer(options).fit(of, train); });
  };
  EXPECT_THAT(error(task, {.device = "cpu", .gradient_clip_val = 1}),
              HasSubstr("gradient_clip_val=1 is for automatic optimization"));
  EXPECT_THAT(error(task, {.device = "cpu", .accumulate_grad_batches = 2}),
              HasSubstr("accumulate_grad_batches=2 is for automatic optimization"));
  EXPECT_THAT(error(task, {.device = "cpu", .trace_nonfinite = true}), HasSubstr("trace_nonfinite"));
  struct Automatic : Pair {
    bool automatic_optimization() const override { return true; }
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      if (steps_itself) optimizers().step();
      manual_backward((a->weight * batch.data).sum());
      return OneLoss(batch, index);
    }
    at::Tensor OneLoss(const Batch& batch, int64_t) { return (a->weight * batch.data).sum(); }
    std::vector<OptimizerConfig> configure_optimizers() override {
      auto all = Pair::configure_optimizers();
      if (!two) all.pop_back();
      if (one_twice) all.push_back(all.front());
      return all;
    }
    bool two = true, steps_itself = false, one_twice = false;
  } automatic;
  EXPECT_THAT(error(automatic, {.device = "cpu"}),
              HasSubstr("configure_optimizers() returned 2 optimizers, and only the task knows which of them "
                        "a loss is for"));
  automatic.two = false;
  EXPECT_THAT(error(automatic, {.device = "cpu"}),
              HasSubstr("manual_backward: call it inside training_step()"));
  automatic.steps_itself = true;
  EXPECT_THAT(error(automatic, {.device = "cpu"}), HasSubstr("TaskOptimizer::step: call it inside"));
  automatic.one_twice = true;
  EXPECT_THAT(error(automatic, {.device = "cpu"}), HasSubstr("are one; return it once"));
  struct Misses : Pair {
    at::Tensor training_step(const Batch&, int64_t) override {
      optimizers(2).step();
      return {};
    }
    std::vector<OptimizerConfig> configure_optimizers() override {
      if (none) return {};
      return {OptimizerConfig{}};
    }
    bool none = false;
  } misses;
  EXPECT_THAT(error(misses, {.device = "cpu"}), HasSubstr("optimizer 0 of configure_optimizers() is null"));
  misses.none = true;
  EXPECT_THAT(error(misses, {.device = "cpu"}), HasSubstr("returned no optimizer"));
  struct OutOfRange : Pair {
    at::Tensor training_step(const Batch&, int64_t) override { return optimizers(2).step(), at::Tensor(); }
  } out_of_range;
  EXPECT_THAT(error(out_of_range, {.device = "cpu"}),
              HasSubstr("optimizers(2): configure_optimizers() returned 2"));
  EXPECT_THAT(error_of([&] {
                struct Asks : Pair {
                  void ask() { optimizers(); }
                } asks;
                asks.ask();
              }),
              HasSubstr("no Trainer runs this task now"));
}

TEST(ManualOptimization, ASignalEndsTheRunThoughTheTaskTakesNoStep) {
  struct Waits : Pair {
    at::Tensor training_step(const Batch&, int64_t index) override {
      if (index == 1) std::raise(SIGTERM);
      return {};
    }
  } task;
  ListLoader train = loader_of({1, 2, 3, 4});
  Trainer trainer({.device = "cpu", .max_epochs = 100});
  EXPECT_EQ(trainer.fit(task, train).interrupted_by, SIGTERM);
  EXPECT_EQ(trainer.progress().batches, 2);
}

}  // namespace
}  // namespace mantissa::manual_optimization_test
