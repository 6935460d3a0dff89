#include "mantissa/trainer/callbacks/learning_rate_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <utility>
#include <vector>

#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::learning_rate_monitor_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// The lines of a fit with only their "lr-..." columns; steps without such columns are left out.
std::vector<std::string> rates(OneWeight& task, const LearningRateMonitorOptions& options,
                               TrainerOptions run = {}, std::vector<float> batches = {1, 2, 3}) {
  const auto recording = std::make_shared<RecordingLogger>();
  run.device = "cpu";
  run.callbacks.push_back(std::make_shared<LearningRateMonitor>(options));
  run.loggers = {recording};
  ListLoader train = loader_of(std::move(batches));
  Trainer(run).fit(task, train);
  std::vector<std::string> lines;
  for (const std::string& line : recording->lines) {
    std::string kept;
    for (size_t at = line.find(" lr-"); at != std::string::npos; at = line.find(" lr-", at + 1))
      kept += line.substr(at, line.find(' ', at + 1) - at);
    if (!kept.empty()) lines.push_back(line.substr(0, line.find(':') + 1) + kept);
  }
  return lines;
}

struct Scheduled : OneWeight {
  explicit Scheduled(OptimizerConfig::Interval by) {
    with_schedule = true;  // halves the rate after the second step, and after each one from then on
    interval = by;
  }
};

TEST(LearningRateMonitor, LogsWhatTheStepUsed) {
  Scheduled task(OptimizerConfig::Interval::kStep);
  EXPECT_THAT(rates(task, {}, {.max_epochs = 2, .log_every_n_steps = 2}),
              ElementsAre("2: lr-SGD=1", "4: lr-SGD=0.25", "6: lr-SGD=0.0625"));
}

TEST(LearningRateMonitor, ByEpochInTheRowOfItsFirstStep) {
  Scheduled by_epoch(OptimizerConfig::Interval::kEpoch);
  EXPECT_THAT(rates(by_epoch, {}, {.max_epochs = 3, .log_every_n_steps = 1}),
              ElementsAre("1: lr-SGD=1", "4: lr-SGD=1", "7: lr-SGD=0.5"));
  Scheduled by_step(OptimizerConfig::Interval::kStep);
  EXPECT_THAT(rates(by_step, {.logging_interval = "epoch"},
                    {.max_epochs = 2, .accumulate_grad_batches = 2, .log_every_n_steps = 0}),
              ElementsAre("1: lr-SGD=1", "3: lr-SGD=0.5"));
  Scheduled all(OptimizerConfig::Interval::kEpoch);
  EXPECT_THAT(rates(all, {.logging_interval = "step"}, {.max_epochs = 1, .log_every_n_steps = 2}),
              ElementsAre("2: lr-SGD=1"));
}

TEST(LearningRateMonitor, WithoutAScheduleBoth) {
  OneWeight task;
  EXPECT_THAT(rates(task, {}, {.max_epochs = 2, .log_every_n_steps = 2}),
              ElementsAre("1: lr-SGD=1", "2: lr-SGD=1", "4: lr-SGD=1", "6: lr-SGD=1"));
}

TEST(LearningRateMonitor, SkippedStepsAndBatchesLeftOutHaveARate) {
  Scheduled task(OptimizerConfig::Interval::kStep);
  EXPECT_THAT(rates(task, {}, {.precision = "16-mixed", .log_every_n_steps = 1}, {1, 1, kInf, -1, 1, 1}),
              ElementsAre("1: lr-SGD=1", "2: lr-SGD=1", "3: lr-SGD=0.5", "4: lr-SGD=0.5", "5: lr-SGD=0.5",
                          "6: lr-SGD=0.25"));
}

/// Has one optimizer of every kind and a second SGD, which has the schedule and steps twice in each batch.
struct Several : OneWeight {
  bool automatic_optimization() const override { return false; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    const auto first = std::make_shared<torch::optim::SGD>(net->parameters(), 1.0);
    const auto second = std::make_shared<torch::optim::SGD>(
        other->parameters(), torch::optim::SGDOptions(0.5).momentum(0.25).weight_decay(0.125));
    const auto third = std::make_shared<AdamW>(
        std::vector<torch::optim::OptimizerParamGroup>{
            torch::optim::OptimizerParamGroup({torch::ones({1}, torch::requires_grad())}),
            torch::optim::OptimizerParamGroup({torch::ones({1}, torch::requires_grad())},
                                              std::make_unique<AdamWOptions>(2.0))},
        AdamWOptions(4.0));
    const auto fourth = std::make_shared<FusedSGD>(
        std::vector<at::Tensor>{torch::ones({1}, torch::requires_grad())}, SGDOptions(8));
    return {{first}, {second, std::make_shared<torch::optim::StepLR>(*second, 1, 0.5)}, {third}, {fourth}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    optimizers(1).zero_grad();
    manual_backward((other->weight * batch.data).sum());
    optimizers(1).step();
    optimizers(1).scheduler()->step();
    optimizers(1).step();
    optimizers(1).scheduler()->step();
    return {};
  }
  torch::nn::Linear other{torch::nn::LinearOptions(1, 1).bias(false)};
};

TEST(LearningRateMonitor, NamesEveryOptimizerAndGroupAsLightningDoes) {
  Several task;
  // lr-SGD is the one with a schedule. The batch has two steps, and the second step's rate is kept.
  EXPECT_THAT(rates(task, {.logging_interval = "step"}, {.log_every_n_steps = 1}, {1, 1}),
              ElementsAre("2: lr-AdamW/pg1=4 lr-AdamW/pg2=2 lr-FusedSGD=8 lr-SGD=0.5 lr-SGD-1=1",
                          "4: lr-AdamW/pg1=4 lr-AdamW/pg2=2 lr-FusedSGD=8 lr-SGD=0.125 lr-SGD-1=1"));
}

TEST(LearningRateMonitor, MomentumAndWeightDecay) {
  Several task;
  const auto lines = rates(task, {.logging_interval = "step", .log_momentum = true, .log_weight_decay = true},
                           {.log_every_n_steps = 1}, {1});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr(" lr-SGD-momentum=0.25 lr-SGD-weight_decay=0.125"));
  EXPECT_THAT(lines[0], HasSubstr(" lr-SGD-1-momentum=0 lr-SGD-1-weight_decay=0"));
  EXPECT_THAT(lines[0], HasSubstr(" lr-AdamW/pg2-momentum=0.9 lr-AdamW/pg2-weight_decay=0.01"));
  EXPECT_THAT(lines[0], HasSubstr(" lr-FusedSGD-momentum=0 lr-FusedSGD-weight_decay=0"));
  Scheduled plain(OptimizerConfig::Interval::kStep);
  EXPECT_THAT(rates(plain, {}, {.log_every_n_steps = 1}).front(), Not(HasSubstr("momentum")));
}

