// Tests what a step that is skipped leaves behind: scale, schedules, buffers, and a trace of its origin.
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::skipped_steps_test {
namespace {

TEST(SkippedSteps, PE15_AnOverflowInBatchThreeOfTwelve) {
  OneWeight task;
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer({.precision = "16-mixed",
                   .precision_options = {.init_scale = 256},
                   .device = "cpu",
                   .callbacks = {recorder}});
  ListLoader train = loader_of({1, 1, 1, kInf, 1, 1, 1, 1, 1, 1, 1, 1});
  const FitResult result = trainer.fit(task, train);
  const GradScalerState state = scaler_state(trainer.precision());
  EXPECT_EQ(state.at("scale").toDouble(), 128);
  EXPECT_EQ(state.at("_growth_tracker").toLong(), 8);
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_EQ(recorder->batches[3].step.cause(), SkipCause::kNonFiniteGradients);
  EXPECT_FALSE(recorder->batches[4].step.skipped());
  EXPECT_DOUBLE_EQ(task.weight(), -11);
}

TEST(SkippedSteps, PE16_BatchesWithoutALossLeaveTheScaleAlone) {
  OneWeight task;
  Trainer trainer({.precision = "16-mixed", .device = "cpu"});
  ListLoader train = loader_of({1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1});
  const FitResult result = trainer.fit(task, train);
  const GradScalerState state = scaler_state(trainer.precision());
  EXPECT_EQ(state.at("_growth_tracker").toLong(), 6);
  EXPECT_EQ(state.at("scale").toDouble(), 65536);
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(result.skipped_steps, 6);
  EXPECT_DOUBLE_EQ(task.weight(), -6);
}

TEST(SkippedSteps, GradientsOfAWindowCountInEveryModeThoughItsLastBatchHasNoLoss) {
  for (const char* precision : {"32-true", "16-mixed"}) {
    OneWeight task;
    Trainer trainer({.precision = precision, .device = "cpu", .accumulate_grad_batches = 2});
    ListLoader train = loader_of({4, -1});
    EXPECT_EQ(trainer.fit(task, train).skipped_steps, 0) << precision;
    EXPECT_DOUBLE_EQ(task.weight(), -2) << precision;
  }
}

TEST(SkippedSteps, SchedulesDoNotAdvanceOnASkippedStep) {
  for (const auto interval : {OptimizerConfig::Interval::kStep, OptimizerConfig::Interval::kEpoch}) {
    OneWeight task;
    task.with_schedule = true;
    task.interval = interval;
    auto recorder = std::make_shared<Recorder>();
    Trainer trainer({.precision = "16-mixed", .device = "cpu", .max_epochs = 3, .callbacks = {recorder}});
    ListLoader overflows = loader_of({kInf});
    trainer.fit(task, overflows);
    EXPECT_EQ(recorder->rate, 1.0);
  }
  OneWeight task;
  task.with_schedule = true;
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer({.precision = "16-mixed", .device = "cpu", .callbacks = {recorder}});
  ListLoader train = loader_of({0.5, kInf, 0.5});
  trainer.fit(task, train);
  // libtorch's StepLR takes its first step() as step 0, so two clean steps halve the rate once.
  EXPECT_EQ(recorder->rate, 0.5);
}

class SkippedStepsOfResumedRuns : public InFolder {};

/// A schedule advances after an epoch with a step, whichever part of a resumed epoch took it.
TEST_F(SkippedStepsOfResumedRuns, AnEpochThatHadAStepBeforeTheCheckpointAdvancesTheSchedule) {
  struct ByEpoch final : Loader {
    explicit ByEpoch(std::vector<float> first_epoch) : first(std::move(first_epoch)) {}
    void set_epoch(int64_t epoch) override {
      now.emplace(loader_of(epoch == 0 ? first : std::vector<float>{1, 1}));
      now->set_epoch(epoch);
    }
    std::optional<Batch> next() override { return now->next(); }
    int64_t size() const override { return 2; }
    std::vector<float> first;
    std::optional<ListLoader> now;
  };
  const auto rate = [&](const std::vector<float>& first, int64_t max_steps,
                        const std::filesystem::path& from) {
    OneWeight task;
    task.with_schedule = true;
    task.interval = OptimizerConfig::Interval::kEpoch;
    const auto recorder = std::make_shared<Recorder>();
    ByEpoch train(first);
    Trainer({.device = "cpu",
             .max_epochs = 4,
             .max_steps = max_steps,
             .callbacks = {recorder, std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                                         .dirpath = folder_ / "run", .async = false})}})
        .fit(task, train, nullptr, from);
    std::filesystem::remove_all(from);
    return recorder->rate;
  };
  // A batch of -1 takes no step. libtorch's StepLR takes its first step() as step 0.
  for (const auto& [first, last] : std::vector<std::pair<std::vector<float>, double>>{
           {{1, -1}, 0.25}, {{-1, 1}, 0.25}, {{-1, -1}, 0.5}}) {
    rate(first, 1, "");
    EXPECT_EQ(rate(first, -1, folder_ / "run"), last) << first;
  }
}

