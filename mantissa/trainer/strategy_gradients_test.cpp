// Tests which gradients a strategy sees and reduces, in one process.
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/amp/gradient_hooks.h"
#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/strategy_test_support_internal.h"

namespace mantissa::strategy_test {
namespace {

/// Doubles the gradients that the optimizer will use, after the backward pass.
struct DoublingAfterBackward final : Strategy {
  void setup_optimizers(const std::vector<OptimizerConfig>& optimizers, Precision&) override {
    parameters = main_params(*optimizers.at(0).optimizer);
  }
  void post_backward() override {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().mul_(2);
  }
  std::vector<at::Tensor> parameters;
};

// In one process: a mode with 16-bit weights sets the default dtype, which all threads share.
TEST(Strategy, TheGradientsOfMasterWeightsAreReduced) {
  const PrecisionOptions masters{.loss_scale = "8", .master_weights = true};
  const auto strategy = std::make_shared<DoublingAfterBackward>();
  const auto outcome =
      train({.precision = "16-true", .precision_options = masters, .strategy = strategy}, {1, 2, 3});
  EXPECT_EQ(outcome.weight, -2 - 4 - 6);
  EXPECT_EQ(strategy->parameters.at(0).scalar_type(), at::kFloat);
}

/// Doubles each gradient as soon as it is there, as a strategy that reduces while the backward pass runs.
struct Doubling final : Strategy {
  void setup_module(torch::nn::Module& module) override {
    for (const at::Tensor& parameter : module.parameters())
      hooks.emplace_back(parameter, GradientHookOrder::kReduce, [this](const at::Tensor& holder) {
        ++calls;
        if (holder.grad().defined()) holder.mutable_grad().mul_(2);
      });
  }
  std::vector<GradientHook> hooks;
  int calls = 0;
};

TEST(Strategy, AReducersHooksGetTheGradientsInEveryMode) {
  const std::vector<std::pair<std::string, PrecisionOptions>> modes{{"32-true", {}},
                                                                    {"bf16-true", {}},
                                                                    {"bf16-true", {.master_weights = true}},
                                                                    {"16-mixed", {.loss_scale = "8"}},
                                                                    {"O2", {.loss_scale = "8"}}};
  for (const auto& [name, precision_options] : modes) {
    const auto strategy = std::make_shared<Doubling>();
    const TrainerOptions options{
        .precision = name, .precision_options = precision_options, .strategy = strategy};
    EXPECT_EQ(train(options, {1, 2, 3}).weight, 2 * (-1 - 2 - 3)) << name;
    EXPECT_EQ(strategy->calls, 3) << name;
  }
}

}  // namespace
}  // namespace mantissa::strategy_test