template <int>
struct Templated final : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

TEST(LearningRateMonitor, ATemplatesNameIsLoggedWithoutItsArguments) {
  struct Task final : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<Templated<1>>(net->parameters(), 1.0)}};
    }
  } task;
  EXPECT_THAT(rates(task, {}, {.log_every_n_steps = 1}, {1}), ElementsAre("1: lr-Templated=1"));
}

TEST(LearningRateMonitor, AnOptimizerWithoutMomentumHasTheMomentum0) {
  struct Task final : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::Adagrad>(net->parameters(), 1.0)}};
    }
  } task;
  EXPECT_THAT(rates(task, {.log_momentum = true}, {.log_every_n_steps = 1}, {1}),
              ElementsAre("1: lr-Adagrad=1 lr-Adagrad-momentum=0"));
}

TEST(LearningRateMonitor, WantsALoggerAndAnInterval) {
  EXPECT_THAT(error_of([] { LearningRateMonitor callback({.logging_interval = "batch"}); }),
              HasSubstr("unknown logging_interval 'batch'"));
  OneWeight task;
  ListLoader train = loader_of({1});
  const auto monitor = std::make_shared<LearningRateMonitor>();
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu", .callbacks = {monitor}}).fit(task, train); }),
              HasSubstr("LearningRateMonitor: the Trainer has no logger"));
  EXPECT_EQ(Trainer({.device = "cpu", .fast_dev_run = true, .callbacks = {monitor}}).fit(task, train).steps,
            1);
}

class LearningRateMonitorFiles : public InFolder {};

TEST_F(LearningRateMonitorFiles, AResumedRunLogsNothingTwice) {
  const auto run = [&](const std::string& log, const std::string& checkpoints, float throws_at,
                       bool resumes) {
    Scheduled task(OptimizerConfig::Interval::kEpoch);
    task.throws_at = throws_at;
    ListLoader train = loader_of({1, 2, 3, 4, 5});
    const TrainerOptions options{
        .device = "cpu",
        .max_epochs = 2,
        .accumulate_grad_batches = 2,
        .callbacks = {std::make_shared<LearningRateMonitor>(),
                      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                          .dirpath = folder_ / checkpoints, .every_n_train_steps = 1})},
        .loggers = {std::make_shared<CSVLogger>(folder_ / log)},
        .log_every_n_steps = 0};
    if (throws_at > 0) {
      EXPECT_THROW(Trainer(options).fit(task, train), std::runtime_error);
    } else {
      Trainer(options).fit(task, train, nullptr, resumes ? folder_ / checkpoints : "");
    }
  };
  run("whole", "a", -kInf, false);
  const std::string whole = content_of(folder_ / "whole/metrics.csv");
  EXPECT_THAT(whole, HasSubstr("lr-SGD"));
  run("parts", "b", 5, false);  // fails in the epoch's third step; the first one has logged the rate
  run("parts", "b", -kInf, true);
  EXPECT_EQ(whole, content_of(folder_ / "parts/metrics.csv"));
}

TEST_F(LearningRateMonitorFiles, ARunSavedBeforeItsFirstStepIsResumed) {
  const auto lines = [&](int64_t epochs, const std::string& to, const std::filesystem::path& from) {
    Scheduled task(OptimizerConfig::Interval::kEpoch);
    ListLoader train = loader_of({1});
    const auto recording = std::make_shared<RecordingLogger>();
    Trainer(
        {.device = "cpu",
         .max_epochs = epochs,
         .callbacks = {std::make_shared<LearningRateMonitor>(),
                       std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / to})},
         .loggers = {recording}})
        .fit(task, train, nullptr, from);
    return recording->lines;
  };
  EXPECT_THAT(lines(0, "a", ""), Not(Contains(HasSubstr("lr-SGD"))));
  EXPECT_THAT(lines(1, "b", folder_ / "a"), Contains(HasSubstr("lr-SGD=1")));
}

}  // namespace
}  // namespace mantissa::learning_rate_monitor_test