/// Batch norm in front of one weight; the loss of a batch with large values is inf.
class Normed : public OneWeight {
 public:
  Normed() {
    whole->push_back(norm);
    whole->push_back(net);
  }
  torch::nn::Module& module() override { return *whole; }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    ++steps;
    return (net(norm(batch.data)).to(at::kFloat).sum() + 1) * factor(batch);
  }
  static float factor(const Batch& batch) { return batch.data.max().item<float>() > 50 ? kInf : 1; }
  torch::nn::BatchNorm1d norm{1};
  torch::nn::Sequential whole;
  int steps = 0;
};

ListLoader pairs_of(std::vector<float> values) {
  std::vector<Batch> batches;
  for (const float value : values)
    batches.push_back({torch::tensor({{value}, {-value}}), torch::zeros({2}, at::kLong), {}});
  return ListLoader(std::move(batches));
}

TEST(SkippedSteps, ATransactionalSkippedStepLeavesNoTrace) {
  for (const bool transactional : {false, true}) {
    for (const int64_t window : {1, 2}) {
      Normed task, clean;
      ListLoader with = pairs_of({1, 100}), without = pairs_of({1});
      if (window == 2) with = pairs_of({1, 2, 3, 100}), without = pairs_of({1, 2});
      auto recorder = std::make_shared<Recorder>();
      const auto fit = [&](Normed& t, ListLoader& loader) {
        Trainer({.precision = "16-mixed",
                 .device = "cpu",
                 .accumulate_grad_batches = window,
                 .transactional = transactional,
                 .callbacks = {recorder}})
            .fit(t, loader);
      };
      fit(clean, without);
      fit(task, with);
      const StepResult& last = recorder->batches.back().step;
      EXPECT_EQ(last.cause(), SkipCause::kNonFiniteGradients);
      EXPECT_EQ(last.first_nonfinite_parameter(), "1.weight");
      EXPECT_TRUE(task.net->weight.equal(clean.net->weight));
      EXPECT_EQ(task.norm->running_var.equal(clean.norm->running_var), transactional);
      EXPECT_EQ(task.norm->num_batches_tracked.equal(clean.norm->num_batches_tracked), transactional);
    }
  }
}

TEST(SkippedSteps, TracesASkippedStepToItsOperationAndTellsCallbacks) {
  Normed task;
  ListLoader train = pairs_of({1, 2, 100, 3});
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer({.precision = "16-mixed",
                   .device = "cpu",
                   .accumulate_grad_batches = 2,
                   .trace_nonfinite = true,
                   .callbacks = {recorder}});
  const FitResult result = trainer.fit(task, train);
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_FALSE(recorder->batches[1].origin.has_value());
  ASSERT_TRUE(recorder->batches[2].origin.has_value())
      << "at the loss that is not finite, before the window ends";
  EXPECT_EQ(recorder->batches[2].origin->op, "aten::mul");
  EXPECT_FALSE(recorder->batches[3].origin.has_value()) << "one trace a window";
  EXPECT_EQ(task.steps, 5);  // four batches, one of them twice
  EXPECT_EQ(result.metrics.at("train_loss"), kInf) << "the second look was not counted";
}

TEST(SkippedSteps, TracesNoMoreThanAFewTimes) {
  Normed task;
  ListLoader train = pairs_of(std::vector<float>(30, 100));
  Trainer trainer({.precision = "16-mixed", .device = "cpu", .trace_nonfinite = true});
  trainer.fit(task, train);
  EXPECT_EQ(task.steps, 30 + TrainerOptions::kMaxTraces);
}

}  // namespace
}  // namespace mantissa::skipped_steps_test
