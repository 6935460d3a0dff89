#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/ema.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/sgd.h"

namespace mantissa::scheduler_state_test {
namespace {

using testing::HasSubstr;

/// Two groups with rates 0.8 and 0.2.
std::unique_ptr<SGD> two_rates() {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : {0.8, 0.2}) {
    groups.emplace_back(std::vector<at::Tensor>{at::ones({1})}, std::make_unique<SGDOptions>(lr));
  }
  return std::make_unique<SGD>(groups);
}

std::vector<double> rates_of(const SGD& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

/// Calls `step(scheduler, i)` at every step, once straight through and once with saving and resuming at each
/// step. Expects the same rates.
template <typename Make, typename Step>
void expect_same_rates(const Make& make, const Step& step) {
  constexpr int kSteps = 14;
  const auto straight = two_rates();
  const auto straight_scheduler = make(*straight);
  auto optimizer = two_rates();
  auto scheduler = make(*optimizer);
  for (int i = 0; i < kSteps; ++i) {
    step(*straight_scheduler, i);
    const StateDict saved = scheduler_state(*scheduler), rates = optimizer_state(*optimizer);
    auto next = two_rates();
    auto next_scheduler = make(*next);
    load_scheduler_state(*next_scheduler, StateReader(saved));
    load_optimizer_state(*next, StateReader(rates));
    EXPECT_EQ(difference(scheduler_state(*next_scheduler), saved), "");
    optimizer = std::move(next);
    scheduler = std::move(next_scheduler);
    step(*scheduler, i);
    EXPECT_EQ(rates_of(*optimizer), rates_of(*straight)) << i;
  }
}

TEST(SchedulerState, StepLR) {
  expect_same_rates([](SGD& optimizer) { return std::make_unique<torch::optim::StepLR>(optimizer, 3, 0.5); },
                    [](auto& scheduler, int) { scheduler.step(); });
}

TEST(SchedulerState, WarmupCosineLR) {
  const WarmupCosineOptions options{.warmup_steps = 3, .total_steps = 12, .final_factor = 0.1};
  expect_same_rates([&](SGD& optimizer) { return std::make_unique<WarmupCosineLR>(optimizer, options); },
                    [](auto& scheduler, int) { scheduler.step(); });
}

// The schedule is made after the optimizer's rates have changed, as when its state was loaded first.
TEST(SchedulerState, WarmupCosineKeepsItsBaseRates) {
  const WarmupCosineOptions options{.warmup_steps = 3, .total_steps = 12};
  const auto one = two_rates(), two = two_rates();
  WarmupCosineLR first(*one, options);
  for (int i = 0; i < 5; ++i) first.step();
  load_optimizer_state(*two, StateReader(optimizer_state(*one)));
  WarmupCosineLR second(*two, options);
  load_scheduler_state(second, StateReader(scheduler_state(first)));
  first.step();
  second.step();
  EXPECT_EQ(rates_of(*two), rates_of(*one));
}

TEST(SchedulerState, ReduceLROnPlateau) {
  const std::vector<float> metrics = {1, 0.5, 0.6, 0.7, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.3, 0.5, 0.5, 0.5};
  expect_same_rates(
      [](SGD& optimizer) {
        using Plateau = torch::optim::ReduceLROnPlateauScheduler;
        return std::make_unique<Plateau>(optimizer, Plateau::min, 0.5F, 1, 1e-4, Plateau::rel, 2);
      },
      [&](auto& scheduler, int i) { scheduler.step(metrics[size_t(i)]); });
}

TEST(SchedulerState, RefusesWhatDoesNotFitAndChangesNothing) {
  const auto optimizer = two_rates();
  torch::optim::StepLR step(*optimizer, 3, 0.5);
  torch::optim::ReduceLROnPlateauScheduler plateau(*optimizer);
  WarmupCosineLR cosine(*optimizer, {.warmup_steps = 3, .total_steps = 12});
  const auto error = [](auto& scheduler, const StateDict& state) {
    const StateDict before = scheduler_state(scheduler);
    const std::string what =
        error_of([&] { load_scheduler_state(scheduler, StateReader(state, "scheduler")); });
    EXPECT_EQ(difference(scheduler_state(scheduler), before), "");
    return what;
  };
  EXPECT_THAT(error(step, {}), HasSubstr("scheduler: 'step_count' is missing"));
  EXPECT_THAT(error(step, {{"step_count", -1}}), HasSubstr("scheduler.step_count: is -1"));
  EXPECT_THAT(error(step, {{"step_count", int64_t{1} << 32}}),
              HasSubstr("scheduler.step_count: is 4294967296"));
  EXPECT_THAT(error(cosine, {{"step_count", 3}, {"base_lrs", StateList{0.1}}}),
              HasSubstr("scheduler.base_lrs: are 1; the schedule is of 2 parameter groups"));
  EXPECT_THAT(error(cosine, {{"step_count", 3}, {"base_lrs", StateList{0.1, "b"}}}),
              HasSubstr("scheduler.base_lrs.1: is text"));
  StateDict state = scheduler_state(plateau);
  state["last_epoch"] = 0.5;
  state["best"] = 0.25;
  EXPECT_THAT(error(plateau, state), HasSubstr("scheduler.last_epoch: is a floating-point number"));
}

TEST(EmaState, ContinuesBitForBit) {
  const auto train = [](torch::nn::Linear& model, ExponentialMovingAverage& ema, int steps) {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < steps; ++i) {
      model->weight.mul_(1.1).sub_(0.3);
      ema.update();
    }
  };
  torch::nn::Linear model(3, 2);
  model->to(at::kBFloat16);
  ExponentialMovingAverage ema(*model);
  train(model, ema, 3);
  const StateDict saved = snapshot(ema.state_dict());
  const StateDict untouched = snapshot(saved);
  torch::nn::Linear again(3, 2);
  again->to(at::kBFloat16);
  {
    const at::NoGradGuard no_grad;
    again->weight.copy_(model->weight);
    again->bias.copy_(model->bias);
  }
  ExponentialMovingAverage resumed(*again);
  resumed.load_state_dict(StateReader(saved));
  EXPECT_EQ(difference(resumed.state_dict(), saved), "");
  train(model, ema, 3);
  train(again, resumed, 3);
  EXPECT_EQ(difference(resumed.state_dict(), ema.state_dict()), "");
  EXPECT_EQ(difference(saved, untouched), "");

  const StateDict before = snapshot(resumed.state_dict());
  const auto error = [&](const StateDict& state) {
    const std::string what = error_of([&] { resumed.load_state_dict(StateReader(state, "ema")); });
    EXPECT_EQ(difference(resumed.state_dict(), before), "");
    return what;
  };
  EXPECT_THAT(error({{"num_updates", 1}, {"averages", StateList{at::ones({2, 3})}}}),
              HasSubstr("averages of 1 tensors, and the module has 2"));
  EXPECT_THAT(error({{"num_updates", 0}, {"averages", StateList{at::ones({2, 3})}}}),
              HasSubstr("ema.averages: "));
  EXPECT_THAT(error({{"num_updates", -1}, {"averages", StateList{}}}), HasSubstr("ema.num_updates: is -1"));
  EXPECT_THAT(error({{"num_updates", 1}, {"averages", StateList{3}}}),
              HasSubstr("ema.averages.0: is a whole number"));
}

}  // namespace
}  // namespace mantissa::scheduler_state_test
