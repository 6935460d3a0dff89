// Tests optimizers that evaluate the loss several times in a step: LBFGS, and closures of a task's own loop.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::lbfgs_test {
namespace {

using testing::HasSubstr;

/// (w - x)^2, minimized by LBFGS.
struct Minimizes : OneWeight {
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::LBFGS>(net->parameters(),
                                                   torch::optim::LBFGSOptions(0.1).max_iter(3))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    ++evaluations;
    return loss_of(net->weight, batch.data);
  }
  virtual at::Tensor loss_of(const at::Tensor& weight, const at::Tensor& x) {
    return (weight - x).square().sum();
  }
  int evaluations = 0;
};

TEST(Lbfgs, TakesTheStepsOfItsOwnLoop) {
  Minimizes task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({5, 5});
  Trainer({.device = "cpu", .callbacks = {recorder}}).fit(task, train);
  at::Tensor weight = torch::zeros({1, 1}, torch::requires_grad());
  torch::optim::LBFGS plain({weight}, torch::optim::LBFGSOptions(0.1).max_iter(3));
  for (int i = 0; i < 2; ++i)
    plain.step([&] {
      plain.zero_grad();
      at::Tensor loss = (weight - 5).square().sum();
      loss.backward();
      return loss;
    });
  EXPECT_EQ(task.weight(), weight.item<double>());
  EXPECT_EQ(recorder->batches.size(), 2U);
  EXPECT_EQ(recorder->batches[1].global_step, 2);
  const auto calls = [&](char hook) { return std::count(task.trace.begin(), task.trace.end(), hook); };
  for (const char hook : {'z', 'b', 'a', 's'}) EXPECT_EQ(calls(hook), task.evaluations) << hook;
  EXPECT_FALSE(recorder->batches[0].loss.requires_grad());
}

TEST(Lbfgs, RefusesALossOfSeveralNumbers) {
  struct Two final : Minimizes {
    at::Tensor loss_of(const at::Tensor& weight, const at::Tensor&) override {
      return torch::cat({weight, weight});
    }
  } task;
  ListLoader train = loader_of({5});
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu"}).fit(task, train); }),
              HasSubstr("batch 0 of epoch 0 returned more than one number; return a scalar made"));
}

TEST(Lbfgs, TheOriginOfANanIsFound) {
  struct Log final : Minimizes {
    at::Tensor loss_of(const at::Tensor& weight, const at::Tensor&) override {
      return torch::log(weight - 1).sum();
    }
  } task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({5});
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .trace_nonfinite = true, .callbacks = {recorder}}).fit(task, train);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("forward: aten::log"));
  EXPECT_TRUE(recorder->batches[0].origin.has_value());
}

TEST(Lbfgs, GradientsAreClipped) {
  const auto weight = [](double clip) {
    Minimizes task;
    ListLoader train = loader_of({5});
    Trainer({.device = "cpu", .gradient_clip_val = clip}).fit(task, train);
    return task.weight();
  };
  EXPECT_LT(weight(0.01), 0.5 * weight(0));
}

TEST(Lbfgs, TheOriginOfAnInfiniteGradientIsFound) {
  struct Root final : Minimizes {
    at::Tensor loss_of(const at::Tensor& weight, const at::Tensor&) override {
      return torch::sqrt(weight).sum();
    }
  } task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({5});
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .trace_nonfinite = true, .callbacks = {recorder}}).fit(task, train);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("in the derivative of aten::sqrt"));
}

TEST(Lbfgs, OnlyTheEvaluationThatIsNotFiniteIsRunAgain) {
  struct BreaksInBatchOne final : Minimizes {
    at::Tensor loss_of(const at::Tensor& weight, const at::Tensor& x) override {
      return x.item<float>() == 5 ? Minimizes::loss_of(weight, x) : torch::log(weight - 100).sum();
    }
  };
  const auto evaluations = [](bool traces) {
    BreaksInBatchOne task;
    ListLoader train = loader_of({5, 6});
    testing::internal::CaptureStderr();
    Trainer({.device = "cpu", .trace_nonfinite = traces}).fit(task, train);
    EXPECT_EQ(traces, testing::internal::GetCapturedStderr().find("batch 1 of epoch 0") != std::string::npos);
    return task.evaluations;
  };
  EXPECT_EQ(evaluations(true), evaluations(false) + 1);
}

TEST(Lbfgs, AUsersModeUnscalesTheGradientsOfEachEvaluation) {
  struct Doubles final : Precision {
    Doubles() : Precision("doubles") {}
    void backward(const at::Tensor& loss, const LossHook& before) override {
      Precision::backward(loss * 2, before);
    }
    void unscale_gradients(torch::optim::Optimizer& optimizer) override {
      for (const at::Tensor& parameter : main_params(optimizer)) parameter.mutable_grad().div_(2);
    }
  };
  const auto weight = [](std::shared_ptr<Precision> precision) {
    Minimizes task;
    ListLoader train = loader_of({0.1});  // LBFGS makes its first step from larger gradients a short one
    TrainerOptions options{.device = "cpu"};
    options.precision_plugin = std::move(precision);
    Trainer(options).fit(task, train);
    return task.weight();
  };
  EXPECT_EQ(weight(std::make_shared<Doubles>()), weight(nullptr));
}

/// Steps by itself, with a closure.
struct StepsWithClosure final : OneWeight {
  bool automatic_optimization() const override { return false; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    if (!lbfgs) return OneWeight::configure_optimizers();
    return {{std::make_shared<torch::optim::LBFGS>(net->parameters(),
                                                   torch::optim::LBFGSOptions(0.1).max_iter(3))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    optimizers().step([&] {
      ++evaluations;
      optimizers().zero_grad();
      const at::Tensor loss = (net->weight - batch.data).square().sum();
      manual_backward(loss);
      return loss;
    });
    return net->weight.sum();
  }
  bool lbfgs = false;
  int evaluations = 0;
};

TEST(Lbfgs, AManualStepRunsItsClosureWithTheHooksOfEachEvaluation) {
  for (const bool lbfgs : {false, true}) {
    StepsWithClosure task;
    task.lbfgs = lbfgs;
    const auto recorder = std::make_shared<Recorder>();
    ListLoader train = loader_of({5});
    Trainer({.device = "cpu", .callbacks = {recorder}}).fit(task, train);
    EXPECT_TRUE(lbfgs || task.evaluations == 1) << task.evaluations;
    EXPECT_NE(task.weight(), 0);
    EXPECT_EQ(std::count(task.trace.begin(), task.trace.end(), 's'), task.evaluations) << lbfgs;
    EXPECT_FALSE(recorder->batches.at(0).loss.requires_grad());
  }
}

TEST(Lbfgs, AManualStepWithoutAClosureIsRefused) {
  struct WithoutClosure final : Minimizes {
    bool automatic_optimization() const override { return false; }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      manual_backward(loss_of(net->weight, batch.data));
      optimizers().step();
      return {};
    }
  } task;
  ListLoader train = loader_of({5});
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu"}).fit(task, train); }),
              HasSubstr("LBFGS requires a closure"));
}

}  // namespace
}  // namespace mantissa::lbfgs_test
